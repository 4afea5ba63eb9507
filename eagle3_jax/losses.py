"""What the draft is trained on: cross-entropy against the target's own distribution.

Column t at step k reads token x[t+1+k]; the teacher is the target's state there, and x[t+2+k] is
the token due. So much is alike in every framework. They part in what becomes of a column's number:
whose loss mask decides whether it counts, what it is divided by, what the steps weigh. A `Recipe`
is one framework's choice, as data; nothing else knows its name.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def soft_target_cross_entropy(
    logits: Float[Array, "*dims W"], teacher: Float[Array, "*dims W"]
) -> Float[Array, "*dims"]:
    """Minus sum p log q, per position, in nats.

    p is the teacher's softmax over the draft vocabulary, that is, renormalised on it. This is
    not the KL divergence: the entropy of p is missing, which has no gradient.

    Args:
        logits: the draft's.
        teacher: the target's, its rows restricted to the draft vocabulary.
    """
    target = jax.lax.stop_gradient(jax.nn.softmax(teacher.astype(jnp.float32), axis=-1))
    return -jnp.sum(target * jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), axis=-1)


def kl_divergence(
    logits: Float[Array, "*dims W"], teacher: Float[Array, "*dims W"]
) -> Float[Array, "*dims"]:
    """Sum p log(p/q), per position, in nats: the cross-entropy without the entropy of p.

    Args:
        logits: the draft's.
        teacher: the target's, its rows restricted to the draft vocabulary.
    """
    return soft_target_cross_entropy(logits, teacher) - soft_target_cross_entropy(teacher, teacher)


def masked_sum(
    values: Float[Array, "*dims"], mask: Bool[Array, "*dims"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The sum over the mask and the mask's count, which add up across batches."""
    return jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=jnp.float32)


def step_weights(steps: int, decay: float) -> Float[Array, " K"]:
    """Weight of each step's loss: decay**k (EAGLE-3 uses 0.8)."""
    return decay ** jnp.arange(steps, dtype=jnp.float32)


class Recipe(NamedTuple):
    """How a framework makes one number of every column's cross-entropy.

    Attributes:
        source: where it is written.
        steps: K, and
        decay: the weight of a step relative to the one before: what it trains with unless it is
            told otherwise. Nothing here reads the two; pass them on to the loss.
        offset: column t counts at step k when the loss mask marks token t+offset+k: two tokens
            before the one that is due, one before it, or the due one.
        last: the last token's mark counts. With offset 0 its column reads token 0 behind the text
            and is held against a target whose logits are all zero.
        droppable: a column does not count where the target's likeliest token is none that the
            draft can say.
        divisor: a step's sum is divided by the number of columns that `count`, or of all that the
            `batch` has, padding included.
        slack: added to the divisor.
        entropy: the teacher's entropy is part of the loss (cross-entropy) or not (KL divergence);
            the gradient is the same.
        averaged: the steps' losses are averaged by their weights, or else added.
        trains_head: the draft's head is trained, or else frozen.
    """

    source: str
    steps: int
    decay: float
    offset: Literal[0, 1, 2]
    last: bool = True
    droppable: bool = False
    divisor: Literal["count", "batch"] = "count"
    slack: float = 0.0
    entropy: bool = True
    averaged: bool = False
    trains_head: bool = True

    @property
    def reads_behind(self) -> bool:
        """Whether a column counts that reads the token behind its text."""
        return self.last and self.offset == 0

    def measure(
        self, logits: Float[Array, "*dims W"], teacher: Float[Array, "*dims W"]
    ) -> Float[Array, "*dims"]:
        """What a column loses."""
        lose = soft_target_cross_entropy if self.entropy else kl_divergence
        return lose(logits, teacher)

    def join(
        self,
        totals: Float[Array, " K"],
        counts: Float[Array, " K"],
        columns: int,
        decay: float,
    ) -> Float[Array, ""]:
        """The loss.

        Args:
            totals: each step's sum over the columns that count.
            counts: how many count.
            columns: B*T, of the batch.
            decay: weight of a step relative to the one before.
        """
        # A step without a column adds nothing, whatever its sum of zero is divided by.
        divisors = jnp.maximum(counts, 1.0) if self.divisor == "count" else float(columns)
        weights = step_weights(len(totals), decay)
        loss = jnp.sum(weights * totals / (divisors + self.slack))
        return loss / jnp.sum(weights) if self.averaged else loss


OURS = Recipe(
    "the token that is due decides; each step is the mean over its own columns",
    steps=3,
    decay=0.8,
    offset=2,
    averaged=True,
)
RECIPES = {
    "specforge": Recipe(
        "SpecForge 0.2.0: algorithms/eagle3/model.py (_compute_target_p, forward), core/loss.py, "
        "algorithms/eagle3/data.py (the last mark), training/strategies/base.py (the weights)",
        steps=7,
        decay=0.8,
        offset=0,
        last=False,
        droppable=True,
        divisor="batch",
    ),
    "eagle": Recipe(
        "SafeAILab/EAGLE: eagle/traineagle3/cnets.py (Model.dataprepare, forward), main.py (the "
        "weights)",
        steps=7,
        decay=0.8,
        offset=0,
        droppable=True,
        divisor="batch",
    ),
    "speculators": Recipe(
        "speculators 0.9.0: models/eagle3/data.py (shift_batch), models/eagle3/core.py, "
        "models/eagle3/metrics.py (align_for_step), losses/utils.py (loss_function); its row is "
        "several documents on end, alike while the first K tokens of each are without a mark",
        steps=3,
        decay=1.0,
        offset=1,
        slack=1e-5,
        entropy=False,
        trains_head=False,
    ),
    "modelopt": Recipe(
        "ModelOpt 0.47.0: speculative/plugins/hf_eagle.py (forward, _eagle_loss), "
        "speculative/config.py; it rolls texts round, but no column that counts reads the end "
        "that came in at the front",
        steps=3,
        decay=0.9,
        offset=1,
        slack=1e-5,
    ),
}

"""Training-time test: one optimiser step of the draft against the target's distribution.

What the loss counts and divides by is a `Recipe` of `losses.py`: ours, or a framework's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.batches import with_token_behind
from eagle3_jax.config import DraftConfig
from eagle3_jax.heads import teach
from eagle3_jax.losses import OURS, Recipe, masked_sum
from eagle3_jax.ops import project, read_at, rms_norm, shift_left
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import DraftStep, Features


class Teacher(NamedTuple):
    """What of the target makes the soft targets; frozen.

    Attributes:
        norm: `[Dt]`, weight of the final norm.
        kernel: `[Dt,W]`, the head's rows of the draft vocabulary.
        eps: epsilon of the final norm.
        head: `[Dt,V]`, the whole head, and
        in_draft: `[V]`, whether the draft can say a target id: for recipes that drop columns.
        behind: `[D]`, the embedding of token 0, for recipes that read behind a text.
    """

    norm: Float[Array, " Dt"]
    kernel: Float[Array, "Dt W"]
    eps: float | Float[Array, ""]
    head: Float[Array, "Dt V"] | None = None
    in_draft: Bool[Array, " V"] | None = None
    behind: Float[Array, " D"] | None = None


class Progress(NamedTuple):
    """What one optimiser step saw.

    Attributes:
        loss: what the recipe makes of the columns' cross-entropies, in nats.
        agreement: `[K]`, how often the draft's first choice is the teacher's, per step, of the
            columns that count.
    """

    loss: Float[Array, ""]
    agreement: Float[Array, " K"]


def ttt_loss(
    config: DraftConfig,
    params: dict[str, Any],
    teacher: Teacher,
    features: Features,
    pre_norm: Float[Array, "B T Dt"],
    *,
    steps: int,
    decay: float,
    recipe: Recipe = OURS,
) -> tuple[Float[Array, ""], Progress]:
    """Soft-target cross-entropy of `steps` steps, step k weighted by decay**k.

    Args:
        config: the draft's, with its own head.
        params: its parameters.
        teacher: the frozen parts of the target.
        features: the texts.
        pre_norm: the target's last state at each token, before its final norm.
        steps: K.
        decay: weight of a step relative to the one before.
        recipe: which columns count and what is made of them.

    Raises:
        ValueError: when the recipe needs a part of the target that the teacher has not.
    """
    kernel = params["lm_head"]["kernel"]
    dtype, columns = kernel.dtype, features.valid.size
    normed = rms_norm(pre_norm.astype(jnp.float32), teacher.norm, teacher.eps)
    if recipe.reads_behind:
        features, normed = _with_token_behind(features, normed, teacher)
    marks = features.answer
    if not recipe.last:
        marks &= shift_left(features.valid, 1)
    said = _can_say(teacher, normed) if recipe.droppable else None
    if not recipe.trains_head:
        kernel = jax.lax.stop_gradient(kernel)

    def read(step: Int[Array, ""] | int, after: DraftStep) -> tuple[Array, Array, Array]:
        logits = project(after.head_input, kernel)
        wanted = project(read_at(normed, step), teacher.kernel)
        mask = shift_left(marks, recipe.offset + step)
        if said is not None:
            mask &= read_at(said, step)
        total, count = masked_sum(recipe.measure(logits, wanted), mask)
        return total, count, jnp.sum(_same_first(logits, wanted) & mask, dtype=jnp.float32)

    totals, counts, agreed = unroll(
        config,
        params,
        features.aux.astype(dtype),
        features.embeddings.astype(dtype),
        steps=steps,
        read=read,
        valid=features.valid,
    )
    loss = recipe.join(totals, counts, columns, decay)
    return loss, Progress(loss, agreed / jnp.maximum(counts, 1.0))


def _can_say(teacher: Teacher, normed: Float[Array, "B T Dt"]) -> Bool[Array, "B T"]:
    """Whether the draft can say what the target finds likeliest after each token."""
    if teacher.head is None or teacher.in_draft is None:
        raise ValueError("the teacher has no head or no in_draft, expected both for this recipe")
    return teacher.in_draft[teach(normed, teacher.head).best]


def _with_token_behind(
    features: Features, normed: Float[Array, "B T Dt"], teacher: Teacher
) -> tuple[Features, Array]:
    """Each text with token 0 behind it, after which the target's logits are all zero."""
    if teacher.behind is None:
        raise ValueError("the teacher has no behind, expected it for this recipe")

    longer = with_token_behind(features._replace(last=normed), teacher.behind)
    assert longer.last is not None, "it is what was put there"
    return longer._replace(last=None), jnp.where(longer.valid[..., None], longer.last, 0.0)


def _same_first(logits: Float[Array, "*dims W"], wanted: Float[Array, "*dims W"]) -> Array:
    """Whether both have a highest value at one place; cheaper on a CPU than two argmaxes."""
    highest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.any(highest & (wanted == wanted.max(axis=-1, keepdims=True)), axis=-1)


def train_step(
    config: DraftConfig,
    optimizer: optax.GradientTransformation,
    *,
    steps: int,
    decay: float,
    recipe: Recipe = OURS,
) -> Callable[..., tuple[Any, Any, Progress]]:
    """One optimiser step, jitted.

    Returns:
        A function of (params, optimiser state, teacher, features, pre_norm) that returns the
        first two, a step on, and what it saw. Parameters and optimiser state are donated: the
        old ones may not be used again.
    """

    def advance(
        params: Any, state: Any, teacher: Teacher, features: Features, pre_norm: Array
    ) -> tuple[Any, Any, Progress]:
        def loss(p: Any) -> tuple[Float[Array, ""], Progress]:
            return ttt_loss(
                config,
                p,
                teacher,
                features,
                pre_norm,
                steps=steps,
                decay=decay,
                recipe=recipe,
            )

        gradients, progress = jax.grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, progress

    return jax.jit(advance, donate_argnums=(0, 1))

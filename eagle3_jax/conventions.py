"""What each framework calls accuracy: one evaluation, counted as its trainer counts.

Column t at step k reads token x[t+1+k] and is to say what the target says there: the teacher is
the target's state at t+1+k, under teacher forcing. So much is alike. The frameworks part in

    token      t  t+1  t+2  ...      whose loss mask decides whether column t counts at step k:
    offset 0   ^k                    x[t+k], two tokens before the one that is due
    offset 1       ^k                x[t+1+k], the one before it  (ours: x[t+2+k], the due one)

and in what they divide by, in what becomes of tokens that the draft cannot say, and in what a
right chain is. A row of `CONVENTIONS` is one framework's choice; nothing else knows its name.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.batches import with_token_behind
from eagle3_jax.config import DraftConfig
from eagle3_jax.heads import TargetHead, Teacher, rank, rank_and_agree, teach
from eagle3_jax.ops import read_at, shift_left
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import DraftStep, Features
from eagle3_jax.vocab import VocabMap


class Sums(NamedTuple):
    """What figures are made of, per step, added over documents: `[K]` each.

    Attributes:
        total: what accuracy is divided by.
        covered: columns that count and whose due token the draft can say.
        right: columns that count and are right.
        shared: over the covered ones, the sum of min(p, q) of the target's and the draft's
            distributions; zeros where the convention does not ask for it.
        chains: columns whose earlier steps leave them in the running.
        unbroken: columns that are right at steps 0..k.
    """

    total: Any
    covered: Any
    right: Any
    shared: Any
    chains: Any
    unbroken: Any


class Convention(NamedTuple):
    """How a framework counts.

    Attributes:
        figures: makes its figures, under its names, of the sums.
        source: where it is written.
        offset: the mask of column t at step k is that of token t+offset+k.
        mask: which tokens it marks: the answer's, or all.
        last: the last token's mark counts. With offset 0 its column reads token 0 behind the text
            and is held against a target whose logits are all zero, that is, against token 0.
        teacher: what is due is the target's likeliest token of `all`, and a miss where the draft
            cannot say it; or of those that the draft can `say`.
        total: accuracy is divided by what the `mask` marks, or by all `pairs` of a token with the
            next, T-1 in a text, at every step.
        chain: `every` step of a chain has to count; or only the `first` and, to be right, the
            last: the steps between need only be right.
        agreement: whether to sum min(p, q).
    """

    figures: Callable[[Sums], dict[str, float | None]]
    source: str
    offset: Literal[0, 1]
    mask: Literal["answer", "text"] = "answer"
    last: bool = True
    teacher: Literal["all", "say"] = "all"
    total: Literal["mask", "pairs"] = "mask"
    chain: Literal["every", "first"] = "every"
    agreement: bool = False


def measure(
    convention: Convention,
    config: DraftConfig,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    vocab: VocabMap,
    batches: Iterable[Features],
    *,
    steps: int,
    head: TargetHead,
    behind: Float[Array, " D"],
    on_batch: Callable[[Features], None] | None = None,
) -> dict[str, float | None]:
    """The figures that a framework's own evaluation gives, under its own names.

    For one document they are what the framework gives for a batch of that document alone. For more
    of them, counts are added up before anything is divided, where a trainer may average its
    batches' figures; and no document is padded, packed or cut, where a trainer's loader may.

    Args:
        convention: whose; a value of `CONVENTIONS`.
        config: the draft's.
        params: its parameters; their type is the precision of the computation.
        kernel: the head, `[D,W]`.
        vocab: the draft vocabulary.
        batches: the features, with the target's last states.
        steps: K.
        head: of the target, which is the teacher.
        behind: the embedding of token 0, which frameworks read behind the end of a text.
        on_batch: called after each batch (progress).

    Returns:
        The figures; `None` where there is nothing to divide by (and frameworks log 0).

    Raises:
        ValueError: when there is no batch, or the features hold no last states.
    """
    draft_ids, target_ids = jnp.asarray(vocab.draft_ids()), jnp.asarray(vocab.target_ids)
    spoken = head.kernel[:, target_ids]
    found = []
    for features in batches:
        sums = _summed(
            convention, config, steps, params, kernel, draft_ids, head, spoken, behind, features
        )
        found.append([np.asarray(part, np.float64) for part in sums])
        if on_batch is not None:
            on_batch(features)
    if not found:
        raise ValueError("found no document, expected at least one")
    return convention.figures(Sums(*(sum(parts) for parts in zip(*found, strict=True))))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _summed(
    convention: Convention,
    config: DraftConfig,
    steps: int,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    draft_ids: Int[Array, " V"],
    head: TargetHead,
    spoken: Float[Array, "Dt W"],
    behind: Float[Array, " D"],
    features: Features,
) -> Sums:
    features = with_token_behind(features, behind)
    teacher, due = _choices(convention, head, spoken, draft_ids, features)

    def read(
        number: Int[Array, ""] | int, step: DraftStep
    ) -> tuple[Bool[Array, "B T"], Bool[Array, "B T"], Float[Array, "B T"]]:
        ids = read_at(due, number)
        if not convention.agreement:
            ranks, shared = rank(step.head_input, kernel, ids), jnp.zeros(ids.shape, jnp.float32)
        else:
            at = teacher.at(number)
            ranks, shared = rank_and_agree(step.head_input, kernel, ids, at, spoken)
        return (ranks == 0) & (ids >= 0), ids >= 0, shared

    hits, covered, shared = unroll(
        config,
        params,
        features.aux.astype(kernel.dtype),
        features.embeddings.astype(kernel.dtype),
        steps=steps,
        read=read,
        valid=features.valid,
    )
    return tally(convention, features.answer, features.valid, hits, covered, shared)


def tally(
    convention: Convention,
    answer: Bool[Array, "B T"],
    valid: Bool[Array, "B T"],
    hits: Bool[Array, "K B T"],
    covered: Bool[Array, "K B T"],
    shared: Float[Array, "K B T"],
) -> Sums:
    """Count what column t said at step k.

    Args:
        convention: whose.
        answer: the loss mask.
        valid: false on padding.
        hits: the draft says what is due.
        covered: the draft can say what is due.
        shared: sum of min(p, q).
    """
    steps = hits.shape[0]
    pairs = shift_left(valid, 1)
    marks = answer if convention.mask == "answer" else valid
    marks = marks if convention.last else marks & pairs
    counts = jnp.stack([shift_left(marks, convention.offset + k) for k in range(steps)])
    right = hits & counts
    if convention.chain == "every":
        chains, unbroken = (jnp.cumprod(part, axis=0).astype(bool) for part in (counts, right))
    else:
        read = jnp.stack([shift_left(pairs, k) for k in range(steps)])  # x[t+1+k] is in the text
        alive = jnp.cumprod(hits.at[0].set(right[0]), axis=0).astype(bool)
        chains = jnp.concatenate([counts[:1], alive[:-1]]) & read
        unbroken = alive & counts

    def total(mask: Array) -> Array:
        return jnp.sum(mask, axis=(1, 2))

    whole = counts if convention.total == "mask" else jnp.broadcast_to(pairs, counts.shape)
    agreed = jnp.where(counts & covered, shared, 0.0)
    return Sums(*map(total, (whole, counts & covered, right, agreed, chains, unbroken)))


def _choices(
    convention: Convention,
    head: TargetHead,
    spoken: Float[Array, "Dt W"],
    draft_ids: Int[Array, " V"],
    features: Features,
) -> tuple[Teacher, Int[Array, "B T"]]:
    """The target after each token, and the draft id of its choice, below 0 where there is none."""
    state = head.read(features.last)
    if convention.teacher == "say":
        teacher = teach(state, spoken)
        return teacher, teacher.best
    teacher = teach(state, head.kernel)
    return teacher, draft_ids[teacher.best]


def _by_step(name: str, parts: Any, wholes: Any) -> dict[str, float | None]:
    return {
        name.format(k): _share(part, whole)
        for k, (part, whole) in enumerate(zip(parts, wholes, strict=True))
    }


def _share(part: Any, whole: Any) -> float | None:
    return float(part) / float(whole) if whole else None


def _eagle(sums: Sums) -> dict[str, float | None]:
    """`acc_k`: right columns of the loss mask's."""
    return _by_step("acc_{}", sums.right, sums.total)


def _specforge(sums: Sums) -> dict[str, float | None]:
    """`acc_k`: right columns of the loss mask's. `acceptance_rate_k`: mean of sum min(p, q).

    The mean is over the columns whose due token the draft can say. `simulated_acc_len` is
    a_0 + a_0 a_1 + ... of the accuracies, as if steps were independent; the target's own token is
    not in it.
    """
    accuracies = _by_step("acc_{}", sums.right, sums.total)
    lengths = np.cumprod([accuracy or 0.0 for accuracy in accuracies.values()])
    return {
        **accuracies,
        **_by_step("acceptance_rate_{}", sums.shared, sums.covered),
        "simulated_acc_len": float(np.sum(lengths)),
    }


def _speculators(sums: Sums) -> dict[str, float | None]:
    """`full_acc_k`: right at steps 0..k, of the mask's columns; `cond_acc_k`: of the chains'."""
    return {
        **_by_step("full_acc_{}", sums.unbroken, sums.total),
        **_by_step("cond_acc_{}", sums.unbroken, sums.chains),
    }


def _automodel(sums: Sums) -> dict[str, float | None]:
    """`accuracy`: of all steps together, of columns whose due token the draft can say.

    `simulated_accept_length`: 1, the target's own token, and the share of chains that are right
    at steps 0..k, added over k; a due token that the draft cannot say breaks its chain.
    """
    survive = _by_step("{}", sums.unbroken, sums.chains)
    return {
        "accuracy": _share(np.sum(sums.right), np.sum(sums.covered)),
        "simulated_accept_length": 1.0 + sum(share or 0.0 for share in survive.values()),
    }


def _modelopt(sums: Sums) -> dict[str, float | None]:
    """`train_acc[k]`: right columns of the loss mask's."""
    return _by_step("train_acc[{}]", sums.right, sums.total)


CONVENTIONS = {
    "specforge": Convention(
        _specforge,
        "SpecForge 0.2.0: algorithms/eagle3/model.py (_acc_and_loss), core/lk_loss.py, "
        "algorithms/eagle3/data.py (the last mark), eval/evaluator.py (the length)",
        offset=0,
        last=False,
        agreement=True,
    ),
    "speculators": Convention(
        _speculators,
        "speculators 0.9.0: models/eagle3/data.py (shift_batch), models/eagle3/metrics.py, "
        "models/metrics.py (compute_accuracy_single_step)",
        offset=1,
        teacher="say",
        chain="first",
    ),
    "eagle": Convention(
        _eagle,
        "SafeAILab/EAGLE: eagle/traineagle3/cnets.py (Model.forward); AngelSlim 0.5.0: "
        "train/trainer/eagle3_trainer.py (draft_model_training_time_test)",
        offset=0,
    ),
    "automodel": Convention(
        _automodel,
        "NeMo AutoModel 0.7.0: components/speculative/eagle/core.py "
        "(Eagle3TrainerModule.forward, simulated_accept_length), target.py (the shifted mask)",
        offset=1,
    ),
    "specjax": Convention(
        _eagle,
        "SpecJAX: specjax/models/draft/eagle3.py (compute_ttt_loss)",
        offset=1,
        mask="text",
        total="pairs",
    ),
    "modelopt": Convention(
        _modelopt,
        "ModelOpt 0.47.0: speculative/plugins/hf_eagle.py (HFEagleModel.forward, _eagle_loss)",
        offset=1,
        teacher="say",
    ),
}

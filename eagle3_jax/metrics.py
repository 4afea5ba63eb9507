"""Counts of every document, and the figures made of them.

Column t counts at step k when the token that is due, x[t+2+k], is an answer token. `joint` asks
that steps 0..k are all right: under greedy verification, what a server accepts from that column.
`rounds` are the columns where a server would really draft: from a column that accepts `a` tokens it
goes on to column t + a + 1, since the target adds a token of its own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.ops import due_at, shift_left

_DRAWS = 1000  # of the bootstrap


class Counts(NamedTuple):
    """Numbers per document and step, `[n,K]` each, and per document, `[n]`.

    Attributes:
        total: columns whose due token is an answer token.
        covered: of these, the due token is in the draft vocabulary.
        right: of `total`, the due token is the draft's likeliest.
        top_4: of `total`, it is among the draft's four likeliest.
        top_8: of `total`, among the eight likeliest.
        reached: of `total`, steps 0..k-1 were all right.
        joint: of `reached`, this step is right too.
        agreement: over `total`, the sum of min(p, q) of the target's and the draft's
            distributions; zeros without a target.
        rounds: `[n]`, columns where a server would draft.
        gained: `[n]`, tokens that these rounds give, the target's own included.
    """

    total: Int[Array | np.ndarray, "n K"]
    covered: Int[Array | np.ndarray, "n K"]
    right: Int[Array | np.ndarray, "n K"]
    top_4: Int[Array | np.ndarray, "n K"]
    top_8: Int[Array | np.ndarray, "n K"]
    reached: Int[Array | np.ndarray, "n K"]
    joint: Int[Array | np.ndarray, "n K"]
    agreement: Float[Array | np.ndarray, "n K"]
    rounds: Int[Array | np.ndarray, " n"]
    gained: Int[Array | np.ndarray, " n"]


def count(
    ranks: Int[Array, "K B T"],
    covered: Bool[Array, "K B T"],
    answer: Bool[Array, "B T"],
    agreement: Float[Array, "K B T"] | None = None,
) -> Counts:
    """Count the columns of every row.

    Args:
        ranks: how many of the draft's tokens are likelier than the due one, per step and column.
        covered: whether the draft can say the due token; where it cannot it is a miss.
        answer: true on answer tokens (false on padding).
        agreement: sum of min(p, q) per step and column, where a target gives p.
    """
    steps = ranks.shape[0]
    counted = jnp.stack([due_at(answer, k) for k in range(steps)])
    right = (ranks == 0) & covered & counted
    joint = jnp.cumprod(right, axis=0).astype(bool)
    reached = jnp.concatenate([counted[:1], joint[:-1] & counted[1:]])
    rounds, gained = _walk(jnp.sum(joint, axis=0, dtype=jnp.int32), answer, steps)

    def per_row(mask: Bool[Array, "K B T"]) -> Int[Array, "B K"]:
        return jnp.sum(mask, axis=2, dtype=jnp.int32).T

    top_4, top_8 = (per_row((ranks < top) & covered & counted) for top in (4, 8))
    shared = jnp.zeros(counted.shape, jnp.float32) if agreement is None else agreement
    return Counts(
        per_row(counted),
        per_row(covered & counted),
        per_row(right),
        top_4,
        top_8,
        per_row(reached),
        per_row(joint),
        jnp.sum(jnp.where(counted, shared, 0.0), axis=2).T,
        rounds,
        gained,
    )


def _walk(
    accepted: Int[Array, "B T"], answer: Bool[Array, "B T"], steps: int
) -> tuple[Int[Array, " B"], Int[Array, " B"]]:
    """Rounds and tokens of a server that drafts through each row's answers.

    The first token of an answer is the target's, from the prompt: drafting begins at the column
    that reads it, and ends with the answer.
    """
    said = shift_left(answer, 1)  # column t has read x[t+1]
    begins = said & ~jnp.concatenate([jnp.zeros_like(answer[:, :1]), answer[:, 1:]], axis=1)
    due = jnp.stack([due_at(answer, k) for k in range(steps + 1)])
    added = jnp.take_along_axis(due, accepted[None], axis=0)[0]  # the target's own token counts

    def advance(
        carry: tuple[Array, Array, Array], column: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array, Array], None]:
        following, rounds, gained = carry
        place, begin, alive, wins, bonus = column
        drafts = alive & (begin | (place == following))
        following = jnp.where(drafts, place + wins + 1, following)
        gain = jnp.where(drafts, wins + bonus, 0)
        return (following, rounds + drafts, gained + gain), None

    rows, columns = answer.shape
    zeros = jnp.zeros(rows, jnp.int32)
    by_column = (begins.T, (said & due[0]).T, accepted.T, added.T.astype(jnp.int32))
    (_, rounds, gained), _ = jax.lax.scan(
        advance, (zeros - 1, zeros, zeros), (jnp.arange(columns), *by_column)
    )
    return rounds, gained


def figures(counts: Counts, *, target: bool = False) -> dict[str, Any]:
    """Accuracies and lengths, under names that say what they are.

    Args:
        counts: of one document or more.
        target: `agreement` was counted.

    Returns:
        `steps`: per step `total`, `teacher_forced`, `joint`, `conditional`, `coverage`, `top_4`,
        `top_8` and, with a target, `agreement`; `accepted_per_round`: the sum of the joint
        accuracies, the mean over columns of the draft tokens that greedy verification accepts;
        `tokens_per_round`: one more, the target's own token; `walked`: `rounds`, `tokens` and
        `tokens_per_round` of a server that drafts from column to column.

    Raises:
        ValueError: when no column counts.
    """
    sums = _summed(counts)
    if sums.total[0] == 0:
        raise ValueError("no column counts: the text holds no answer token that a draft could say")
    steps = []
    for k in range(len(sums.total)):
        whole = sums.total[k]
        step = {
            "step": k,
            "total": int(whole),
            "teacher_forced": _share(sums.right[k], whole),
            "joint": _share(sums.joint[k], whole),
            "conditional": _share(sums.joint[k], sums.reached[k]),
            "coverage": _share(sums.covered[k], whole),
            "top_4": _share(sums.top_4[k], whole),
            "top_8": _share(sums.top_8[k], whole),
        }
        steps.append(step | ({"agreement": _share(sums.agreement[k], whole)} if target else {}))
    accepted = sum(step["joint"] or 0.0 for step in steps)
    walked = {
        "rounds": int(sums.rounds),
        "tokens": int(sums.gained),
        "tokens_per_round": _share(sums.gained, sums.rounds),
    }
    return {
        "steps": steps,
        "accepted_per_round": accepted,
        "tokens_per_round": accepted + 1.0,
        "walked": walked,
    }


def intervals(counts: Counts, *, seed: int = 0) -> dict[str, list[float] | None]:
    """95% intervals by drawing documents with replacement: columns of one are not independent.

    Args:
        counts: of all documents; fewer than two have no interval.
        seed: of the draws.

    Returns:
        `joint_0`, `tokens_per_round` and `walked_tokens_per_round`, each [low, high] or `None`.
    """
    names = ("joint_0", "tokens_per_round", "walked_tokens_per_round")
    held = np.asarray(counts.total)[:, 0] > 0  # a document without a counted column has no say
    documents = np.flatnonzero(held)
    if len(documents) < 2:
        return dict.fromkeys(names)
    draws = np.random.default_rng(seed).choice(documents, (_DRAWS, len(documents)))
    total, joint = (
        np.asarray(part, np.int64)[draws].sum(axis=1) for part in (counts.total, counts.joint)
    )
    rounds, gained = (
        np.asarray(part, np.int64)[draws].sum(axis=1) for part in (counts.rounds, counts.gained)
    )
    shares = joint / np.maximum(total, 1)
    drawn = (shares[:, 0], shares.sum(axis=1) + 1.0, gained / np.maximum(rounds, 1))
    return {
        name: [float(low) for low in np.percentile(values, (2.5, 97.5))]
        for name, values in zip(names, drawn, strict=True)
    }


def _summed(counts: Counts) -> Counts:
    """One row of all documents; in 64 bits, since columns of a large shard outgrow int32."""
    sums = []
    for part in counts:
        array = np.asarray(part)
        kind = np.float64 if array.dtype.kind == "f" else np.int64
        sums.append(array.sum(axis=0, dtype=kind))
    return Counts(*sums)


def _share(part: Any, whole: Any) -> float | None:
    """A share, or nothing where there is nothing to share."""
    return float(part) / float(whole) if whole else None

"""Counts of every document, and the figures made of them.

Column t counts at step k when the token that is due, x[t+2+k], is an answer token. `joint` asks
that steps 0..k are all right: under greedy verification, what a server accepts from that column.
`rounds` are the columns where a server would really draft: from a column that accepts `a` tokens it
goes on to column t + a + 1, since the target adds a token of its own. How many steps it drafts
decides which columns these are, so each number of steps has a walk of its own.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.ops import due_at, shift_left

_DRAWS = 1000  # of the bootstrap


class Counts(NamedTuple):
    """Numbers per document and step, `[n,K]` each.

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
        rounds: columns where a server that drafts steps 0..k, and no more, would draft.
        gained: tokens that these rounds give, the target's own included.
    """

    total: Int[Array | np.ndarray, "n K"]
    covered: Int[Array | np.ndarray, "n K"]
    right: Int[Array | np.ndarray, "n K"]
    top_4: Int[Array | np.ndarray, "n K"]
    top_8: Int[Array | np.ndarray, "n K"]
    reached: Int[Array | np.ndarray, "n K"]
    joint: Int[Array | np.ndarray, "n K"]
    agreement: Float[Array | np.ndarray, "n K"]
    rounds: Int[Array | np.ndarray, "n K"]
    gained: Int[Array | np.ndarray, "n K"]


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
    rounds, gained = _walk(jnp.cumsum(joint, axis=0, dtype=jnp.int32), answer)

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
    accepted: Int[Array, "K B T"], answer: Bool[Array, "B T"]
) -> tuple[Int[Array, "B K"], Int[Array, "B K"]]:
    """Rounds and tokens of servers that draft through each row's answers.

    The first token of an answer is the target's, from the prompt: drafting begins at the column
    that reads it, and ends with the answer.

    Args:
        accepted: draft tokens that are accepted from each column, where steps 0..k are drafted.
        answer: true on answer tokens.
    """
    steps = accepted.shape[0]
    said = shift_left(answer, 1)  # column t has read x[t+1]
    begins = said & ~jnp.concatenate([jnp.zeros_like(answer[:, :1]), answer[:, 1:]], axis=1)
    due = jnp.stack([due_at(answer, k) for k in range(steps + 1)])
    added = jnp.take_along_axis(due, accepted, axis=0)  # [K,B,T]: the target's own token counts

    def advance(
        carry: tuple[Array, Array, Array], column: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array, Array], None]:
        following, rounds, gained = carry
        place, begin, alive, wins, bonus = column
        drafts = alive & (begin | (place == following))
        following = jnp.where(drafts, place + wins + 1, following)
        gain = jnp.where(drafts, wins + bonus, 0)
        return (following, rounds + drafts, gained + gain), None

    zeros = jnp.zeros(accepted.shape[:2], jnp.int32)
    by_column = (
        jnp.arange(answer.shape[1]),
        begins.T,
        (said & due[0]).T,
        jnp.moveaxis(accepted, 2, 0),
        jnp.moveaxis(added.astype(jnp.int32), 2, 0),
    )
    (_, rounds, gained), _ = jax.lax.scan(advance, (zeros - 1, zeros, zeros), by_column)
    return rounds.T, gained.T


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
        `tokens_per_round` of a server that drafts K steps from column to column;
        `walked_by_steps`: the same for 1 to K steps, each with its number of `steps`.

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
    walks = [
        {"rounds": int(rounds), "tokens": int(gained), "tokens_per_round": _share(gained, rounds)}
        for rounds, gained in zip(sums.rounds, sums.gained, strict=True)
    ]
    return {
        "steps": steps,
        "accepted_per_round": accepted,
        "tokens_per_round": accepted + 1.0,
        "walked": walks[-1],
        "walked_by_steps": [{"steps": k + 1} | walk for k, walk in enumerate(walks)],
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
    size = len(documents)
    draws = np.random.default_rng(seed).integers(0, size, (_DRAWS, size))
    # How often each draw has each document: [draws, documents], small beside its counts by step.
    apart = draws + size * np.arange(_DRAWS)[:, None]
    times = np.bincount(apart.ravel(), minlength=_DRAWS * size).reshape(_DRAWS, size)
    parts = (counts.total, counts.joint, counts.rounds, counts.gained)
    by_document = np.concatenate([np.asarray(part)[documents] for part in parts], axis=1)
    sums = times @ by_document.astype(np.float64)  # exact: far below 2**53
    total, joint, rounds, gained = np.split(sums, len(parts), axis=1)
    shares = joint / np.maximum(total, 1)
    walked = gained[:, -1] / np.maximum(rounds[:, -1], 1)
    drawn = (shares[:, 0], shares.sum(axis=1) + 1.0, walked)
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

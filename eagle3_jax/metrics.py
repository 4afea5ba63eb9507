"""Counts that add across batches, and the figures made of them.

Column t counts at step k when the token that is due, x[t+2+k], is an answer token. `joint` asks
that steps 0..k are all right: under greedy verification, what a server accepts.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from eagle3_jax.ops import due_at


class Counts(NamedTuple):
    """Integer counts per step, `[K]` each; sums of counts are counts.

    Attributes:
        total: columns whose due token is an answer token.
        covered: of these, the due token is in the draft vocabulary.
        right: of `total`, the token is predicted.
        reached: of `total`, steps 0..k-1 were all right.
        joint: of `reached`, this step is right too.
    """

    total: Int[Array | np.ndarray, " K"]
    covered: Int[Array | np.ndarray, " K"]
    right: Int[Array | np.ndarray, " K"]
    reached: Int[Array | np.ndarray, " K"]
    joint: Int[Array | np.ndarray, " K"]

    def __add__(self, other: "Counts") -> "Counts":  # type: ignore[override]
        """Counts of both."""
        return Counts(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def count(
    predicted: Int[Array, "K B T"],
    ids: Int[Array, "B T"],
    answer: Bool[Array, "B T"],
    in_draft: Bool[Array, " V"],
) -> Counts:
    """Compare predictions with the text.

    Args:
        predicted: target ids, per step and column.
        ids: the text.
        answer: true on answer tokens (false on padding).
        in_draft: which target ids the draft can say; the others are misses that no training
            could mend.
    """
    steps = predicted.shape[0]
    due = jnp.stack([due_at(ids, k) for k in range(steps)])
    counted = jnp.stack([due_at(answer, k) for k in range(steps)])
    right = (predicted == due) & counted
    joint = jnp.cumprod(right, axis=0).astype(bool)
    reached = jnp.concatenate([counted[:1], joint[:-1] & counted[1:]])

    def per_step(mask: Bool[Array, "K B T"]) -> Int[Array, " K"]:
        return jnp.sum(mask, axis=(1, 2), dtype=jnp.int32)

    return Counts(
        per_step(counted),
        per_step(counted & in_draft[due]),
        per_step(right),
        per_step(reached),
        per_step(joint),
    )


def figures(counts: Counts) -> dict[str, Any]:
    """Accuracies and lengths, under names that say what they are.

    Returns:
        `steps`: per step `total`, `teacher_forced`, `joint`, `conditional`, `coverage`;
        `accepted_per_round`: the sum of the joint accuracies, the mean number of draft tokens
        that greedy verification accepts; `tokens_per_round`: one more, the target's own token.

    Raises:
        ValueError: when no column counts.
    """
    total, covered, right, reached, joint = (np.asarray(part, np.int64) for part in counts)
    if total[0] == 0:
        raise ValueError("no column counts: the text holds no answer token that a draft could say")
    steps = [
        {
            "step": k,
            "total": int(total[k]),
            "teacher_forced": _share(right[k], total[k]),
            "joint": _share(joint[k], total[k]),
            "conditional": _share(joint[k], reached[k]),
            "coverage": _share(covered[k], total[k]),
        }
        for k in range(len(total))
    ]
    accepted = sum(step["joint"] or 0.0 for step in steps)
    return {"steps": steps, "accepted_per_round": accepted, "tokens_per_round": accepted + 1.0}


def _share(part: np.int64, whole: np.int64) -> float | None:
    """A share, or nothing where there is nothing to share."""
    return float(part) / float(whole) if whole else None

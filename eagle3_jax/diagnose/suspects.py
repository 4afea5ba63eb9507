"""Documents whose states are not their own, told by how the others do.

equalities   most documents are equal throughout, this one is not
rates        this one's hits are all but impossible at the median document's rate
"""

from math import comb

import numpy as np

from eagle3_jax.diagnose.figures import Hits, Match
from eagle3_jax.diagnose.findings import Finding, share
from eagle3_jax.diagnose.likeness import compare
from eagle3_jax.diagnose.measures import VARIANTS, Measured, pair

SUSPECT = "the shard is suspect: "
_IMPOSSIBLE = 1e-6
_SURE = 5.0  # standard deviations


def find_unequal(hits: Hits) -> tuple[int, ...]:
    """The documents that are not equal throughout, where more than half of all are."""
    counted = hits.total > 0
    whole = counted & (hits.right == hits.total)
    if 2 * whole.sum() <= counted.sum():
        return ()
    return tuple(np.flatnonzero(counted & ~whole).tolist())


def find_misses(hits: Hits) -> tuple[int, ...]:
    """The documents whose rate is below a quarter of the median one, and not by chance."""
    counted = np.flatnonzero(hits.total > 0)
    if len(counted) < 3:  # the median of two is between them
        return ()
    rate = median_rate(hits)
    return tuple(
        int(number)
        for number in counted
        if hits.right[number] < hits.total[number] * rate / 4
        and _at_most(int(hits.right[number]), int(hits.total[number]), rate) < _IMPOSSIBLE
    )


def median_rate(hits: Hits) -> float:
    """The rate of the median document; 0 where nothing was counted."""
    counted = hits.total > 0
    return float(np.median(hits.right[counted] / hits.total[counted])) if counted.any() else 0.0


def judge_predictions(
    slots: list[list[Measured]], texts: list[np.ndarray]
) -> tuple[tuple[int, ...], list[Finding]]:
    """Documents whose states do not predict their own ids, while others' do or other ids fit.

    Args:
        slots: of each slot its measures in each document, the head's guesses among them.
        texts: `[T]`, the ids of each document.

    Returns:
        The numbers of the suspects, and a finding for each, or each pair that was swapped.
    """
    slot, variant, hits = _best_guesses(slots, texts)
    own = Hits(np.diag(hits.right), np.diag(hits.total))
    others = np.where(np.eye(len(texts), dtype=bool), -1, hits.right)
    nearest = others.argmax(axis=1)
    there = others.max(axis=1)
    misses = find_misses(own)
    rate = median_rate(own)
    fits: dict[int, int] = {}
    for number, other in enumerate(nearest.tolist()):
        gained, theirs = there[number] - own.right[number], int(there[number])
        if (number in misses and theirs >= hits.total[number, other] * rate / 2) or (
            own.right[number] < theirs / 4 and gained > _SURE * np.sqrt(theirs + own.right[number])
        ):
            fits[number] = other
    suspects = tuple(sorted({*misses, *fits}))
    how = f"slot {slot}, norms before the head: {VARIANTS[variant]}"
    found = []
    for number in suspects:
        right, total = int(own.right[number]), int(own.total[number])
        evidence = (
            f"{how}: {share(right, total)} next ids of document {number}, {rate:.1%} in the "
            "median document"
        )
        claim = (
            f"{SUSPECT}the states of document {number} do not predict its ids; they "
            "may be another document's"
        )
        other = fits.get(number)
        if other is not None:
            if fits.get(other) == number and other < number:
                continue  # told with the first of the two
            fitting = share(int(there[number]), int(hits.total[number, other]))
            evidence += f"; {fitting} of document {other}"
            claim = (
                f"{SUSPECT}the states of document {number} predict the ids of "
                f"document {other}, not its own"
            )
            if fits.get(other) == number:
                claim = (
                    f"{SUSPECT}the states of documents {number} and {other} are "
                    "swapped: each predict the other's ids, not their own"
                )
        found.append(Finding("measured", claim, evidence))
    return suspects, found


def judge_rows(
    slot: str, match: Match, parts: list[Measured], hits: Hits
) -> tuple[tuple[int, ...], list[Finding]]:
    """Documents in which a slot does not hold the embeddings of their ids, while most do.

    Args:
        slot: its name.
        match: with the embeddings that the other documents hold.
        parts: the slot's measures in each document.
        hits: rows that are equal to their token's embedding.
    """
    suspects = find_unequal(hits)
    found = []
    for number in suspects:
        right, total = int(hits.right[number]), int(hits.total[number])
        claim = f"{SUSPECT}{slot} of document {number} does not hold the embeddings of its ids"
        evidence = (
            f"{share(right, total)} tokens equal their row of {match.reference}; in "
            f"{share(len(hits.total) - len(suspects), len(hits.total))} documents all do"
        )
        for other, part in enumerate(parts):
            if other != number and _has_rows_of(parts[number], part, match):
                claim += f" but those of document {other}"
                evidence += (
                    f"; the first {part.marks.shape[1]} channels of all its tokens are those of "
                    f"document {other}'s ids"
                )
        found.append(Finding("proved", claim, evidence))
    return suspects, found


def judge_repeats(slot: str, parts: list[Measured]) -> tuple[tuple[int, ...], list[Finding]]:
    """Documents in which equal ids have other states, while a slot depends on ids alone in most.

    Args:
        slot: its name.
        parts: the slot's measures in each document.
    """
    counts = np.array([part.repeats[0] for part in parts])
    suspects = find_unequal(Hits(counts[:, 0], counts[:, 1]))
    return suspects, [
        Finding(
            "proved",
            f"{SUSPECT}{slot} of document {number} is not of its ids as it is in other documents",
            f"{share(int(counts[number, 0]), int(counts[number, 1]))} repeats of an id have one "
            f"state; in {share(len(parts) - len(suspects), len(parts))} documents all do",
        )
        for number in suspects
    ]


def _has_rows_of(part: Measured, other: Measured, match: Match) -> bool:
    marks = other.table_marks[match.reference]
    if len(marks) != len(part.marks):
        return False
    multiple = marks if match.scale == 1.0 else match.scale * marks.astype(np.float64)
    likeness = compare(*pair(part.marks, multiple, match.shift), roundings=2)
    return bool(likeness.compared.any() and likeness.equal[likeness.compared].all())


def _best_guesses(slots: list[list[Measured]], texts: list[np.ndarray]) -> tuple[int, int, Hits]:
    """The slot and the number of norms that predict most, and hits of states on ids, `[n,n]`."""
    best = None
    for slot, parts in enumerate(slots):
        guesses = [part.guesses for part in parts if part.guesses is not None]
        for variant in range(guesses[0].shape[1]):
            hits = _cross([guess[:, variant] for guess in guesses], texts)
            score = hits.right.max(axis=1).sum()
            if best is None or score > best[0]:
                best = score, slot, variant, hits
    assert best is not None, "a shard has slots"
    return best[1:]


def _cross(guesses: list[np.ndarray], texts: list[np.ndarray]) -> Hits:
    right, total = (np.zeros((len(texts), len(texts)), int) for _ in range(2))
    for number, guess in enumerate(guesses):
        said = guess[1:]
        for other, ids in enumerate(texts):
            due = ids[2 : 2 + len(said)]
            counted = said[: len(due)] >= 0
            right[number, other] = np.sum(counted & (said[: len(due)] == due))
            total[number, other] = counted.sum()
    return Hits(right, total)


def _at_most(right: int, total: int, rate: float) -> float:
    """How likely that few hits are at a rate, tokens being independent."""
    rate = min(rate, 0.95)  # of a few documents, so never certain
    return sum(comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(right + 1))

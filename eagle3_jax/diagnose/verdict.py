"""What a search amounts to: one sentence that the figures carry, or what they cannot tell."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from eagle3_jax.diagnose.cases import Scores
from eagle3_jax.diagnose.readings import Option, Reading, changes
from eagle3_jax.diagnose.sampling import FEWEST
from eagle3_jax.diagnose.search import GAIN, LEAST, Found, Tried, accepted_difference

Kind = Literal[
    "wired as configured",
    "another reading",
    "several readings tie",
    "the shard is suspect",
    "the draft generalises badly",
    "the draft is broken",
    "cannot tell",
]


@dataclass(frozen=True)
class Verdict:
    """What is wrong, if anything.

    Attributes:
        kind: of what.
        told: why, in a sentence or two.
        reading: the changes of the best reading; none is the configured one.
        ties: other readings with as few changes that the data likes as much.
        difference: accepted tokens per round that the reading gains over the configured one.
        interval: 95% of it, paired by document; `None` where there are too few.
        undecided: single changes that make no difference here, by axis.
    """

    kind: Kind
    told: str
    reading: Reading = ()
    ties: tuple[Reading, ...] = ()
    difference: float = 0.0
    interval: tuple[float, float] | None = None
    undecided: dict[str, tuple[str, ...]] = field(default_factory=dict)


def judge(
    found: Found,
    *,
    chance: float,
    suspicion: str | None = None,
    trained: float | None = None,
) -> Verdict:
    """Name the fault, or say that there is none, or that the data cannot tell.

    Args:
        found: of `search`.
        chance: share of columns that the one likeliest token would get right.
        suspicion: what is wrong with the shard itself, in words.
        trained: first-token accuracy that the training reported.
    """
    plain, compared = found.finalists[0], len(found.finalists)
    documents = int((plain.scores.total[:, 0] > 0).sum())
    best = max(found.finalists, key=lambda tried: tried.scores.accepted())
    equal = [tried for tried in found.finalists if _ties(tried, best, compared)]
    if any(tried is plain for tried in equal):
        # The configured reading needs better reasons to leave than a tie.
        equal = [plain]
    else:
        # What is as good as the best by its spread alone need not be better than the configured.
        equal = [tried for tried in equal if not _ties(plain, tried, compared)]
    fewest = min(changes(tried.reading) for tried in equal)
    winners = [tried for tried in equal if changes(tried.reading) == fewest]
    # Among equals, the one that the search came to: it was the best elsewhere, too.
    winner = next(
        (tried for tried in winners if set(tried.reading) == set(found.centre)),
        max(winners, key=lambda tried: tried.scores.accepted()),
    )
    centre = _centre(found)
    undecided = _undecided(found, winner) if _ties(centre, best, compared) else {}
    low, high = _interval(winner.scores)
    if suspicion is not None and (low <= chance or not winner.reading):
        told = (
            f"{suspicion}; over the {documents} documents that decide, {plain.scores.first():.1%} "
            "of first tokens are right"
        )
        return Verdict("the shard is suspect", told, undecided=undecided)
    if documents < FEWEST:
        told = (
            f"documents with answer tokens that decide: {documents}, expected {FEWEST} or more for "
            "an interval"
        )
        if documents:
            told += f"; {told_reading(winner.reading)} looks best of the readings tried (suggested)"
        reading = winner.reading if documents else ()
        return Verdict("cannot tell", told, reading, undecided=undecided)
    if low <= chance:
        return _beaten(winner, found, chance, low, high)
    if not winner.reading:
        return _configured(winner, found, trained, undecided)
    difference, *ends = accepted_difference(winner.scores, plain.scores)
    ties = tuple(t.reading for t in equal if t is not winner and _rivals(t, winner))
    told = (
        f"{told_reading(winner.reading)} gets {winner.scores.accepted():.2f} draft tokens accepted "
        f"per round, the configured reading {plain.scores.accepted():.2f}: "
        f"{difference:+.2f} (95%: {ends[0]:+.2f} to {ends[1]:+.2f}, {documents} documents)"
    )
    kind: Kind = "another reading"
    if ties:
        kind = "several readings tie"
        told += "; more documents, or longer ones, may tell those that are as good apart"
    return Verdict(kind, told, winner.reading, ties, difference, (ends[0], ends[1]), undecided)


def judge_guess(verdict: Verdict, states: Option) -> Verdict:
    """The verdict where nobody says that the states which the search began with feed the draft.

    Args:
        verdict: of `judge`, for which they are the configured ones.
        states: these, as a choice.
    """
    if verdict.kind == "the draft is broken":
        told = f"the states that feed the draft are not known to be stored, and {verdict.told}"
        return replace(verdict, kind="cannot tell", told=told)
    if verdict.kind in ("wired as configured", "the draft generalises badly"):
        told = f"nobody says which stored states feed the draft; {states.label} do: {verdict.told}"
        return replace(verdict, kind="another reading", told=told, reading=(states,))
    if verdict.reading and all(option.axis != states.axis for option in verdict.reading):
        return replace(verdict, reading=(states, *verdict.reading))
    return verdict


def _beaten(winner: Tried, found: Found, chance: float, low: float, high: float) -> Verdict:
    """Nothing is surely better than the one likeliest token."""
    first = (
        f"{winner.scores.first():.1%} of first tokens right (95%: {low:.1%} to {high:.1%}), the "
        f"one likeliest token {chance:.1%}"
    )
    if high > chance:
        told = (
            f"the best of {found.compared} readings has {first}: too few texts to tell them apart"
        )
        return Verdict("cannot tell", told)
    told = f"the best of {found.compared} readings has {first}"
    return Verdict("the draft is broken", told)


def told_reading(reading: Reading) -> str:
    """A reading in words."""
    return "; ".join(map(str, reading)) or "as configured"


def _configured(
    plain: Tried,
    found: Found,
    trained: float | None,
    undecided: dict[str, tuple[str, ...]],
) -> Verdict:
    first = plain.scores.first()
    told = (
        f"no reading of {found.compared} is better by more than {GAIN:.0%} and its interval: "
        f"{first:.1%} of first tokens are right, {plain.scores.accepted():.2f} draft tokens "
        "accepted per round"
    )
    if trained is not None:
        low, high = _interval(plain.scores)
        if high < trained:
            told = (
                f"wired as configured, but {first:.1%} of first tokens are right (95%: {low:.1%} "
                f"to {high:.1%}) where the training reported {trained:.1%}: these texts are not "
                "like those"
            )
            return Verdict("the draft generalises badly", told, undecided=undecided)
    return Verdict("wired as configured", told, undecided=undecided)


def _ties(tried: Tried, best: Tried, compared: int = 1) -> bool:
    """Not worse by more than a change is worth, or not surely worse."""
    difference, low, _ = accepted_difference(best.scores, tried.scores, compared=compared)
    return low <= 0 or difference <= max(LEAST, GAIN * tried.scores.accepted())


def _rivals(tried: Tried, winner: Tried) -> bool:
    """Whether an equal reading is another explanation, not the same one and something more."""
    if set(winner.reading) <= set(tried.reading):
        return False
    ahead = tried.scores.accepted() > winner.scores.accepted()
    return ahead or changes(tried.reading) == changes(winner.reading)


def _centre(found: Found) -> Tried:
    return next(t for t in found.finalists if set(t.reading) == set(found.centre))


def _undecided(found: Found, winner: Tried) -> dict[str, tuple[str, ...]]:
    """Single changes of the reading that the search came to that make nothing worse.

    So are those that it has beside the winner's, which is as good without them.
    """
    centre = set(found.centre)
    few = next(t for t in found.around if set(t.reading) == centre)
    many = _centre(found)
    undecided: dict[str, tuple[str, ...]] = {
        option.axis: (option.label,) for option in found.centre if option not in winner.reading
    }
    for tried, here in (
        *((t, few) for t in found.around),
        *((t, many) for t in found.finalists),
    ):
        new, gone = set(tried.reading) - centre, centre - set(tried.reading)
        if len(new) > 1 or len(new | gone) == 0 or len({o.axis for o in new | gone}) > 1:
            continue
        if _ties(tried, here):
            axis = next(iter(new | gone)).axis
            label = next((option.label for option in new), "as configured")
            if label not in undecided.get(axis, ()):
                undecided[axis] = (*undecided.get(axis, ()), label)
    return undecided


def _interval(scores: Scores, *, draws: int = 2000) -> tuple[float, float]:
    """95% of the first token's accuracy, documents drawn with replacement."""
    held = np.flatnonzero(scores.total[:, 0])
    if not len(held):
        return 0.0, 1.0
    chosen = np.random.default_rng(0).choice(held, (draws, len(held)))
    shares = scores.joint[chosen, 0].sum(1) / np.maximum(scores.total[chosen, 0].sum(1), 1)
    low, high = np.percentile(shares, (2.5, 97.5))
    return float(low), float(high)

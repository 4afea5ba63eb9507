"""Which reading does the data like best? A search from the configured one, a change at a time.

    all single changes on a few columns -> the best of them on more -> take the best, go on from it
    where no single change helps: pairs of those that can ruin everything, and a draft vocabulary
    that is learned from the text

Documents that decide between the finalists have no part in finding them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from eagle3_jax.diagnose.cases import Case, Scores, Setting, score
from eagle3_jax.diagnose.mapping import learned_vocabulary
from eagle3_jax.diagnose.readings import Axis, Option, Reading, change, state_axis
from eagle3_jax.structs import Features

_KEPT = 10  # finalists of a round
_LEARNED = 3  # finalists with a vocabulary that the text shows
_CHANGES = 4  # of a reading
_WEAK = 0.1  # share of first tokens that are right: below it one fault may hide another
GAIN = 0.05  # of the accepted tokens: less is not worth a change
LEAST = 0.01  # accepted tokens per round
_RUINOUS = ("states", "pairing", "vocabulary")


class Data(NamedTuple):
    """Batches of one shape, for three purposes.

    Attributes:
        first: few columns, for all readings.
        second: more of them, for the best; `first` included.
        fresh: documents that are in neither; empty where there are too few.
    """

    first: list[Features]
    second: list[Features]
    fresh: list[Features]


class Tried(NamedTuple):
    """A reading and what it scored.

    Attributes:
        reading: its changes; none is the configured one.
        scores: on the data that all readings of the list were scored on.
    """

    reading: Reading
    scores: Scores


class Found(NamedTuple):
    """What a search found.

    Attributes:
        around: every single change of `centre`, on few columns, best first; `centre` is among them.
        centre: the reading that the search came to.
        finalists: on the fresh documents, or on all where there are none; the configured first.
        compared: how many readings were tried.
    """

    around: list[Tried]
    centre: Reading
    finalists: list[Tried]
    compared: int


def search(
    setting: Setting,
    case: Case,
    axes: Iterable[Axis],
    data: Data,
    *,
    slots: tuple[int, ...],
    places: tuple[str, ...],
    extra: Iterable[Reading] = (),
    on_reading: Callable[[], None] | None = None,
) -> Found:
    """Score readings from the configured one outwards.

    Args:
        setting: shared by all.
        case: the configured reading.
        axes: of `readings.axes_of`.
        data: to score on.
        slots: stored states that the configured reading feeds.
        places: what to call each stored state, and the embedding where it is a candidate.
        extra: readings that are wanted among the finalists.
        on_reading: called after each scored reading (progress).
    """
    axes = tuple(axes)
    compared: set[frozenset[Option]] = set()

    def on(reading: Reading, batches: list[Features]) -> Scores:
        compared.add(frozenset(reading))
        found = score(setting, change(case, reading), batches)
        if on_reading is not None:
            on_reading()
        return found

    def singles(current: Reading) -> Iterator[Reading]:
        fed = next((o.slots for o in current if o.slots is not None), slots)
        for axis in (state_axis(fed, len(places), places, configured=slots), *axes):
            for option in axis.options:
                # Back to the configured states is one change less, not one more.
                yield _without(current, option) if option.slots == slots else _with(current, option)

    def best_of(readings: Iterable[Reading], current: Reading) -> tuple[list[Tried], list[Tried]]:
        screened = [Tried(r, on(r, data.first)) for r in (current, *readings)]
        kept = _ranked(screened)[:_KEPT]
        if current not in [tried.reading for tried in kept]:
            kept.append(screened[0])
        return screened, _ranked(Tried(t.reading, on(t.reading, data.second)) for t in kept)

    current: Reading = ()
    good: list[Tried] = []
    while True:
        around, kept = best_of(singles(current), current)
        good += kept
        if not _gains(kept[0], current, kept) and _weak(kept[0]):
            _, kept = best_of(_pairs(around, singles(current), current), current)
            good += kept
        if not _gains(kept[0], current, kept) or len(current) == _CHANGES:
            break
        current = kept[0].reading
    learned: list[Tried] = []
    if _weak(kept[0]) and data.fresh:
        lost = learned_vocabulary(setting, data.second[len(data.first) :])
        bases = ((), *(r for r in singles(()) if r[-1].axis in _RUINOUS[:2]))
        learned = [Tried(r, on(r, data.first)) for r in ((*base, lost) for base in bases)]
    best = [t.reading for t in (*_ranked(good)[:_KEPT], *_ranked(learned)[:_LEARNED])]
    wanted = _distinct([(), current, *best, *extra])
    batches = data.fresh or data.second
    finalists = [Tried(reading, on(reading, batches)) for reading in wanted]
    return Found(_ranked(around), current, finalists, len(compared))


def _with(current: Reading, option: Option) -> Reading:
    """A reading with one more choice, or another one on its axis."""
    return (*_without(current, option), option)


def _without(current: Reading, option: Option) -> Reading:
    return tuple(o for o in current if o.axis != option.axis)


def _ranked(tried: Iterable[Tried]) -> list[Tried]:
    """Best first; among equals fewer changes first, then the order in which they were tried."""
    return sorted(tried, key=lambda t: (-round(t.scores.accepted(), 9), len(t.reading)))


def _gains(best: Tried, current: Reading, tried: list[Tried]) -> bool:
    before = next(t.scores.accepted() for t in tried if t.reading == current)
    return best.scores.accepted() - before > max(LEAST, GAIN * before)


def _weak(best: Tried) -> bool:
    return best.scores.first() < _WEAK


def _pairs(around: list[Tried], singles: Iterable[Reading], current: Reading) -> list[Reading]:
    """Pairs of changes of which each alone may show nothing, as long as the other one is missing.

    All of those that can ruin everything, and of each axis the best one with those of the others.
    """
    order = {tried.reading: number for number, tried in enumerate(_ranked(around))}
    options = [
        option
        for reading in sorted(singles, key=lambda reading: order[reading])
        for option in reading
        if option not in current
    ]
    best: dict[str, Option] = {}
    for option in options:
        best.setdefault(option.axis, option)
    ruinous = [option for option in options if option.axis in _RUINOUS]
    pairs = (*itertools.combinations(ruinous, 2), *itertools.combinations(best.values(), 2))
    return _distinct(
        _with(_with(current, one), other) for one, other in pairs if one.axis != other.axis
    )


def _distinct(readings: Iterable[Reading]) -> list[Reading]:
    """Each set of choices once."""
    return list({frozenset(reading): reading for reading in readings}.values())


def accepted_difference(
    one: Scores, other: Scores, *, compared: int = 1, draws: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """How many more draft tokens a round the first reading gets accepted, and its 95% interval.

    Both are scored on the same documents, which are drawn with replacement in pairs.

    Args:
        one: a reading.
        other: another.
        compared: how many readings had the chance to be the first one: the interval is widened so
            that it holds for all of them at once (Bonferroni).
        draws: of the bootstrap.
        seed: of the draws.

    Returns:
        The difference, and the interval's ends.
    """
    held = np.flatnonzero(one.total[:, 0])
    chosen = np.random.default_rng(seed).choice(held, (draws, len(held)))
    total = np.maximum(one.total[chosen].sum(1), 1)
    gained = ((one.joint - other.joint)[chosen].sum(1) / total).sum(1)
    tail = 2.5 / compared
    low, high = np.percentile(gained, (tail, 100 - tail))
    return one.accepted() - other.accepted(), float(low), float(high)

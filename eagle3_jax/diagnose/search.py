"""Which reading does the data like best? A search from the configured one, a change at a time.

    all single changes on a few columns -> the best of them on more -> take the best, go on from it
    where no single change helps: pairs of those that can ruin everything
    where the configured reading is hardly ever right: the same once more, with a draft vocabulary
    that is learned from the text; no pairs where that one alone explains it

Documents that decide between the finalists have no part in finding them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from eagle3_jax.diagnose.cases import Case, Scores, Setting, score
from eagle3_jax.diagnose.mapping import learned_vocabulary
from eagle3_jax.diagnose.readings import Axis, Option, Reading, change, changes, state_axis
from eagle3_jax.structs import Features

_KEPT = 10  # finalists of a round
_CHANGES = 4  # of a reading
_WEAK = 0.1  # share of first tokens that are right: below it one fault may hide another
GAIN = 0.05  # of the accepted tokens: less is not worth a change
LEAST = 0.01  # accepted tokens per round
_RUINOUS = ("states", "pairing", "vocabulary")
# What hides behind a lost vocabulary: each is tried with the one that is learned.
_HIDING = ("states", "states' norm", "pairing", "halves", "norms before attention", "rope")
_STARTS = 2  # of these: what looks best on little may lead nowhere


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
        on_reading: called after each scored reading (progress).
    """
    tries = _Tries(setting, case, tuple(axes), slots, places, on_reading)
    lost = _lost_vocabulary(tries, data)
    alone = None if lost is None else Tried((lost,), tries.on((lost,), data.first))
    # Where the vocabulary alone explains it, pairs have nothing to look for.
    climbs = [tries.climb((), data.first, data.second, pairs=alone is None or _weak(alone))]
    end = next(t for t in climbs[0].tried if t.reading == climbs[0].centre)
    found = not _weak(end) and any(option.axis == "vocabulary" for option in end.reading)
    if lost is not None and alone is not None and not found:
        bases = [r for r in tries.singles(()) if r[-1].axis in _HIDING]
        behind = [Tried((*b, lost), tries.on((*b, lost), data.first)) for b in bases]
        starts = _ranked([alone, *behind])
        starts = starts[:_STARTS] if _gains(starts[0], alone.reading, starts) else [alone]
        climbs += [tries.climb(t.reading, data.first, data.first) for t in starts]
    best = [t.reading for climb in climbs for t in _ranked(climb.tried)[:_KEPT]]
    wanted = _distinct([(), *(climb.centre for climb in climbs), *best])
    batches = data.fresh or data.second
    finalists = [Tried(reading, tries.on(reading, batches)) for reading in wanted]
    scored = {frozenset(t.reading): t.scores.accepted() for t in finalists}
    chosen = max(climbs, key=lambda climb: scored[frozenset(climb.centre)])
    return Found(chosen.around, chosen.centre, finalists, len(tries.compared))


class _Climb(NamedTuple):
    """A way from one reading to a better one: see `Found`.

    Attributes:
        around: of its end.
        centre: its end.
        tried: all that were scored on more columns.
    """

    around: list[Tried]
    centre: Reading
    tried: list[Tried]


class _Tries:
    """Readings of one draft, scored."""

    def __init__(
        self,
        setting: Setting,
        case: Case,
        axes: tuple[Axis, ...],
        slots: tuple[int, ...],
        places: tuple[str, ...],
        on_reading: Callable[[], None] | None,
    ) -> None:
        self.setting, self.case, self.axes = setting, case, axes
        self.slots, self.places, self.on_reading = slots, places, on_reading
        self.compared: set[frozenset[Option]] = set()

    def on(self, reading: Reading, batches: list[Features]) -> Scores:
        self.compared.add(frozenset(reading))
        found = score(self.setting, change(self.case, reading), batches)
        if self.on_reading is not None:
            self.on_reading()
        return found

    def singles(self, current: Reading) -> Iterator[Reading]:
        """Readings one change from another one: a choice more, another one, or one less."""
        fed = next((o.slots for o in current if o.slots is not None), self.slots)
        states = state_axis(fed, len(self.places), self.places, configured=self.slots)
        for option in current:
            yield _without(current, option)
        for axis in (states, *self.axes):
            for option in axis.options:
                if option not in current and option.slots != self.slots:
                    yield _with(current, option)

    def climb(
        self, current: Reading, few: list[Features], more: list[Features], *, pairs: bool = True
    ) -> _Climb:
        """Take the best single change as long as one gains; where all is weak, a pair of them."""
        tried: list[Tried] = []
        while True:
            around, kept = self._best_of(self.singles(current), current, few, more)
            tried += kept
            if pairs and not _gains(kept[0], current, kept) and _weak(kept[0]):
                both = _pairs(around, self.singles(current), current)
                _, kept = self._best_of(both, current, few, more)
                tried += kept
            if not _gains(kept[0], current, kept) or len(current) == _CHANGES:
                return _Climb(_ranked(around), current, tried)
            current = kept[0].reading

    def _best_of(
        self,
        readings: Iterable[Reading],
        current: Reading,
        few: list[Features],
        more: list[Features],
    ) -> tuple[list[Tried], list[Tried]]:
        screened = [Tried(r, self.on(r, few)) for r in (current, *readings)]
        kept = _ranked(screened)[:_KEPT]
        if current not in [tried.reading for tried in kept]:
            kept.append(screened[0])
        return screened, _ranked(Tried(t.reading, self.on(t.reading, more)) for t in kept)


def _lost_vocabulary(tries: _Tries, data: Data) -> Option | None:
    """A draft vocabulary that is learned from the text, where hardly a first token is right.

    `None` where some are, or where too few texts are left to decide without those that taught it.
    """
    if not data.fresh or not _weak(Tried((), tries.on((), data.second))):
        return None
    # What the vocabulary is learned from takes no part in what follows.
    return learned_vocabulary(tries.setting, data.second[len(data.first) :])


def _with(current: Reading, option: Option) -> Reading:
    """A reading with one more choice, or another one on its axis."""
    return (*_without(current, option), option)


def _without(current: Reading, option: Option) -> Reading:
    return tuple(o for o in current if o.axis != option.axis)


def _ranked(tried: Iterable[Tried]) -> list[Tried]:
    """Best first; among equals fewer changes first, then the order in which they were tried."""
    return sorted(tried, key=lambda t: (-round(t.scores.accepted(), 9), changes(t.reading)))


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

"""The figures of one slot over all documents that were read."""

from typing import Literal, NamedTuple

import numpy as np

from eagle3_jax.diagnose.likeness import Likeness, middle
from eagle3_jax.diagnose.measures import NOT_ASKED, SHIFTS, VARIANTS, Compared, Measured

OFFSETS = (0, 1, 2)  # the token's own id, the next one, the one after
_MASSIVE, _TIMES = 100.0, 1000.0
_NEAREST = 6  # boundaries that are kept


class Norms(NamedTuple):
    """Norms of a slot's states past position 0: median, 5% and 95% quantiles, largest.

    `first` is the median norm at position 0. NaN where there is no token to say.
    """

    median: float
    low: float
    high: float
    largest: float
    first: float


class Massive(NamedTuple):
    """A channel of massive activations (Sun et al. 2024, arXiv:2402.17762).

    Attributes:
        channel: which.
        first: its largest magnitude at position 0.
        later: the same past it.
    """

    channel: int
    first: float
    later: float


class Match(NamedTuple):
    """A slot against a reference.

    Attributes:
        reference: what it was compared with, by name.
        shift: the reference is that of the token this many places on.
        scale: what the reference was multiplied by: 1 as it is; NaN after a fitted norm.
        equal: tokens whose state is equal up to the storage type's rounding.
        exact: those equal bit for bit, once cast to the coarser type.
        compared: tokens whose values are finite and that have a partner.
        error: median relative error past position 0.
        cosine: median cosine past position 0.
    """

    reference: str
    shift: int
    scale: float
    equal: int
    exact: int
    compared: int
    error: float
    cosine: float

    @property
    def whole(self) -> bool:
        """Whether all that could be compared is equal."""
        return 0 < self.compared == self.equal


class Repeats(NamedTuple):
    """Neighbouring occurrences of one id: `same` of `pairs` have one state, `shift` tokens away."""

    shift: int
    same: int
    pairs: int


class Rate(NamedTuple):
    """How often the head says an id: that of `offset` tokens on, after some norms.

    `norms` is none, one or two; position 0 does not count.
    """

    norms: str
    offset: int
    right: int
    total: int


class Hits(NamedTuple):
    """Hits of each document.

    Attributes:
        right: `[n]`.
        total: `[n]`, how many there could be.
    """

    right: np.ndarray
    total: np.ndarray


class Slot(NamedTuple):
    """What a shard stores in one slot, in figures.

    Attributes:
        name: slot 0, ..., or the stored boundary 0.
        tokens: how many were read.
        norms: of the states.
        start: the first values of the second token of the first document.
        dead: channels that are zero throughout.
        width: Dt.
        massive: channels above 100 and 1000 times the median magnitude, largest first.
        typical: the median magnitude past position 0.
        nan: how many values are NaN.
        infinite: how many are infinite.
        tables: against embeddings, as they are and scaled, without suspect documents.
        repeats: of each shift.
        rates: what the head says; nothing without one.
        unit: tokens whose state has a root mean square of 1 once divided by the final norm's
            weight; `None` without it.
        boundaries: the nearest of the target's recomputed states.
        suspects: documents left out of the tables and rates.
    """

    name: str
    tokens: int
    norms: Norms
    start: tuple[float, ...]
    dead: tuple[int, ...]
    width: int
    massive: tuple[Massive, ...]
    typical: float
    nan: int
    infinite: int
    tables: tuple[Match, ...]
    repeats: tuple[Repeats, ...]
    rates: tuple[Rate, ...]
    unit: int | None
    boundaries: tuple[Match, ...]
    suspects: tuple[int, ...]

    @property
    def zero(self) -> bool:
        """Whether every value is zero."""
        return len(self.dead) == self.width and not self.nan and not self.infinite


def summarise(
    name: str, parts: list[Measured], texts: list[np.ndarray], suspects: tuple[int, ...]
) -> Slot:
    """Gather the measures of one slot.

    Args:
        name: the slot's.
        parts: its measures in each document.
        texts: `[T]`, the ids of each document.
        suspects: documents whose states are not their own.
    """
    good = [part for number, part in enumerate(parts) if number not in suspects]
    first = np.max([part.first for part in parts], axis=0)
    later = np.max([part.later for part in parts], axis=0)
    typical = middle(np.array([part.typical for part in parts]))
    second = parts[0].marks[min(1, len(parts[0].marks) - 1)]
    return Slot(
        name,
        sum(map(len, texts)),
        _norms(parts),
        tuple(second[:4].astype(float).tolist()),
        tuple(np.flatnonzero((first == 0) & (later == 0)).tolist()),
        len(first),
        _massive(first, later, typical),
        typical,
        sum(part.nan for part in parts),
        sum(part.infinite for part in parts),
        _tables(good),
        tuple(_repeats(shift, good) for shift in SHIFTS),
        _rates(parts, texts, suspects),
        _units(good),
        _boundaries(good),
        suspects,
    )


def count_tokens(parts: list[Measured], match: Match, what: Literal["equal", "exact"]) -> Hits:
    """The equal tokens of each document, for one of the matches with a table."""
    found = [_chosen(part.tables[match.reference, match.shift], match.scale) for part in parts]
    return Hits(
        np.array([getattr(likeness, what).sum() for likeness in found]),
        np.array([likeness.compared.sum() for likeness in found]),
    )


def find_asked(part: Measured) -> np.ndarray:
    """The tokens past position 0 that count for rates.

    The last ones are left out: every offset is to have the same tokens, so that they compare.
    """
    assert part.guesses is not None, "asked for with a head only"
    tokens = np.flatnonzero(part.guesses[:, 0] != NOT_ASKED)
    return tokens[(tokens > 0) & (tokens < len(part.guesses) - OFFSETS[-1])]


def find_hits(part: Measured, ids: np.ndarray, variant: int, offset: int) -> np.ndarray:
    """Of those tokens, where the guess is the id so many tokens on; `variant` norms came before.

    Guesses of states that are not finite are wrong.
    """
    assert part.guesses is not None, "asked for with a head only"
    tokens = find_asked(part)
    return part.guesses[tokens, variant] == ids[tokens + offset]


def _chosen(compared: Compared, scale: float) -> Likeness:
    if scale == 1.0 or compared.scaled is None:  # not parallel: nor equal to a multiple
        return compared.plain
    return compared.scaled


def _units(parts: list[Measured]) -> int | None:
    marked = [part.unit for part in parts if part.unit is not None]
    return int(sum(unit.sum() for unit in marked)) if marked else None


def _norms(parts: list[Measured]) -> Norms:
    later = np.concatenate([part.norms[1:] for part in parts])
    later = later[~np.isnan(later)]
    first = middle(np.array([part.norms[0] for part in parts]))
    if not later.size:
        nothing = float("nan")
        return Norms(nothing, nothing, nothing, nothing, first)
    low, median, high = np.quantile(later, (0.05, 0.5, 0.95)).tolist()
    return Norms(median, low, high, float(later.max()), first)


def _massive(first: np.ndarray, later: np.ndarray, typical: float) -> tuple[Massive, ...]:
    largest = np.maximum(first, later)
    channels = np.flatnonzero((largest > _MASSIVE) & (largest > _TIMES * typical))
    found = [Massive(int(c), float(first[c]), float(later[c])) for c in channels]
    return tuple(sorted(found, key=lambda channel: -max(channel[1:])))


def _match(reference: str, shift: int, scale: float, found: list[Likeness]) -> Match:
    # A likeness has no row for tokens without a partner: with a shift of -1 it starts at token 1.
    skipped = 0 if shift < 0 else 1
    errors, cosines = (
        np.concatenate([getattr(likeness, name)[skipped:] for likeness in found])
        for name in ("error", "cosine")
    )
    return Match(
        reference,
        shift,
        scale,
        int(sum(likeness.equal.sum() for likeness in found)),
        int(sum(likeness.exact.sum() for likeness in found)),
        int(sum(likeness.compared.sum() for likeness in found)),
        middle(errors),
        middle(cosines),
    )


def _tables(parts: list[Measured]) -> tuple[Match, ...]:
    found = []
    for reference, shift in parts[0].tables if parts else ():
        each = [part.tables[reference, shift] for part in parts]
        found.append(_match(reference, shift, 1.0, [compared.plain for compared in each]))
        scales = [c.scale for c in each if c.scaled is not None and c.scaled.equal.any()]
        if scales:
            scale = float(np.median(scales))
            rounding = max(compared.plain.rounding for compared in each)
            # One constant for all documents, and another one than 1.
            if np.ptp(scales) <= 2 * rounding * abs(scale) and abs(scale - 1) > 2 * rounding:
                likenesses = [_chosen(compared, scale) for compared in each]
                found.append(_match(reference, shift, scale, likenesses))
    return tuple(found)


def _repeats(shift: int, parts: list[Measured]) -> Repeats:
    return Repeats(shift, *(sum(part.repeats[shift][place] for part in parts) for place in (0, 1)))


def _rates(
    parts: list[Measured], texts: list[np.ndarray], suspects: tuple[int, ...]
) -> tuple[Rate, ...]:
    if parts[0].guesses is None:
        return ()
    found = []
    for variant, norms in enumerate(VARIANTS[: parts[0].guesses.shape[1]]):
        for offset in OFFSETS:
            hits = [
                find_hits(part, ids, variant, offset)
                for number, (part, ids) in enumerate(zip(parts, texts, strict=True))
                if number not in suspects
            ]
            right, total = sum(int(hit.sum()) for hit in hits), sum(map(len, hits))
            found.append(Rate(norms, offset, right, total))
    return tuple(found)


def _boundaries(parts: list[Measured]) -> tuple[Match, ...]:
    run = [part for part in parts if part.boundaries]
    found = [
        _match(*key, 1.0, [part.boundaries[key] for part in run])
        for key in (run[0].boundaries if run else ())
    ]
    names = {name for part in run for name in part.normed}
    found += [
        _match(name, 0, float("nan"), [part.normed[name] for part in run])
        for name in sorted(names)
        if all(name in part.normed for part in run)
    ]
    order = sorted(found, key=lambda match: (-match.equal, np.nan_to_num(match.error, nan=np.inf)))
    return tuple(order[:_NEAREST])

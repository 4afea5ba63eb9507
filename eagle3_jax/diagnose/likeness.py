"""Whether rows of states are the same numbers, up to what their storage types round away.

    equal   |found - reference| <= eps |reference| + slack (|reference| + median |reference|)

in every channel of a row, where eps is the spacing of the coarser type: both may be rounded, or
cut off, once. Channels count one by one: a massive one would hide the others in any norm. Slack is
for what was computed anew, and 0 for what was only copied.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

# Slack of a recomputation. Neighbouring boundaries differ by far more.
RECOMPUTED = 1e-3
_NARROW = (np.dtype(jnp.bfloat16), np.dtype(np.float16))


class Likeness(NamedTuple):
    """How like the rows of two arrays are.

    Attributes:
        compared: `[T]` bool, false where a value of either row is not finite.
        equal: `[T]` bool, equal up to rounding.
        exact: `[T]` bool, equal bit for bit when cast to the coarser type.
        error: `[T]`, |found - reference| / |reference|; NaN where not compared.
        cosine: `[T]`; NaN where not compared, or a row is zero.
        rounding: eps of the coarser type.
    """

    compared: np.ndarray
    equal: np.ndarray
    exact: np.ndarray
    error: np.ndarray
    cosine: np.ndarray
    rounding: float


def compare(
    found: np.ndarray, reference: np.ndarray, *, roundings: int = 1, slack: float = 0.0
) -> Likeness:
    """Compare rows of two arrays.

    Args:
        found: `[T,D]`.
        reference: `[T,D]`.
        roundings: how often the coarser type may have rounded on the way.
        slack: what may differ beside rounding, as a share of the value and of the reference row's
            median magnitude.
    """
    kind = coarser(precision_of(found), precision_of(reference))
    limits = jnp.finfo(kind)
    compared = np.isfinite(found).all(axis=-1) & np.isfinite(reference).all(axis=-1)
    ours, theirs = (
        np.where(compared[:, None], rows, 0).astype(np.float64) for rows in (found, reference)
    )
    gap, size = np.abs(ours - theirs), np.abs(theirs)
    allowed = roundings * float(limits.eps) * size + float(limits.smallest_subnormal)
    allowed += slack * (size + np.median(size, axis=-1, keepdims=True))
    exact = _cast(ours, kind) == _cast(theirs, kind)
    lengths = np.linalg.norm(ours, axis=-1), np.linalg.norm(theirs, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.linalg.norm(gap, axis=-1) / lengths[1]
        cosine = np.einsum("td,td->t", ours, theirs) / (lengths[0] * lengths[1])
    error[(lengths[0] == 0) & (lengths[1] == 0)] = 0.0
    error[~compared] = cosine[~compared] = np.nan
    return Likeness(
        compared,
        compared & (gap <= allowed).all(axis=-1),
        compared & exact.all(axis=-1),
        error,
        cosine,
        float(limits.eps),
    )


def precision_of(array: np.ndarray) -> np.dtype:
    """The narrowest type that holds the values: states are often rounded, then stored wider."""
    kind = array.dtype
    if kind in _NARROW:
        return kind
    finite = array[np.isfinite(array)]
    for narrow in _NARROW:
        if np.array_equal(_cast(finite, narrow).astype(kind), finite):
            return narrow
    return kind


def coarser(one: np.dtype, other: np.dtype) -> np.dtype:
    """Of two floating types the one that rounds more."""
    return max(one, other, key=lambda kind: float(jnp.finfo(kind).eps))


def fit_scale(found: np.ndarray, reference: np.ndarray) -> float:
    """The constant c for which c * reference is nearest to `found`; NaN where there is none."""
    rows = _usable(found, reference)
    ours, theirs = found[rows].astype(np.float64), reference[rows].astype(np.float64)
    power = float(np.sum(theirs * theirs))
    return float(np.sum(ours * theirs)) / power if power else float("nan")


def fit_norm(found: np.ndarray, reference: np.ndarray) -> np.ndarray | None:
    """`reference` after the RMS norm whose weight brings it nearest to `found`.

    One weight a channel is fitted, so `[T,D]` values stand against D of them: `None` below four
    rows, which would carry nothing.
    """
    rows = _usable(found, reference)
    theirs = reference.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = theirs / np.sqrt(np.mean(theirs * theirs, axis=-1, keepdims=True))
    rows &= np.isfinite(unit).all(axis=-1)
    if np.count_nonzero(rows) < 4:
        return None
    power = np.sum(unit[rows] ** 2, axis=0)
    weight = np.sum(found[rows].astype(np.float64) * unit[rows], axis=0)
    return unit * np.divide(weight, power, out=np.zeros_like(power), where=power > 0)


def middle(values: np.ndarray) -> float:
    """The median of what is a number; NaN where nothing is."""
    kept = values[~np.isnan(values)]
    return float(np.median(kept)) if kept.size else float("nan")


def _usable(found: np.ndarray, reference: np.ndarray) -> np.ndarray:
    return np.isfinite(found).all(axis=-1) & np.isfinite(reference).all(axis=-1)


def _cast(values: np.ndarray, kind: np.dtype) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(kind)

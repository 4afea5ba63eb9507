"""The figures of one document's stored states, slot by slot, before anybody judges them.

A document is measured on a prefix, which no later token could change, and only numbers per token
are kept of it. Position 0 stands apart: a target may put a massive activation there, beside which
averages mean nothing.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle3_jax.diagnose.likeness import (
    RECOMPUTED,
    Likeness,
    compare,
    fit_norm,
    fit_scale,
    middle,
)
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead, in_chunks
from eagle3_jax.ops import project, rms_norm
from eagle3_jax.record import bucket
from eagle3_jax.structs import Document

SHIFTS = (0, -1, 1)
VARIANTS = ("none", "one", "two")  # final norms before the head
STORED_EMBEDDINGS = "the stored boundary 0"
POST_NORM = "boundary L after the final norm"
NOT_ASKED = -2
_MARKS = 8
_PARALLEL = 0.99  # cosine of states that may be multiples, rounded
BoundariesOf = Callable[[np.ndarray], np.ndarray]


class Compared(NamedTuple):
    """A slot against one reference, in one document.

    Attributes:
        plain: as they are.
        scaled: against the reference times `scale`; `None` where they are not parallel.
        scale: the constant that brings them nearest; NaN where there is none.
    """

    plain: Likeness
    scaled: Likeness | None
    scale: float


class Measured(NamedTuple):
    """One slot in one document of T tokens.

    Attributes:
        norms: `[T]`; NaN where a value is not finite.
        first: largest magnitude of each channel at position 0, `[D]`.
        later: the same past position 0, of finite values.
        typical: the median magnitude past position 0.
        marks: `[T,8]` or fewer channels of each state, to know it again by.
        nan: how many values are NaN.
        infinite: how many are infinite.
        tables: by reference and shift: against the row of the token that many places on.
        table_marks: by reference: those channels of each token's row.
        repeats: by shift: pairs of equal ids whose states are equal, and how many pairs.
        guesses: `[T,3]`, the id that the head says after no, one and two norms, or `[T,1]` where
            there is no norm; -1 for states that are not finite, -2 where the head was not asked.
            `None` without a head.
        unit: `[T]` bool, whether the state divided by the final norm's weight has a root mean
            square of 1; `None` without that norm.
        boundaries: by boundary and shift: against the target's recomputed states.
        normed: by boundary: against them after a fitted norm; where no boundary is equal.
    """

    norms: np.ndarray
    first: np.ndarray
    later: np.ndarray
    typical: float
    marks: np.ndarray
    nan: int
    infinite: int
    tables: dict[tuple[str, int], Compared]
    table_marks: dict[str, np.ndarray]
    repeats: dict[int, tuple[int, int]]
    guesses: np.ndarray | None
    unit: np.ndarray | None
    boundaries: dict[tuple[str, int], Likeness]
    normed: dict[str, Likeness]


def cut(document: Document, tokens: int) -> Document:
    """The first tokens of a document, in memory of their own: a view would keep all of it."""
    ids, answer, states, embeddings = document
    rows = None if embeddings is None else embeddings[:tokens].copy()
    return Document(ids[:tokens].copy(), answer[:tokens].copy(), states[:tokens].copy(), rows)


def measure(
    states: np.ndarray,
    ids: np.ndarray,
    tables: Mapping[str, np.ndarray],
    rows: Mapping[str, np.ndarray],
    head: TargetHead | None,
    recomputed: Mapping[str, np.ndarray],
    asked: int,
) -> Measured:
    """Measure one slot of one document.

    Args:
        states: `[T,D]`, what the slot stores.
        ids: `[T]`, the text.
        tables: token embeddings by name, `[V,D]`.
        rows: embeddings of each token by name, `[T,D]`.
        head: the target's, of this width.
        recomputed: the target's states by name, `[T,D]`.
        asked: how many of the last tokens the head is asked of.
    """
    magnitude = np.abs(states.astype(np.float32))
    magnitude[~np.isfinite(magnitude)] = 0.0
    finite = np.isfinite(states).all(axis=-1)
    norms = np.linalg.norm(magnitude.astype(np.float64), axis=-1)
    norms[~finite] = np.nan
    against = {name: _rows_of(table, ids) for name, table in tables.items()} | dict(rows)
    boundaries = {
        (name, shift): compare(*pair(states, reference, shift), slack=RECOMPUTED)
        for name, reference in recomputed.items()
        for shift in SHIFTS
    }
    met = any(likeness.equal.any() for likeness in boundaries.values())
    return Measured(
        norms,
        magnitude[:1].max(axis=0),
        magnitude[1:].max(axis=0, initial=0.0),
        float(np.median(magnitude[1:])) if len(states) > 1 else float("nan"),
        states[:, :_MARKS],
        int(np.isnan(states).sum()),
        int(np.isinf(states).sum()),
        {
            (name, shift): _against_table(*pair(states, reference, shift))
            for name, reference in against.items()
            for shift in SHIFTS
        },
        {name: reference[:, :_MARKS] for name, reference in against.items()},
        {shift: _count_repeats(states, ids, shift) for shift in SHIFTS},
        None if head is None else _guess(head, states, asked),
        None if head is None or head.norm is None else _has_unit_rms(head, states),
        boundaries,
        {} if met else _after_norms(states, recomputed),
    )


def pair(here: np.ndarray, there: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows t of one array beside rows t + shift of the other; what has no partner is left out."""
    start, stop = max(0, -shift), len(here) - max(0, shift)
    return here[start:stop], there[start + shift : max(stop, start) + shift]


def recompute(
    ids: np.ndarray, boundaries_of: BoundariesOf, head: TargetHead | None, width: int
) -> dict[str, np.ndarray]:
    """The target's states at every boundary by name, after its final norm too where it is given.

    Raises:
        InputError: when they are not a state of the stored width for each token.
    """
    states = np.asarray(boundaries_of(ids))
    if states.ndim != 3 or states.shape[0] != len(ids) or states.shape[2] != width:
        raise InputError(
            f"the target's states of {len(ids)} tokens have shape {list(states.shape)}, expected "
            f"[{len(ids)}, boundaries, {width}], as wide as the stored states"
        )
    found = {f"boundary {number}": states[:, number] for number in range(states.shape[1])}
    if head is not None and head.norm is not None:
        last = jnp.asarray(states[:, -1])
        found[POST_NORM] = np.asarray(rms_norm(last, head.norm, head.eps))
    return found


def _rows_of(table: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Each token's row; NaN, which is compared with nothing, for ids that the table lacks."""
    known = (ids >= 0) & (ids < len(table))
    rows = table[np.where(known, ids, 0)]
    rows[~known] = np.nan
    return rows


def _against_table(states: np.ndarray, reference: np.ndarray) -> Compared:
    plain = compare(states, reference)
    scale = fit_scale(states, reference) or float("nan")  # all rows are equal, times zero
    if not middle(np.abs(plain.cosine)) > _PARALLEL:
        return Compared(plain, None, scale)
    multiple = scale * reference.astype(np.float64)
    return Compared(plain, compare(states, multiple, roundings=2), scale)


def _count_repeats(states: np.ndarray, ids: np.ndarray, shift: int) -> tuple[int, int]:
    """Pairs of tokens with one id, each with the one before it: how many have one state."""
    rows, keys = pair(states, ids, shift)
    order = np.argsort(keys, kind="stable")
    again = keys[order][1:] == keys[order][:-1]
    likeness = compare(rows[order[1:][again]], rows[order[:-1][again]])
    return int(likeness.equal.sum()), int(likeness.compared.sum())


def _guess(head: TargetHead, states: np.ndarray, asked: int) -> np.ndarray:
    rows = states[-asked:]
    padded = np.zeros((bucket(len(rows)), states.shape[1]), states.dtype)
    padded[: len(rows)] = rows
    said = np.array(_likeliest(head, jnp.asarray(padded)))[: len(rows)]
    said[~np.isfinite(rows).all(axis=-1)] = -1
    found = np.full((len(states), said.shape[1]), NOT_ASKED)
    found[len(states) - len(rows) :] = said
    return found


@jax.jit
def _likeliest(head: TargetHead, states: Float[Array, "T D"]) -> Int[Array, "T norms"]:
    reads = [states.astype(head.kernel.dtype)]
    if head.norm is not None:
        for _ in VARIANTS[1:]:
            reads.append(rms_norm(reads[-1], head.norm, head.eps))

    def best(rows: Float[Array, "R D"]) -> Int[Array, " R"]:
        return jnp.argmax(project(rows, head.kernel), axis=-1)

    return in_chunks(best, head.kernel.shape[1], jnp.stack(reads)).T


def _has_unit_rms(head: TargetHead, states: np.ndarray) -> np.ndarray:
    """Whether each state is a unit vector times the final norm's weight, to 1 in 100."""
    weight = np.asarray(head.norm, np.float64)
    wide = states[:, weight != 0].astype(np.float64) / weight[weight != 0]
    size = np.sqrt(np.mean(wide * wide, axis=-1)) if wide.shape[1] else np.zeros(len(states))
    return np.abs(size - 1) < 0.01


def _after_norms(states: np.ndarray, recomputed: Mapping[str, np.ndarray]) -> dict[str, Likeness]:
    found = {}
    for name, reference in recomputed.items():
        normed = fit_norm(states, reference)
        if normed is not None:
            found[name] = compare(states, normed, roundings=2, slack=RECOMPUTED)
    return found

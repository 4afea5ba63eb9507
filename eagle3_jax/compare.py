"""Two traces of one draft: where they part first, by how much, and what that looks like.

A column of a stage agrees when its largest difference is at most the tolerance times the size of
the column's numbers; columns that are far smaller than most are measured by the usual size. Columns
are aligned by text and position; stages that only one of the two has are passed over.
"""

from typing import Any, NamedTuple

import numpy as np

from eagle3_jax.errors import InputError
from eagle3_jax.stages import Step, Trace, layers_of, stage_names
from eagle3_jax.suspicions import Parting, suspect

# Of the coarsest type in the traces: rounding errors of a whole step, not of one sum.
TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


class Found(NamedTuple):
    """How one stage of one step compares.

    Attributes:
        step: k.
        stage: its name.
        columns: how many were compared.
        parted: indices of the columns that do not agree, among those compared.
        largest: the largest difference.
        relative: the largest that a column has, relative to its size.
        cosine: the smallest between two columns.
    """

    step: int
    stage: str
    columns: int
    parted: np.ndarray
    largest: float
    relative: float
    cosine: float


class Comparison(NamedTuple):
    """Two traces, stage by stage.

    Attributes:
        found: every stage that both have, in order.
        first: the first that parts; `None` where all agree.
        rows: `[n]`, the text of each column of `first` that does not agree.
        positions: `[n]`, its position at that step.
        suspicion: what that looks like, in a sentence.
        tolerance: what was applied.
        notes: what was not compared.
    """

    found: tuple[Found, ...]
    first: Found | None
    rows: np.ndarray
    positions: np.ndarray
    suspicion: str
    tolerance: float
    notes: tuple[str, ...]


def compare(one: Trace, other: Trace, tolerance: float | None = None) -> Comparison:
    """Compare two traces.

    Args:
        one: a trace.
        other: another.
        tolerance: relative; by default `TOLERANCES` has it for the coarsest type.

    Raises:
        InputError: when they have no column or no stage in common, or a stage has two widths.
    """
    tolerance = _tolerance(one, other) if tolerance is None else tolerance
    head_dim = _head_dim(one, other)
    found: list[Found] = []
    first, suspicion = None, ""
    rows = places = np.zeros(0, np.int64)
    notes = _notes(one, other)
    for number, (mine, theirs) in enumerate(zip(one.steps, other.steps, strict=False)):
        here, there = _aligned(mine, theirs)
        if not len(here):
            if not number:
                raise InputError(
                    f"the traces have no column in common at step 0: found positions {_span(mine)} "
                    f"and {_span(theirs)}, expected some alike"
                )
            notes.append(f"step {number}: no column in common")
            continue
        left = len(mine.rows) + len(theirs.rows) - 2 * len(here)
        if left:
            notes.append(f"step {number}: {left} columns are in one trace alone")
        known = mine.stages.keys() & theirs.stages.keys()
        both = {name: (mine.stages[name][here], theirs.stages[name][there]) for name in known}
        positions = mine.columns[here] + number
        for stage in stage_names(layers_of(set(known))):
            if stage not in known:
                continue
            a, b = both[stage]
            if a.shape != b.shape:
                raise InputError(
                    f"{stage} is {a.shape[1]} wide in the first trace and {b.shape[1]} in the "
                    "second, expected traces of one draft"
                )
            result = _measured(number, stage, a, b, tolerance, _margin(both, len(here)))
            found.append(result)
            if len(result.parted) and first is None:
                first = result
                rows, places = mine.rows[here][result.parted], positions[result.parted]
                equal = {before.stage for before in found[:-1] if before.step == number}
                parting = Parting(number, stage, positions, result.parted, equal, both)
                suspicion = suspect(parting, tolerance, head_dim)
    if not found:
        raise InputError("the traces have no stage in common, expected at least one")
    return Comparison(tuple(found), first, rows, places, suspicion, tolerance, tuple(notes))


def _aligned(mine: Step, theirs: Step) -> tuple[np.ndarray, np.ndarray]:
    """Where the columns that both have stand in each."""
    there = {place: index for index, place in enumerate(_places(theirs))}
    pairs = [(index, there[p]) for index, p in enumerate(_places(mine)) if p in there]
    here, over_there = np.asarray(pairs, np.int64).reshape(-1, 2).T
    return here, over_there


def _places(step: Step) -> list[tuple[int, int]]:
    return list(zip(step.rows.tolist(), step.columns.tolist(), strict=True))


def _measured(
    number: int, stage: str, a: np.ndarray, b: np.ndarray, tolerance: float, margin: np.ndarray
) -> Found:
    """One stage, column by column."""
    if stage in ("token", "top_ids"):
        # A best id may be another where two logits are as good as equal.
        other = a[:, 0] != b[:, 0]
        clear = margin > 2 * tolerance if stage == "top_ids" else True
        parted = np.flatnonzero(other & clear)
        share = float(len(parted) > 0)
        largest = float(np.max(np.abs(a - b)[parted], initial=0))
        return Found(number, stage, len(a), parted, largest, share, 1.0 - share)
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(a == b, 0.0, np.abs(a - b)).max(axis=1)  # equal infinities are equal
        size = np.maximum(np.abs(a), np.abs(b)).max(axis=1)
        usual = np.median(size[np.isfinite(size)]) if np.isfinite(size).any() else 0.0
        relative = apart / np.maximum(np.maximum(size, usual), np.finfo(np.float64).tiny)
        relative = np.where(np.isfinite(apart), relative, np.inf)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines = np.sum(a * b, axis=1) / np.where(lengths > 0, lengths, np.nan)
    parted = np.flatnonzero(relative > tolerance)
    cosine = float(np.nanmin(cosines)) if np.isfinite(cosines).any() else 1.0
    largest = float(np.where(np.isfinite(apart), apart, np.inf).max())
    return Found(number, stage, len(a), parted, largest, float(relative.max()), cosine)


def _margin(both: dict[str, tuple[np.ndarray, np.ndarray]], columns: int) -> np.ndarray:
    """How far the best logit is ahead of the second, relative to its size, where it is less far."""
    margins = [np.full(columns, np.inf)]
    for top in both.get("top_logits", ()):
        best = top.astype(np.float64)
        if best.shape[1] > 1:
            size = np.maximum(np.abs(best).max(axis=1), np.finfo(np.float64).tiny)
            margins.append((best[:, 0] - best[:, 1]) / size)
    return np.min(margins, axis=0)


def _tolerance(one: Trace, other: Trace) -> float:
    kinds = {
        part.dtype.name
        for trace in (one, other)
        for step in trace.steps
        for part in step.stages.values()
    }
    return max((TOLERANCES[kind] for kind in kinds if kind in TOLERANCES), default=1e-5)


def _head_dim(one: Trace, other: Trace) -> int | None:
    for trace in (one, other):
        told = trace.metadata.get("head_dim", "")
        if told.isdecimal() and int(told):
            return int(told)
    return None


def _notes(one: Trace, other: Trace) -> list[str]:
    notes = []
    if len(one.steps) != len(other.steps):
        fewer = min(len(one.steps), len(other.steps))
        notes.append(
            f"{len(one.steps)} steps against {len(other.steps)}: the first {fewer} are compared"
        )
    digests: list[Any] = [trace.metadata.get("draft") for trace in (one, other)]
    if None not in digests and digests[0] != digests[1]:
        notes.append("the traces are of two drafts: weights or configs differ")
    for name, mine, theirs in (("first", one, other), ("second", other, one)):
        alone = {stage for step in mine.steps for stage in step.stages} - {
            stage for step in theirs.steps for stage in step.stages
        }
        if alone:
            ordered = [stage for stage in stage_names(layers_of(alone)) if stage in alone]
            notes.append(f"in the {name} trace alone: {', '.join(ordered)}")
    return notes


def _span(step: Step) -> str:
    if not len(step.columns):
        return "none"
    return f"{step.columns.min()} to {step.columns.max()} of {len(np.unique(step.rows))} texts"

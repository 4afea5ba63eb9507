"""One diagnosis of a subject with a fault, held against the truth."""

import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from benchmarks.planted import Subject, is_truth
from eagle3_jax.diagnose.cases import Case, Scores, said_ids, score
from eagle3_jax.diagnose.draft import Searched, search_readings
from eagle3_jax.diagnose.readings import Option, Reading, change, state_axis
from eagle3_jax.diagnose.sampling import chance
from eagle3_jax.diagnose.search import GAIN, LEAST, accepted_difference
from eagle3_jax.diagnose.slots import examine_slots
from eagle3_jax.diagnose.verdict import Verdict, judge, told_reading

STEPS = 3
DOCUMENTS = 64  # that the command looks at


class Outcome(NamedTuple):
    """What became of one case.

    Attributes:
        draft: its name.
        family: row of the table.
        name: of the fault, or of the healthy case.
        outcome: named, tie, missed; healthy: quiet, false alarm; where nothing is right: quiet,
            claims.
        verdict: its kind.
        reading: in words.
        ties: the others, in words.
        undecided: of the verdict.
        accepted: draft tokens per round as configured, under the truth and the verdict's reading.
        first: share of first tokens that are right, likewise.
        compared: readings that were tried.
        seconds: of search and verdict, by the clock.
        cpu_seconds: of all cores of this process, whatever else the machine does.
    """

    draft: str
    family: str
    name: str
    outcome: str
    verdict: str
    reading: str
    ties: tuple[str, ...]
    undecided: dict[str, tuple[str, ...]]
    accepted: tuple[float, float, float]
    first: tuple[float, float, float]
    compared: int
    seconds: float
    cpu_seconds: float


class Diagnosed(NamedTuple):
    """A verdict, what it was made of, and how long that took."""

    verdict: Verdict
    searched: Searched
    seconds: float
    cpu_seconds: float


def diagnose(subject: Subject) -> Diagnosed:
    """What the command does, on what is in memory."""
    begin, began = time.perf_counter(), time.process_time()
    documents = subject.documents[:DOCUMENTS]
    slots = examine_slots(documents, head=subject.head)
    searched = search_readings(
        subject.config,
        subject.configured(),
        documents,
        slots=subject.slots,
        places=subject.places,
        table=subject.table,
        steps=STEPS,
        known=subject.known,
    )
    verdict = judge(searched.found, chance=chance(documents), suspicion=slots.suspicion)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - began
    return Diagnosed(verdict, searched, seconds, cpu)


def outcome_of(subject: Subject, family: str, name: str, known: bool = True) -> Outcome:
    """Diagnose a subject, and hold the verdict against the truth."""
    done = diagnose(subject)
    verdict, tried = done.verdict, done.searched
    data = tried.data.fresh or tried.data.second

    def scored(case: Case) -> Scores:
        return score(tried.setting, case, data)

    def true(reading: Reading) -> bool:
        case = change(tried.case, reading)
        return is_truth(subject, case, tried.setting.ropes, learned=_learns(reading))

    plain, best = scored(tried.case), scored(change(tried.case, verdict.reading))
    truth = subject.truth._replace(rope=tried.case.rope)
    if subject.rope in tried.setting.ropes:
        truth = truth._replace(rope=jnp.int32(tried.setting.ropes.index(subject.rope)))
    right = scored(truth)
    truth_as_told = truth
    if _learns(verdict.reading):  # from a few texts: it lacks what is rare
        ids = change(tried.case, verdict.reading).target_ids
        truth_as_told = truth._replace(target_ids=ids)

    def same(reading: Reading) -> bool:
        """Says the same token at every column and step that decides."""
        return all(
            np.array_equal(
                said_ids(tried.setting, change(tried.case, reading), features),
                said_ids(tried.setting, truth_as_told, features),
            )
            for features in data
        )

    if family == "healthy":
        outcome = "quiet" if verdict.kind == "wired as configured" else "false alarm"
    elif not known:
        outcome = "claims" if verdict.reading else "quiet"
    elif verdict.kind not in ("another reading", "several readings tie", "wired as configured"):
        outcome = "missed"
    elif verdict.reading and (true(verdict.reading) or same(verdict.reading)):
        outcome = "named"
    elif _equal(scored(truth_as_told), best) and (
        any(true(reading) for reading in _declared(subject, done))
        or any(same(reading) for reading in _declared(subject, done))
    ):
        outcome = "tie"
    else:
        outcome = "missed"
    return Outcome(
        subject.name,
        family,
        name,
        outcome,
        verdict.kind,
        told_reading(verdict.reading),
        tuple(told_reading(reading) for reading in verdict.ties),
        verdict.undecided,
        (plain.accepted(), right.accepted(), best.accepted()),
        (plain.first(), right.first(), best.first()),
        tried.found.compared,
        done.seconds,
        done.cpu_seconds,
    )


def _learns(reading: Reading) -> bool:
    """Whether its draft vocabulary is learned from the text."""
    return any("learned" in option.label for option in reading)


def _declared(subject: Subject, done: Diagnosed) -> Iterator[Reading]:
    """Readings that a verdict says may be right as well: ties, and up to two undecided choices."""
    verdict = done.verdict
    fed = next((o.slots for o in verdict.reading if o.slots is not None), subject.slots)
    axes = (state_axis(fed, len(subject.places), subject.places), *done.searched.axes)
    open_: list[Option] = [
        option
        for axis in axes
        for option in axis.options
        if option.label in verdict.undecided.get(axis.name, ())
    ]
    for reading in (verdict.reading, *verdict.ties):
        for count in range(3):
            for more in itertools.combinations(open_, count):
                axes_of_more = {option.axis for option in more}
                if len(axes_of_more) == count:
                    kept = tuple(o for o in reading if o.axis not in axes_of_more)
                    yield (*kept, *more)


def _equal(one: Scores, other: Scores) -> bool:
    """Whether two readings truly tie: within the margin, or not surely apart."""
    difference, low, high = accepted_difference(one, other)
    margin = max(LEAST, GAIN * other.accepted())
    return abs(difference) <= margin or low <= 0 <= high

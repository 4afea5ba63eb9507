from dataclasses import replace

import jax
import pytest

from benchmarks.diagnose import small_subject
from benchmarks.faults import faults_of
from benchmarks.judging import outcome_of
from benchmarks.planted import is_truth, joined
from benchmarks.small_drafts import RECIPES, train

NAMED = (
    "pairing: states stored one token late",
    "d2t: offsets taken for ids",
    "halves swapped: rows of the kernels",
)


@pytest.fixture(scope="module")
def subject():
    recipe = replace(RECIPES[0], updates=100)
    with jax.default_matmul_precision("highest"):
        return small_subject(recipe, draft=train(recipe, documents=400))


@pytest.fixture(scope="module")
def faults(subject):
    return {f"{fault.family}: {fault.name}": fault for fault in faults_of(subject)}


def test_a_draft_without_a_fault_is_wired_as_configured(subject):
    found = outcome_of(subject, "healthy", "as it is")
    assert (found.outcome, found.verdict) == ("quiet", "wired as configured")


@pytest.mark.parametrize("name", NAMED)
def test_a_planted_fault_is_named(subject, faults, name):
    fault = faults[name]
    found = outcome_of(fault.plant(subject), fault.family, fault.name)
    assert found.outcome == "named", found


def test_two_faults_are_named_together(subject, faults):
    both = joined(faults["pairing: states stored one token early"], faults["states: reversed"])
    found = outcome_of(both.plant(subject), both.family, both.name)
    assert found.outcome == "named", found
    assert "pairing" in found.reading
    assert "states" in found.reading


def test_what_no_score_can_show_is_declared_undecided(subject, faults):
    fault = faults["embedding scaled: by the root of its width"]
    found = outcome_of(fault.plant(subject), fault.family, fault.name)
    assert (found.outcome, found.reading) == ("tie", "as configured")
    assert "embedding" in found.undecided


def test_every_fault_parts_the_configured_case_from_the_truth(subject, faults):
    rope = (subject.config.rope,)
    assert is_truth(subject, subject.configured(), rope)
    for name, fault in faults.items():
        if not fault.known:
            continue
        planted = fault.plant(subject)
        assert not is_truth(planted, planted.configured(), (planted.config.rope,)), name

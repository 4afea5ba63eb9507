"""Our draft against each framework's own: 65 positions near and far, padding, bfloat16, a window.

`padded` is a batch of 14, 9 and 5 columns with noise behind them, laid out as the framework does
it: `benchmarks/witness/run_*.py` say how.
"""

from collections.abc import Callable

import pytest

from eagle3_jax.config import DraftConfig
from tests.witness.cases import CONDITIONS
from tests.witness.conditions import (
    ALLOWED_APART,
    Rounding,
    compare_rounding,
    forward_with_a_window_that_stays,
)
from tests.witness.frameworks import (
    Run,
    describe,
    describe_specforge,
    forward,
    largest_difference,
    only_when_asked,
    require_order_one,
    tolerance,
)

pytestmark = pytest.mark.witness


def describe_modelopt(run: Run) -> DraftConfig:
    """Our words for a run of ModelOpt's, which norms the hidden half twice."""
    return describe(run, double_norm=True)


WORDS: dict[str, Callable[[Run], DraftConfig]] = {
    "speculators": describe,
    "specforge": describe_specforge,
    "sglang": describe,
    "modelopt": describe_modelopt,
}
IN_CI = ("speculators", "specforge")
EACH = [
    pytest.param(
        framework,
        name,
        marks=() if framework in IN_CI else only_when_asked,
        id=f"{framework}-{name}",
    )
    for framework, cases in CONDITIONS.items()
    for name in (*cases, *(["bfloat16"] if framework == "modelopt" else []))
]


@pytest.fixture
def run(request: pytest.FixtureRequest, framework: str, name: str) -> Run:
    """One case after another."""
    return request.getfixturevalue(f"{framework}_runs")[name]


def cases(kept: Callable[[str], bool]) -> pytest.MarkDecorator:
    """The cases of all frameworks whose names are kept."""
    return pytest.mark.parametrize(
        ("framework", "name"), [case for case in EACH if kept(str(case.values[1]))]
    )


def is_half(name: str) -> bool:
    return name.startswith("bfloat16")


@cases(lambda name: True)
def test_outputs_are_of_order_one(run):
    if run.knobs["lengths"] is None:  # else there are zeros behind the texts
        require_order_one(run)


@cases(lambda name: not is_half(name) and name != "window")
def test_steps(framework, run):
    assert largest_difference(run, forward(run, WORDS[framework](run))) < tolerance(run)


@cases(is_half)
def test_bfloat16_is_as_far_from_us_as_its_own_rounding(framework, run):
    found = compare_rounding(run, WORDS[framework](run))
    assert found.is_rounding, found
    assert found.apart < ALLOWED_APART, found


@pytest.mark.parametrize("framework", IN_CI)
def test_bfloat16_tells_a_norm_too_many_from_rounding(framework, request):
    run = request.getfixturevalue(f"{framework}_runs")["bfloat16"]
    assert compare_rounding(run, describe(run, double_norm=True)).apart > 20


@pytest.mark.parametrize("found", [Rounding(0.01, 0.0, 1.0), Rounding(1e-7, 1.0, 1.0)], ids=str)
def test_float32_is_not_taken_for_bfloat16(found):
    assert not found.is_rounding


def test_speculators_window_does_not_move_on_with_the_steps(speculators_runs):
    run = speculators_runs["window"]
    config = describe(run)
    assert largest_difference(run, forward_with_a_window_that_stays(run, config)) < tolerance(run)
    assert largest_difference(run, forward(run, config)) > 0.1
    first = forward(run, config).logits[0] - run.outputs["logits.0"]
    assert abs(first[:, :-1]).max() < 1e-4  # step 0 has the window that a server has

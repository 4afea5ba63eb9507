"""Our draft against ModelOpt's own trainer, three steps of training-time test, float32."""

import pytest

from tests.witness.cases import MODELOPT
from tests.witness.frameworks import (
    Run,
    describe,
    forward,
    largest_difference,
    only_when_asked,
    require_order_one,
    tolerance,
)

pytestmark = [pytest.mark.witness, only_when_asked]

IN_FLOAT32 = [name for name in MODELOPT if name != "bfloat16"]


@pytest.fixture(params=IN_FLOAT32, ids=str)
def run(request: pytest.FixtureRequest, modelopt_runs: dict[str, Run]) -> Run:
    """One case after another."""
    return modelopt_runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    ours = forward(run, describe(run, double_norm=True))
    assert largest_difference(run, ours) < tolerance(run)


def test_the_second_norm_is_in_the_numbers(modelopt_runs):
    run = modelopt_runs["plain"]
    assert largest_difference(run, forward(run, describe(run))) > 0.1

"""Our draft against speculators' own, three steps of training-time test, float32."""

import pytest

from tests.witness.cases import SPECULATORS
from tests.witness.frameworks import (
    Run,
    describe,
    forward,
    largest_difference,
    require_order_one,
    tolerance,
)

pytestmark = pytest.mark.witness


@pytest.fixture(params=SPECULATORS, ids=str)
def run(request: pytest.FixtureRequest, speculators_runs: dict[str, Run]) -> Run:
    """One case after another."""
    return speculators_runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    assert largest_difference(run, forward(run, describe(run))) < tolerance(run)

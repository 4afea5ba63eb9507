"""Our draft against SpecForge's own trainer, three steps of training-time test, float32.

`norm_output` says something else to SpecForge 0.2.0 than to servers: false is a head that reads the
layer's output without the final norm. What it feeds back is that output in either case.
"""

import pytest

from tests.witness.cases import SPECFORGE
from tests.witness.frameworks import (
    Run,
    describe,
    describe_specforge,
    forward,
    largest_difference,
    require_order_one,
    tolerance,
)

pytestmark = pytest.mark.witness


@pytest.fixture(params=SPECFORGE, ids=str)
def run(request: pytest.FixtureRequest, specforge_runs: dict[str, Run]) -> Run:
    """One case after another."""
    return specforge_runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    assert largest_difference(run, forward(run, describe_specforge(run))) < tolerance(run)


def test_a_server_reads_norm_output_otherwise(specforge_runs):
    run = specforge_runs["norm_output"]
    assert largest_difference(run, forward(run, describe(run, norm_output=True))) > 0.1

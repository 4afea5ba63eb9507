"""Our draft against SGLang's own model and loader, three draft steps, float32."""

import numpy as np
import pytest

from tests.witness.cases import SGLANG
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


@pytest.fixture(params=SGLANG, ids=str)
def run(request: pytest.FixtureRequest, sglang_runs: dict[str, Run]) -> Run:
    """One case after another."""
    return sglang_runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    assert largest_difference(run, forward(run, describe(run))) < tolerance(run)


@pytest.mark.parametrize("name", ["norm_output", "fc_norm+output", "before_fc+output"])
def test_norm_output_changes_only_what_is_fed_back(sglang_runs, name):
    run = sglang_runs[name]
    ours = forward(run, describe(run, norm_output=False))
    whole = run.inputs["tokens"].shape[1] - 2
    np.testing.assert_allclose(
        ours.logits[0][:, :whole], run.outputs["logits.0"][:, :whole], atol=tolerance(run)
    )
    assert largest_difference(run, ours) > 0.1

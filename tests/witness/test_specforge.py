"""Our draft against SpecForge's own trainer, three steps of training-time test, float32.

`norm_output` says something else to SpecForge 0.2.0 than to servers: false is a head that reads the
layer's output without the final norm. What it feeds back is that output in either case.
"""

from typing import Any

import pytest

from tests.witness.conftest import LINEAR, LLAMA3, YARN
from tests.witness.frameworks import (
    Run,
    describe,
    forward,
    largest_difference,
    require_order_one,
    run_cases,
    tolerance,
)

pytestmark = pytest.mark.witness

ABSENT: dict[str, Any] = {"fc_norm": None, "norm_output": None, "aux_layer_ids": None}
# SpecForge takes no position past the length of its row: a far one needs a long text.
LONG: dict[str, Any] = {"columns": 400, "max_position_embeddings": 512}

# Nor does it have defaults for these four.
FULL_YARN = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7}

DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "no_final_norm": {"norm_output": False},
    "no_final_norm+fc_norm": {"norm_output": False, "fc_norm": True},
    "wide_target": {"target_hidden_size": 48},
    "wide_target+fc_norm": {"target_hidden_size": 48, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": FULL_YARN},
    "long": LONG,
    "long+llama3": LONG | {"rope_parameters": LLAMA3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every case, run by SpecForge."""
    cases = {name: ABSENT | changes for name, changes in DRAFTS.items()}
    return run_cases("specforge", cases, tmp_path_factory.mktemp("specforge"))


@pytest.fixture(params=DRAFTS, ids=str)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One case after another."""
    return runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    config = describe(run, norm_output=False, final_norm=run.knobs["norm_output"] is not False)
    assert largest_difference(run, forward(run, config)) < tolerance(run)


def test_a_server_reads_norm_output_otherwise(runs):
    run = runs["norm_output"]
    assert largest_difference(run, forward(run, describe(run, norm_output=True))) > 0.1

"""Our draft against ModelOpt's own trainer, three steps of training-time test, float32."""

from typing import Any

import pytest

from tests.witness.conftest import LINEAR, LLAMA3, YARN
from tests.witness.frameworks import (
    Run,
    describe,
    forward,
    largest_difference,
    only_when_asked,
    require_order_one,
    run_cases,
    tolerance,
)

pytestmark = [pytest.mark.witness, only_when_asked]

SETTINGS: dict[str, Any] = {
    "aux_layer_ids": [1, 3, 5],
    "has_lm_head": True,
    "dtype": "float32",
    "export_rope_scaling": {},  # its default is refused beside another scaling
}
FAR: dict[str, Any] = {"first_position": 20000, "max_position_embeddings": 32768}

DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "aux1": {"num_aux": 1, "aux_layer_ids": [4]},
    "aux4": {"num_aux": 4, "aux_layer_ids": [0, 2, 3, 5]},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "head_of_the_target": {"draft_vocab_size": 96, "has_lm_head": False},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "attention_bias": {"attention_bias": True},
    "mlp_bias+two_layers": {"mlp_bias": True, "num_layers": 2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "far": FAR,
    "far+llama3": FAR | {"rope_parameters": LLAMA3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every case, run by ModelOpt."""
    cases = {name: SETTINGS | changes for name, changes in DRAFTS.items()}
    return run_cases("modelopt", cases, tmp_path_factory.mktemp("modelopt"))


@pytest.fixture(params=DRAFTS, ids=str)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One case after another."""
    return runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    ours = forward(run, describe(run, double_norm=True))
    assert largest_difference(run, ours) < tolerance(run)


def test_the_second_norm_is_in_the_numbers(runs):
    run = runs["plain"]
    assert largest_difference(run, forward(run, describe(run))) > 0.1

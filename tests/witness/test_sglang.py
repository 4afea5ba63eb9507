"""Our draft against SGLang's own model and loader, three draft steps, float32."""

from typing import Any

import numpy as np
import pytest

from tests.witness.conftest import LINEAR, LLAMA3, YARN
from tests.witness.frameworks import (
    Run,
    Tensors,
    describe,
    forward,
    largest_difference,
    only_when_asked,
    require_order_one,
    run_cases,
    tolerance,
)

pytestmark = [pytest.mark.witness, only_when_asked]

FAR: dict[str, Any] = {"first_position": 20000, "max_position_embeddings": 32768}

DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_output": {"norm_output": True},
    "fc_norm+output": {"fc_norm": True, "norm_output": True},
    "before_fc+output": {"norm_before_fc": True, "norm_output": True},
    "fc_bias": {"fc_bias": True},
    "aux2": {"num_aux": 2},
    "aux4+fc_norm": {"num_aux": 4, "fc_norm": True},
    "wide_target": {"target_hidden_size": 48, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "three_layers+output": {"num_layers": 3, "norm_output": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "far": FAR,
    "far+llama3": FAR | {"rope_parameters": LLAMA3},
}


def _named_for_sglang(_: dict[str, Any], weights: Tensors) -> Tensors:
    """Later layers norm their input by `hidden_norm`."""
    return {
        name
        if name.startswith("layers.0.")
        else name.replace("input_layernorm", "hidden_norm"): tensor
        for name, tensor in weights.items()
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every case, run by SGLang."""
    folder = tmp_path_factory.mktemp("sglang")
    return run_cases("sglang", DRAFTS, folder, adapt=_named_for_sglang)


@pytest.fixture(params=DRAFTS, ids=str)
def run(request: pytest.FixtureRequest, runs: dict[str, Run]) -> Run:
    """One case after another."""
    return runs[request.param]


def test_outputs_are_of_order_one(run):
    require_order_one(run)


def test_steps(run):
    assert largest_difference(run, forward(run, describe(run))) < tolerance(run)


@pytest.mark.parametrize("name", ["norm_output", "fc_norm+output", "before_fc+output"])
def test_norm_output_changes_only_what_is_fed_back(runs, name):
    run = runs[name]
    ours = forward(run, describe(run, norm_output=False))
    whole = run.inputs["tokens"].shape[1] - 2
    np.testing.assert_allclose(
        ours.logits[0][:, :whole], run.outputs["logits.0"][:, :whole], atol=tolerance(run)
    )
    assert largest_difference(run, ours) > 0.1

"""Our draft against speculators' own, three steps of training-time test, float32.

speculators pairs `tokens[t]`, which is x[t+1], with the features of x[t], and embeds `tokens[t+k]`
at step k. `unroll` is given the text itself and makes that shift: x[T] is missing from its T
columns, so the last k+1 columns of step k have run out of text and are not compared.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from converters.names import canonical_name
from converters.shapes import expected_shapes
from converters.ropes import read_rope
from converters.trees import to_tree
from eagle3_jax.config import AttentionConfig, DraftConfig
from eagle3_jax.model import Drafter, head_kernel
from eagle3_jax.ops import project
from eagle3_jax.rollout import unroll

pytestmark = pytest.mark.witness

TOLERANCE = 1e-5  # of numbers of order 1
# At position 20,000 one rounding in a RoPE frequency turns a head by up to 2e-3; one wrong position
# would turn it by 1.
TOLERANCE_AFAR = 5e-3
STEPS = 3
OUTSIDE_THE_TREE = ("embed_tokens.weight", "d2t", "t2d")


def _config(case) -> DraftConfig:
    knobs = case.knobs
    return DraftConfig(
        hidden_size=knobs["hidden_size"],
        target_hidden_size=knobs["hidden_size"],
        intermediate_size=knobs["intermediate_size"],
        vocab_size=knobs["vocab_size"],
        draft_vocab_size=knobs["draft_vocab_size"],
        attention=AttentionConfig(
            num_heads=knobs["num_heads"],
            num_kv_heads=knobs["num_kv_heads"],
            head_dim=knobs["head_dim"],
            bias=knobs["attention_bias"],
            output_bias=knobs["attention_bias"],
            qk_norm=knobs["model_type"] == "qwen3",
        ),
        rope=read_rope(knobs, case.name),
        num_aux=knobs["num_aux"],
        num_layers=knobs["num_layers"],
        rms_norm_eps=knobs["rms_norm_eps"],
        norm_before_residual=knobs["norm_before_residual"],
        norm_before_fc=knobs["norm_before_fc"],
        fc_norm=knobs["fc_norm"],
        norm_output=knobs["norm_output"],
        mlp_bias=knobs["mlp_bias"],
    )


def _params(case) -> dict[str, Any]:
    own = {name: tensor for name, tensor in case.weights.items() if name not in OUTSIDE_THE_TREE}
    return jax.tree.map(jnp.asarray, to_tree(own))


def test_outputs_are_of_order_one(draft_case):
    for name, tensor in draft_case.outputs.items():
        assert 0.2 < np.sqrt(np.mean(np.square(tensor))) < 5, name


def test_names_and_shapes_are_those_that_speculators_saves(draft_case):
    saved = load_file(draft_case.checkpoint / "model.safetensors")
    found = {
        canonical_name(name): list(tensor.shape)
        for name, tensor in saved.items()
        if name not in OUTSIDE_THE_TREE
    }
    assert found == expected_shapes(_config(draft_case))


def test_fuse(draft_case):
    fused: Any = Drafter(_config(draft_case)).apply(
        {"params": _params(draft_case)}, jnp.asarray(draft_case.inputs["aux"]), method="fuse"
    )
    np.testing.assert_allclose(
        np.asarray(fused), draft_case.outputs["fc"], rtol=TOLERANCE, atol=TOLERANCE
    )


def test_steps(draft_case):
    config, params = _config(draft_case), _params(draft_case)
    kernel = head_kernel(config, params)
    tokens = draft_case.inputs["tokens"]
    text = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)  # x[0] is unread
    run = partial(
        unroll,
        config,
        steps=STEPS,
        read=lambda _, step: (step.state, project(step.head_input, kernel)),
    )
    states, logits = jax.jit(run)(
        params,
        jnp.asarray(draft_case.inputs["aux"]),
        jnp.asarray(draft_case.weights["embed_tokens.weight"])[text],
        positions=jnp.asarray(draft_case.inputs["positions"]),
    )
    slack = TOLERANCE_AFAR if draft_case.knobs["first_position"] else TOLERANCE
    for k in range(STEPS):
        whole = tokens.shape[1] - 1 - k
        for name, ours in (("state", states[k]), ("logits", logits[k])):
            np.testing.assert_allclose(
                np.asarray(ours[:, :whole]),
                draft_case.outputs[f"{name}.{k}"][:, :whole],
                rtol=TOLERANCE,
                atol=slack,
                err_msg=f"{name} of step {k}",
            )

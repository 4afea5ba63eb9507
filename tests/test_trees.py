"""Checkpoint names and parameter trees: the rule, its inverse, and what does not fit."""

import re

import jax
import ml_dtypes
import numpy as np
import pytest

from converters.shapes import expected_shapes
from converters.trees import require_shapes, to_tensors, to_tree
from eagle3_jax.config import AttentionConfig
from eagle3_jax.errors import InputError
from tests.conftest import random_params, tiny_config

FLOATS = [ml_dtypes.bfloat16, np.float16, np.float32]
WIDE = AttentionConfig(
    num_heads=4, num_kv_heads=2, head_dim=4, bias=True, output_bias=True, qk_norm=True
)


def array(*shape, dtype=np.float32):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


def test_names_become_folders_and_matrices_kernels():
    tensors = {
        "fc.weight": array(2, 6),
        "fc.bias": array(2),
        "fc_norm.0.weight": array(2),
        "norm.weight": array(2),
        "layers.10.self_attn.q_proj.weight": array(4, 2),
        "layers.10.self_attn.q_norm.weight": array(3),
    }
    tree = to_tree(tensors)
    assert jax.tree.map(np.shape, tree, is_leaf=lambda node: isinstance(node, np.ndarray)) == {
        "fc": {"kernel": (6, 2), "bias": (2,)},
        "fc_norm_0": {"scale": (2,)},
        "norm": {"scale": (2,)},
        "layers_10": {"self_attn": {"q_proj": {"kernel": (2, 4)}, "q_norm": {"scale": (3,)}}},
    }
    np.testing.assert_array_equal(tree["fc"]["kernel"], tensors["fc.weight"].T)


@pytest.mark.parametrize("dtype", FLOATS)
def test_trees_give_their_tensors_back(dtype):
    tensors = {
        "layers.0.mlp.up_proj.weight": array(3, 2, dtype=dtype),
        "layers.0.mlp.up_proj.bias": array(3, dtype=dtype),
        "fc_norm.2.weight": array(2, dtype=dtype),
        "lm_head.weight": array(5, 2, dtype=dtype),
    }
    back = to_tensors(to_tree(tensors))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].dtype == dtype
        assert back[name].tobytes() == tensor.tobytes()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_layers": 2, "norm_before_fc": True, "fc_bias": True, "mlp_bias": True},
        {"fc_norm": True, "attention": WIDE, "num_aux": 2, "target_hidden_size": 12},
        {"num_aux": 0, "final_norm": False, "head": "tied", "draft_vocab_size": 32},
    ],
)
def test_expected_shapes_are_those_of_the_model(changes):
    config = tiny_config(**changes)
    found = {name: list(t.shape) for name, t in to_tensors(random_params(config)).items()}
    assert found == expected_shapes(config)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("weight", (2,), "tensor weight: expected a name that ends in .weight or .bias"),
        ("fc.scale", (2,), "tensor fc.scale: expected a name that ends in .weight or .bias"),
        ("fc.weight", (2, 2, 2), "tensor fc.weight: found shape [2, 2, 2], expected 1 or 2 axes"),
        ("fc.weight", (), "tensor fc.weight: found shape [], expected 1 or 2 axes"),
    ],
)
def test_names_and_shapes_that_have_no_place(name, shape, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        to_tree({name: np.zeros(shape)})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "here: found no tensor fc.weight, expected one of [2, 6]"),
        (
            {"fc.weight": array(6, 2)},
            "here: tensor model.fc.weight (fc.weight) has shape [6, 2], expected [2, 6]",
        ),
        (
            {"fc.weight": array(2, 6), "gc.weight": array(1)},
            "here: tensor gc.weight of [1] is unknown, expected none of that name",
        ),
        (
            {"fc.weight": array(2, 6, dtype=np.int8)},
            "here: tensor model.fc.weight (fc.weight) has type int8, expected bfloat16, float16, "
            "float32 (quantised weights are not read)",
        ),
        (
            {"fc.weight": array(2, 6, dtype=np.float64)},
            "here: tensor model.fc.weight (fc.weight) has type float64, expected bfloat16, "
            "float16, float32 (quantised weights are not read)",
        ),
    ],
)
def test_tensors_that_do_not_fit(tensors, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        require_shapes(tensors, {"fc.weight": [2, 6]}, "here", {"fc.weight": "model.fc.weight"})

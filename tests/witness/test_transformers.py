"""Our RoPE, norm, layer and targets against transformers' own, float32."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.ropes import read_rope
from converters.targets import load_target
from converters.trees import to_tree
from eagle3_jax.config import AttentionConfig, TargetConfig
from eagle3_jax.generate import greedy
from eagle3_jax.layers import DecoderLayer
from eagle3_jax.ops import rms_norm
from eagle3_jax.rope import rotation
from eagle3_jax.structs import View
from eagle3_jax.target import Target, logits

pytestmark = pytest.mark.witness

TOLERANCE = 1e-5  # of numbers of order 1


def _same(ours: Any, theirs: np.ndarray, name: str = "") -> None:
    assert np.shape(ours) == theirs.shape, name
    # A residual stream grows from layer to layer, and its rounding with it: the slack is of the
    # array's own size where that is above 1.
    size = max(1.0, float(np.sqrt(np.mean(np.square(theirs)))))
    np.testing.assert_allclose(
        np.asarray(ours), theirs, rtol=TOLERANCE, atol=TOLERANCE * size, err_msg=name
    )


def _case(run, kind, name):
    return next(case for case in run.job[kind] if case["name"] == name)


def test_rope(transformers_run, rope_name):
    case = _case(transformers_run, "ropes", rope_name)
    theirs = transformers_run.outputs[rope_name]
    config = read_rope(case, rope_name)
    half = theirs["cos.0"].shape[-1] // 2
    cos, sin = (theirs[name][0, 1, :half] for name in ("cos.0", "sin.0"))  # at position 1
    frequencies, magnitude = np.arctan2(sin, cos), np.hypot(sin, cos)
    for index, positions in enumerate(case["positions"]):
        ours = rotation(config, case["head_dim"], jnp.asarray([positions]))
        assert ours.cos.shape[-1] == half
        # One rounding in a frequency and one in its product with the position turn a head by that
        # share of the angle: nothing near 0, some 1e-3 at 20,000, where one position is 1.
        angles = np.asarray(positions)[:, None] * frequencies
        slack = TOLERANCE + magnitude * angles * 2 * np.finfo(np.float32).eps
        for name, mine in (("cos", ours.cos), ("sin", ours.sin)):
            their = theirs[f"{name}.{index}"]
            np.testing.assert_array_equal(their[..., :half], their[..., half:])
            apart = np.abs(np.asarray(mine[0]) - their[0, :, :half])
            assert (apart <= slack).all(), f"{name} {index} is {apart.max()} apart"


def test_norm(transformers_run, norm_name):
    case = _case(transformers_run, "norms", norm_name)
    given = transformers_run.inputs[norm_name]
    x, weight = jnp.asarray(given["x"]), jnp.asarray(given["weight"])
    ours = rms_norm(x, weight, case["eps"])
    theirs = transformers_run.outputs[norm_name]["y"]
    assert ours.dtype == theirs.dtype
    if theirs.dtype == np.float32:
        _same(ours, theirs)
    else:  # rounded to 8 bits, both are the same number
        np.testing.assert_array_equal(np.asarray(ours), theirs)


def test_layer(transformers_run, layer_name):
    raw = _case(transformers_run, "layers", layer_name)["config"]
    given = dict(transformers_run.inputs[layer_name])
    x, positions = jnp.asarray(given.pop("x")), jnp.asarray(given.pop("positions"))
    heads, bias = raw["num_attention_heads"], raw.get("attention_bias", False)
    config = TargetConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        vocab_size=raw["vocab_size"],
        num_layers=1,
        attention=AttentionConfig(
            num_heads=heads,
            num_kv_heads=raw["num_key_value_heads"],
            head_dim=raw.get("head_dim", raw["hidden_size"] // heads),
            bias=bias,
            output_bias=bias,
        ),
        rope=read_rope(raw, layer_name),
        rms_norm_eps=1e-6,
        mlp_bias=raw.get("mlp_bias", False),
    )
    ours: Any
    ours, _ = DecoderLayer(config).apply(
        {"params": jax.tree.map(jnp.asarray, to_tree(given))},
        x,
        rotation(config.rope, config.attention.head_dim, positions),
        None,
        View(),
    )
    _same(ours, transformers_run.outputs[layer_name]["y"])


@pytest.mark.parametrize("saved", ["", ".sharded"])
def test_target(transformers_run, model_name, saved):
    folder = transformers_run.folder / f"{model_name}{saved}"
    assert len(list(folder.glob("*.safetensors"))) > 1 or not saved
    config, params = load_target(folder)
    params = jax.tree.map(jnp.asarray, params)
    boundaries = tuple(range(config.num_layers + 1))
    ours: Any = Target(config).apply(
        {"params": params},
        jnp.asarray(transformers_run.inputs[model_name]["ids"]),
        boundaries,
    )
    theirs = transformers_run.outputs[model_name]
    for b in boundaries:
        _same(ours.states[:, :, b], theirs[f"boundary.{b}"], f"boundary {b}")
    _same(ours.pre_norm, theirs[f"boundary.{boundaries[-1]}"])
    _same(ours.post_norm, theirs["post_norm"])
    _same(logits(config, params, ours.post_norm), theirs["logits"])


def test_greedy_answers(transformers_run, model_name):
    config, params = load_target(transformers_run.folder / model_name)
    ids = jnp.asarray(transformers_run.inputs[model_name]["ids"], jnp.int32)
    theirs = transformers_run.outputs[model_name]["generated"]
    captured = greedy(
        config,
        jax.tree.map(jnp.asarray, params),
        ids,
        jnp.full(ids.shape[0], ids.shape[1], jnp.int32),
        max_new=theirs.shape[1],
        end_ids=(),
    )
    assert captured.live.all()
    np.testing.assert_array_equal(captured.ids.T, theirs)

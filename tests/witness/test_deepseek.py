"""Our multi-head latent attention against transformers' DeepseekV3Attention, float32."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.ropes import read_rope
from converters.trees import to_tree
from eagle3_jax.config import LatentAttentionConfig
from eagle3_jax.layers import LatentAttention
from eagle3_jax.rope import rotation, score_factor
from eagle3_jax.structs import View
from tests.witness.cases import COLUMNS, YARN
from tests.witness.frameworks import run_script

pytestmark = pytest.mark.witness

TOLERANCE = 1e-5  # of the output's own size
FIRST = (0, 20000)  # positions at which the two rows of a batch begin

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 7,
    "rms_norm_eps": 1e-6,  # the class has this one for its latents, whatever is said here
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}


def _yarn(**changes: float) -> dict[str, Any]:
    return {"rope_parameters": YARN | {"factor": 40.0} | changes}


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_query_latent": {"q_lora_rank": None},
    "wide_values": {"v_head_dim": 24},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    "yarn": _yarn(mscale=1.0, mscale_all_dim=1.0),
    "yarn_two_mscales": _yarn(mscale=0.7, mscale_all_dim=1.3),
    "yarn_without_mscale": _yarn(),
    "yarn_all_dim_alone": _yarn(mscale_all_dim=0.8),
    "yarn_factor_1": _yarn(factor=1.0, mscale=1.0, mscale_all_dim=1.0),
    "yarn_no_query_latent": {"q_lora_rank": None, **_yarn(mscale=1.0, mscale_all_dim=1.0)},
}


class Run(NamedTuple):
    """Knobs, tensors and transformers' answer of each case."""

    knobs: dict[str, dict[str, Any]]
    inputs: dict[str, dict[str, np.ndarray]]
    outputs: dict[str, dict[str, np.ndarray]]


def _weights(knobs: dict[str, Any], source: np.random.Generator) -> dict[str, np.ndarray]:
    heads, wide = knobs["num_attention_heads"], knobs["hidden_size"]
    nope, rope, value = (knobs[f"{x}_head_dim"] for x in ("qk_nope", "qk_rope", "v"))
    asked, kept = knobs["q_lora_rank"], knobs["kv_lora_rank"]
    matrices = {
        "kv_a_proj_with_mqa": (kept + rope, wide),
        "kv_b_proj": (heads * (nope + value), kept),
        "o_proj": (wide, heads * value),
    }
    vectors = {"kv_a_layernorm": kept}
    if asked is None:
        matrices["q_proj"] = (heads * (nope + rope), wide)
    else:
        matrices |= {"q_a_proj": (asked, wide), "q_b_proj": (heads * (nope + rope), asked)}
        vectors["q_a_layernorm"] = asked
    drawn: dict[str, np.ndarray] = {}
    for name, shape in matrices.items():
        gain = 2.0 if name in ("q_proj", "q_b_proj") else 1.0  # attention that is not flat
        drawn[f"{name}.weight"] = gain * source.normal(size=shape) / shape[1] ** 0.5
    for name, size in vectors.items():
        drawn[f"{name}.weight"] = 1 + 0.3 * source.normal(size=size)
    return {name: tensor.astype(np.float32) for name, tensor in drawn.items()}


@pytest.fixture(scope="module")
def deepseek_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every case, run by transformers."""
    folder = tmp_path_factory.mktemp("deepseek")
    source = np.random.default_rng(5)
    knobs = {name: SMALL | changes for name, changes in CASES.items()}
    inputs: dict[str, dict[str, np.ndarray]] = {
        name: {
            "x": source.normal(size=(2, COLUMNS, case["hidden_size"])).astype(np.float32),
            "positions": np.asarray(FIRST)[:, None] + np.arange(COLUMNS),
            **_weights(case, source),
        }
        for name, case in knobs.items()
    }
    for name, tensors in inputs.items():
        save_file(tensors, folder / f"{name}.inputs.safetensors")
    job = [{"name": name, "config": case} for name, case in knobs.items()]
    run_script("speculators", "run_deepseek.py", folder, job)
    return Run(
        knobs, inputs, {name: load_file(folder / f"{name}.out.safetensors") for name in knobs}
    )


@pytest.mark.parametrize("name", CASES)
def test_latent_attention(deepseek_run, name):
    knobs, theirs = deepseek_run.knobs[name], deepseek_run.outputs[name]
    weights = dict(deepseek_run.inputs[name])
    x, positions = jnp.asarray(weights.pop("x")), jnp.asarray(weights.pop("positions"))
    heads = LatentAttentionConfig(
        knobs["num_attention_heads"],
        knobs["q_lora_rank"],
        knobs["kv_lora_rank"],
        knobs["qk_nope_head_dim"],
        knobs["qk_rope_head_dim"],
        knobs["v_head_dim"],
    )
    rope = read_rope(knobs, name)
    assert heads.head_dim**-0.5 * score_factor(rope) == pytest.approx(float(theirs["scale"]))
    ours: Any
    ours, _ = LatentAttention(heads, rope, knobs["hidden_size"], knobs["rms_norm_eps"]).apply(
        {"params": jax.tree.map(jnp.asarray, to_tree(weights))},
        x,
        rotation(rope, heads.rope_dim, positions),
        None,
        View(),
    )
    for row, first in enumerate(FIRST):
        size = np.sqrt(np.mean(np.square(theirs["y"][row])))
        apart = np.abs(np.asarray(ours[row]) - theirs["y"][row]).max() / size
        assert apart <= TOLERANCE, f"from position {first} on, {apart} apart"

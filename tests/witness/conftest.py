"""Jobs for the witnesses: written once a session, run in one process each, read back as NumPy.

Norm weights and biases are always random: at ones and zeros a norm that is applied twice, or a
swapped pair, is invisible. Weights are scaled so that activations are of order 1, which is what
the tolerances are meant for.
"""

import json
import subprocess
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.witness_env import python_of

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "witness"
COLUMNS = 14
STEPS = 3

LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _longrope(rotated: int) -> dict[str, Any]:
    half = rotated // 2
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0 + 0.05 * i for i in range(half)],
        "long_factor": [2.0 + 0.5 * i for i in range(half)],
        "original_max_position_embeddings": 32,
    }


PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,  # not hidden_size / num_heads
    "intermediate_size": 48,
    "vocab_size": 96,
    "draft_vocab_size": 40,
    "num_aux": 3,
    "num_layers": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "attention": "eager",
    "first_position": 0,
}

DRAFTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "residual+before_fc": {"norm_before_residual": True, "norm_before_fc": True},
    "residual+fc_norm": {"norm_before_residual": True, "fc_norm": True},
    "residual+output": {"norm_before_residual": True, "norm_output": True},
    "before_fc+output": {"norm_before_fc": True, "norm_output": True},
    "fc_norm+output": {"fc_norm": True, "norm_output": True},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D/N": {"head_dim": 8},
    "sdpa": {"attention": "sdpa"},
    "aux1": {"num_aux": 1},
    "aux4+fc_norm": {"num_aux": 4, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "two_layers+residual+output": {
        "num_layers": 2,
        "norm_before_residual": True,
        "norm_output": True,
    },
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "qk_norm": {"model_type": "qwen3"},
    "qk_norm+bias+two_layers": {"model_type": "qwen3", "attention_bias": True, "num_layers": 2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    # These two change within the run: their limit is crossed between step 0 and step 2.
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        "max_position_embeddings": COLUMNS,
    },
    "longrope": {
        "rope_parameters": _longrope(12) | {"original_max_position_embeddings": COLUMNS},
    },
    "far": {"first_position": 20000, "max_position_embeddings": 32768},
    "far+llama3": {
        "first_position": 20000,
        "max_position_embeddings": 32768,
        "rope_parameters": LLAMA3,
    },
}


class DraftCase(NamedTuple):
    """A draft as given to speculators, and what speculators made of it."""

    name: str
    knobs: dict[str, Any]
    weights: dict[str, np.ndarray]
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    checkpoint: Path


def _file_name(name: str) -> str:
    return name.replace("/", "_")


def _draw_weights(knobs: dict[str, Any], source: np.random.Generator) -> dict[str, np.ndarray]:
    width, ffn = knobs["hidden_size"], knobs["intermediate_size"]
    queries = knobs["num_heads"] * knobs["head_dim"]
    keys = knobs["num_kv_heads"] * knobs["head_dim"]
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = gain * source.normal(size=(rows, columns)) / columns**0.5

    def vector(name: str, size: int) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * source.normal(size=size)

    def bias(name: str, size: int) -> None:
        weights[f"{name}.bias"] = 0.3 * source.normal(size=size)

    matrix("fc", width, knobs["num_aux"] * width)
    if knobs["norm_before_fc"]:
        vector("input_norm", knobs["num_aux"] * width)
    if knobs["fc_norm"]:
        for a in range(knobs["num_aux"]):
            vector(f"fc_norm.{a}", width)
    for i in range(knobs["num_layers"]):
        at, read = f"layers.{i}", 2 * width if i == 0 else width
        matrix(f"{at}.self_attn.q_proj", queries, read, gain=2.0)  # attention that is not flat
        matrix(f"{at}.self_attn.k_proj", keys, read)
        matrix(f"{at}.self_attn.v_proj", keys, read)
        matrix(f"{at}.self_attn.o_proj", width, queries)
        matrix(f"{at}.mlp.gate_proj", ffn, width)
        matrix(f"{at}.mlp.up_proj", ffn, width)
        matrix(f"{at}.mlp.down_proj", width, ffn)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            vector(f"{at}.{norm}", width)
        if i == 0:
            vector(f"{at}.hidden_norm", width)
        if knobs["model_type"] == "qwen3":
            vector(f"{at}.self_attn.q_norm", knobs["head_dim"])
            vector(f"{at}.self_attn.k_norm", knobs["head_dim"])
        if knobs["attention_bias"]:
            for part, size in (("q", queries), ("k", keys), ("v", keys), ("o", width)):
                bias(f"{at}.self_attn.{part}_proj", size)
        if knobs["mlp_bias"]:
            for part, size in (("gate", ffn), ("up", ffn), ("down", width)):
                bias(f"{at}.mlp.{part}_proj", size)
    vector("norm", width)
    matrix("lm_head", knobs["draft_vocab_size"], width)
    weights["embed_tokens.weight"] = source.normal(size=(knobs["vocab_size"], width))
    drawn: dict[str, np.ndarray] = {
        name: value.astype(np.float32) for name, value in weights.items()
    }
    if knobs["draft_vocab_size"] < knobs["vocab_size"]:
        used = np.sort(source.choice(knobs["vocab_size"], knobs["draft_vocab_size"], replace=False))
        drawn["d2t"] = used - np.arange(used.size)
        drawn["t2d"] = np.isin(np.arange(knobs["vocab_size"]), used)
    return drawn


def _run(script: str, job: Path) -> None:
    """Run a script of a witness; its last words become the failure's message."""
    done = subprocess.run(
        [str(python_of("speculators")), "-I", str(SCRIPTS / script), str(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}", pytrace=False)


@pytest.fixture(scope="session")
def draft_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DraftCase]:
    """Every draft case, run by speculators."""
    job = tmp_path_factory.mktemp("speculators")
    listed, given = [], {}
    for name, overrides in DRAFTS.items():
        knobs = PLAIN | overrides
        source = np.random.default_rng(zlib.crc32(name.encode()))
        weights = _draw_weights(knobs, source)
        first = knobs["first_position"]
        aux_width = knobs["num_aux"] * knobs["hidden_size"]
        inputs: dict[str, np.ndarray] = {
            "tokens": source.integers(knobs["vocab_size"], size=(1, COLUMNS)),
            "aux": source.normal(size=(1, COLUMNS, aux_width)).astype(np.float32),
            "positions": np.arange(first, first + COLUMNS)[None],
        }
        file = _file_name(name)
        save_file(weights, job / f"{file}.weights.safetensors")
        save_file(inputs, job / f"{file}.inputs.safetensors")
        listed.append(knobs | {"name": file, "steps": STEPS})
        given[name] = (knobs, weights, inputs)
    (job / "job.json").write_text(json.dumps(listed))
    _run("run_speculators.py", job)
    return {
        name: DraftCase(
            name,
            *parts,
            outputs=load_file(job / f"{_file_name(name)}.out.safetensors"),
            checkpoint=job / f"{_file_name(name)}.checkpoint",
        )
        for name, parts in given.items()
    }


@pytest.fixture(params=DRAFTS, ids=str)
def draft_case(request: pytest.FixtureRequest, draft_cases: dict[str, DraftCase]) -> DraftCase:
    """One draft case after another."""
    return draft_cases[request.param]


NEAR, FAR = list(range(65)), list(range(20000, 20065))
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "linear": {"rope_parameters": LINEAR},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "llama3": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192}},
    "yarn": {"rope_parameters": YARN},
    "yarn_mscale": {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    "yarn_attention_factor": {"rope_parameters": YARN | {"attention_factor": 1.3}},
    "yarn_betas": {
        "rope_parameters": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
    },
    "longrope": {"rope_parameters": _longrope(16)},
    "longrope_attention_factor": {
        "rope_parameters": _longrope(16) | {"attention_factor": 1.2, "factor": 8.0}
    },
    "partial_default": {
        "rotary": "phi",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.25,
        },
    },
    "partial_linear": {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}},
    "partial_yarn": {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
    "partial_longrope": {"rope_parameters": _longrope(8) | {"partial_rotary_factor": 0.5}},
}

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_biased": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama_mqa": ("llama", {"num_key_value_heads": 1, "rope_parameters": YARN}),
    "qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2_window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3_biased": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 5}),
}
NEW_TOKENS = 12

LAYERS: dict[str, dict[str, Any]] = {
    "layer": {},
    "layer_head_dim": {"head_dim": 12, "num_key_value_heads": 1, "rope_parameters": LLAMA3},
    "layer_biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
}
NORMS: dict[str, tuple[type, float]] = {
    "norm_float32": (np.float32, 1e-5),
    "norm_large_eps": (np.float32, 1e-1),
    "norm_bfloat16": (ml_dtypes.bfloat16, 1e-6),
}


class TransformersRun(NamedTuple):
    """What transformers was asked and what it answered, by case name."""

    folder: Path
    job: dict[str, list[dict[str, Any]]]
    inputs: dict[str, dict[str, np.ndarray]]
    outputs: dict[str, dict[str, np.ndarray]]


def _layer_tensors(config: dict[str, Any], source: np.random.Generator) -> dict[str, np.ndarray]:
    knobs = PLAIN | {
        "num_heads": config["num_attention_heads"],
        "num_kv_heads": config["num_key_value_heads"],
        "head_dim": config.get("head_dim", config["hidden_size"] // config["num_attention_heads"]),
        "attention_bias": config.get("attention_bias", False),
        "mlp_bias": config.get("mlp_bias", False),
        "num_layers": 2,  # the second is a plain layer
    }
    prefix = "layers.1."
    return {
        name.removeprefix(prefix): value
        for name, value in _draw_weights(knobs, source).items()
        if name.startswith(prefix)
    }


@pytest.fixture(scope="session")
def transformers_run(tmp_path_factory: pytest.TempPathFactory) -> TransformersRun:
    """Every rope, model, layer and norm case, run by transformers."""
    folder = tmp_path_factory.mktemp("transformers")
    source = np.random.default_rng(2)
    inputs: dict[str, dict[str, np.ndarray]] = {}
    common = {"rotary": "llama", "head_dim": 16, "max_position_embeddings": 128}
    job: dict[str, list[dict[str, Any]]] = {
        "ropes": [
            common | case | {"name": name, "positions": [NEAR, FAR]} for name, case in ROPES.items()
        ],
        "models": [
            {"name": name, "family": family, "config": SMALL | extra, "new_tokens": NEW_TOKENS}
            for name, (family, extra) in MODELS.items()
        ],
        "layers": [{"name": name, "config": SMALL | extra} for name, extra in LAYERS.items()],
        "norms": [{"name": name, "eps": eps} for name, (_, eps) in NORMS.items()],
    }
    for case in job["models"]:
        inputs[case["name"]] = {"ids": source.integers(SMALL["vocab_size"], size=(2, COLUMNS))}
    for case in job["layers"]:
        first = np.asarray([[0], [40]])
        inputs[case["name"]] = {
            "x": source.normal(size=(2, COLUMNS, SMALL["hidden_size"])).astype(np.float32),
            "positions": first + np.arange(COLUMNS),
            **_layer_tensors(case["config"], source),
        }
    for name, (dtype, _) in NORMS.items():
        inputs[name] = {
            "x": source.normal(size=(2, 5, 32)).astype(dtype),
            "weight": (1 + 0.3 * source.normal(size=32)).astype(dtype),
        }
    for name, tensors in inputs.items():
        save_file(tensors, folder / f"{name}.inputs.safetensors")
    (folder / "job.json").write_text(json.dumps(job))
    _run("run_transformers.py", folder)
    outputs = {
        case["name"]: load_file(folder / f"{case['name']}.out.safetensors")
        for cases in job.values()
        for case in cases
    }
    return TransformersRun(folder, job, inputs, outputs)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test that asks for one kind of case each of its names."""
    kinds = {
        "rope": list(ROPES),
        "model": list(MODELS),
        "layer": list(LAYERS),
        "norm": list(NORMS),
    }
    for kind, names in kinds.items():
        if f"{kind}_name" in metafunc.fixturenames:
            metafunc.parametrize(f"{kind}_name", names)

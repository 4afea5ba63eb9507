"""Jobs for the witnesses: run once a session, in one process each, read back as NumPy."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.witness.cases import (
    COLUMNS,
    FAR_POSITIONS,
    LAYERS,
    MODELS,
    NEAR,
    NEW_TOKENS,
    NORMS,
    PLAIN,
    ROPES,
    SMALL,
)
from tests.witness.drawing import draw_weights
from tests.witness.frameworks import Run, run_cases, run_script


@pytest.fixture(scope="session")
def speculators_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every draft of speculators, run and saved by it."""
    return run_cases("speculators", tmp_path_factory.mktemp("speculators"))


@pytest.fixture(scope="session")
def specforge_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every draft of SpecForge, run, saved and exported by it."""
    return run_cases("specforge", tmp_path_factory.mktemp("specforge"))


@pytest.fixture(scope="session")
def sglang_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every draft of SGLang, read and run by it."""
    return run_cases("sglang", tmp_path_factory.mktemp("sglang"))


@pytest.fixture(scope="session")
def modelopt_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Every draft of ModelOpt, run and exported by it."""
    return run_cases("modelopt", tmp_path_factory.mktemp("modelopt"))


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
        for name, value in draw_weights(knobs, source).items()
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
            common | case | {"name": name, "positions": [NEAR, FAR_POSITIONS]}
            for name, case in ROPES.items()
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
    run_script("speculators", "run_transformers.py", folder, job)
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

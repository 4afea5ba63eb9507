"""Random drafts for a framework's runner, and our own forward of the same drafts.

The runners of `benchmarks/witness` pair `tokens[t]`, which is x[t+1], with the features of x[t],
and embed `tokens[t+k]` at step k. `unroll` is given the text itself and makes that shift: x[T] is
missing from its T columns, so the last k+1 columns of step k have run out of text and are not
compared.
"""

import json
import os
import subprocess
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.witness_env import WitnessError, python_of
from converters.ropes import read_rope
from converters.trees import to_tree
from eagle3_jax.config import AttentionConfig, DraftConfig
from eagle3_jax.model import Drafter, head_kernel
from eagle3_jax.ops import project
from eagle3_jax.rollout import unroll
from tests.witness.conftest import COLUMNS, PLAIN, SCRIPTS, STEPS, _draw_weights

TOLERANCE = 1e-5  # of numbers of order 1
# At position 20,000 one rounding in a RoPE frequency turns a head by up to 2e-3; one wrong position
# would turn it by 1.
TOLERANCE_AFAR = 5e-3
OUTSIDE_THE_TREE = ("embed_tokens.weight", "d2t", "t2d")
KNOBS = PLAIN | {"target_hidden_size": 32, "fc_bias": False, "columns": COLUMNS}

Tensors = dict[str, np.ndarray]

only_when_asked = pytest.mark.skipif(
    os.environ.get("EAGLE3_JAX_WITNESSES") != "all",
    reason="EAGLE3_JAX_WITNESSES is not set to all: CI builds the smaller witnesses only",
)


class Run(NamedTuple):
    """A draft as given to a framework, and what the framework made of it.

    Attributes:
        folder: where its files lie; their names begin with the case's.
    """

    name: str
    knobs: dict[str, Any]
    weights: Tensors
    inputs: Tensors
    outputs: Tensors
    folder: Path


class Steps(NamedTuple):
    """Our forward: `fc [1,T,D]`, `states [K,1,T,D]`, `logits [K,1,T,W]`."""

    fc: np.ndarray
    states: np.ndarray
    logits: np.ndarray


def run_script(framework: str, script: str, folder: Path, job: list[dict[str, Any]]) -> None:
    """Run a framework's script on a job directory; its last words become the failure's message.

    The test is skipped when the framework's environment cannot be built.
    """
    try:
        python = python_of(framework)
    except WitnessError as error:
        pytest.skip(f"the environment of {framework} cannot be built: {error}")
    (folder / "job.json").write_text(json.dumps(job))
    done = subprocess.run(
        [str(python), "-I", str(SCRIPTS / script), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"{script} ended with {done.returncode}: {done.stderr[-2000:]}", pytrace=False)


def run_cases(
    framework: str,
    cases: Mapping[str, Mapping[str, Any]],
    folder: Path,
    adapt: Callable[[dict[str, Any], Tensors], Tensors] = lambda knobs, weights: weights,
) -> dict[str, Run]:
    """Draw a draft for each case and have the framework's runner write and run them all.

    Args:
        framework: name of the environment and of the script.
        cases: knobs of each case where they differ from `KNOBS`.
        folder: an empty directory, which becomes the job's.
        adapt: makes the weights that the runner is given of those that were drawn.

    Returns:
        Each case with what the framework said.
    """
    job, given = [], {}
    for name, changes in cases.items():
        knobs = KNOBS | dict(changes)
        source = np.random.default_rng(zlib.crc32(name.encode()))
        weights = _draw(knobs, source)
        first, columns = knobs["first_position"], knobs["columns"]
        width = knobs["num_aux"] * knobs["target_hidden_size"]
        inputs: Tensors = {
            "tokens": source.integers(knobs["vocab_size"], size=(1, columns)),
            "aux": source.normal(size=(1, columns, width)).astype(np.float32),
            "positions": np.arange(first, first + columns)[None],
        }
        save_file(adapt(knobs, weights), folder / f"{name}.weights.safetensors")
        save_file(inputs, folder / f"{name}.inputs.safetensors")
        job.append(knobs | {"name": name, "mode": "write", "steps": STEPS})
        given[name] = (knobs, weights, inputs)
    run_script(framework, f"run_{framework}.py", folder, job)
    return {
        name: Run(name, *parts, load_file(folder / f"{name}.out.safetensors"), folder)
        for name, parts in given.items()
    }


def _draw(knobs: dict[str, Any], source: np.random.Generator) -> Tensors:
    weights = _draw_weights(knobs, source)
    target = knobs["target_hidden_size"]
    if target != knobs["hidden_size"]:
        read = knobs["num_aux"] * target
        wide = source.normal(size=(knobs["hidden_size"], read)) / read**0.5
        weights["fc.weight"] = wide.astype(np.float32)
        for name in weights:
            if name.startswith(("fc_norm.", "input_norm.")):
                size = target if name.startswith("fc_norm.") else read
                weights[name] = (1 + 0.3 * source.normal(size=size)).astype(np.float32)
    if knobs["fc_bias"]:
        weights["fc.bias"] = (0.3 * source.normal(size=knobs["hidden_size"])).astype(np.float32)
    return weights


def describe(run: Run, **changes: Any) -> DraftConfig:
    """The run's knobs in our words.

    Args:
        run: a draft.
        changes: fields by which the framework's reading of them differs from ours.
    """
    knobs = run.knobs
    settings: dict[str, Any] = {
        "hidden_size": knobs["hidden_size"],
        "target_hidden_size": knobs["target_hidden_size"],
        "intermediate_size": knobs["intermediate_size"],
        "vocab_size": knobs["vocab_size"],
        "draft_vocab_size": knobs["draft_vocab_size"],
        "attention": AttentionConfig(
            num_heads=knobs["num_heads"],
            num_kv_heads=knobs["num_kv_heads"],
            head_dim=knobs["head_dim"],
            bias=knobs["attention_bias"],
            output_bias=knobs["attention_bias"],
        ),
        "rope": read_rope(knobs, run.name),
        "num_aux": knobs["num_aux"],
        "num_layers": knobs["num_layers"],
        "rms_norm_eps": knobs["rms_norm_eps"],
        "norm_before_fc": bool(knobs["norm_before_fc"]),
        "fc_norm": bool(knobs["fc_norm"]),
        "norm_output": bool(knobs["norm_output"]),
        "fc_bias": knobs["fc_bias"],
        "mlp_bias": knobs["mlp_bias"],
    }
    return DraftConfig(**(settings | changes))


def forward(run: Run, config: DraftConfig) -> Steps:
    """Our forward of a run's draft on its inputs."""
    outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
    own = {name: tensor for name, tensor in run.weights.items() if name not in outside}
    params = jax.tree.map(jnp.asarray, to_tree(own))
    kernel = head_kernel(config, params)
    aux, tokens = jnp.asarray(run.inputs["aux"]), run.inputs["tokens"]
    text = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)  # x[0] is unread
    fused: Any = Drafter(config).apply({"params": params}, aux, method="fuse")
    compute = partial(
        unroll,
        config,
        steps=STEPS,
        read=lambda _, step: (step.state, project(step.head_input, kernel)),
    )
    states, logits = jax.jit(compute)(
        params,
        aux,
        jnp.asarray(run.weights["embed_tokens.weight"])[text],
        positions=jnp.asarray(run.inputs["positions"]),
    )
    return Steps(np.asarray(fused), np.asarray(states), np.asarray(logits))


def largest_difference(run: Run, ours: Steps) -> float:
    """Between our fused features, states and logits of all steps and the framework's.

    Only where there is text; relative to 1 + the size of the framework's number.
    """
    pairs = [(ours.fc, run.outputs["fc"])]
    for k in range(STEPS):
        whole = run.inputs["tokens"].shape[1] - 1 - k
        for name, tensor in (("state", ours.states[k]), ("logits", ours.logits[k])):
            pairs.append((tensor[:, :whole], run.outputs[f"{name}.{k}"][:, :whole]))
    return max(float(np.max(np.abs(a - b) / (1 + np.abs(b)))) for a, b in pairs)


def tolerance(run: Run) -> float:
    """What `largest_difference` may be."""
    return TOLERANCE_AFAR if run.knobs["first_position"] else TOLERANCE


def require_order_one(run: Run) -> None:
    """Fail when what a framework said is not of the size that tolerances are meant for."""
    for name, tensor in run.outputs.items():
        assert 0.2 < np.sqrt(np.mean(np.square(tensor))) < 5, name

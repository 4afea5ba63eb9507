"""A framework's runner on random drafts, and our own forward of the same drafts.

The runners of `benchmarks/witness` pair `tokens[t]`, which is x[t+1], with the features of x[t],
and embed `tokens[t+k]` at step k. `unroll` is given the text itself and makes that shift: x[T] is
missing from its T columns, so the last k+1 columns of step k have run out of text and are not
compared.
"""

import json
import os
import subprocess
import zlib
from collections.abc import Callable
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
from tests.witness.cases import CONDITIONS, DRAFTS, NEAR, STEPS, knobs_of
from tests.witness.drawing import Tensors, draw_inputs, draw_weights, round_to_bfloat16

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "witness"
TOLERANCE = 1e-5  # of numbers of order 1
# At position 20,000 one rounding in a RoPE frequency turns a head by up to 2e-3; one wrong position
# would turn it by 1.
TOLERANCE_AFAR = 5e-3
OUTSIDE_THE_TREE = ("embed_tokens.weight", "d2t", "t2d")

only_when_asked = pytest.mark.skipif(
    os.environ.get("EAGLE3_JAX_WITNESSES") != "all",
    reason="EAGLE3_JAX_WITNESSES is not set to all: CI builds the smaller witnesses only",
)


class Run(NamedTuple):
    """A draft as given to a framework, and what the framework made of it.

    Attributes:
        folder: where its files lie; their names begin with the case's.
        exact: of a draft in bfloat16, what the framework made of the same numbers in float32.
    """

    name: str
    knobs: dict[str, Any]
    weights: Tensors
    inputs: Tensors
    outputs: Tensors
    folder: Path
    exact: Tensors | None = None

    def file(self, kind: str) -> Path:
        """One of its files or directories: NAME.KIND."""
        return self.folder / f"{self.name}.{kind}"


class Steps(NamedTuple):
    """Our forward: `fc [B,T,D]`, `states [K,B,T,D]`, `logits [K,B,T,W]`."""

    fc: np.ndarray
    states: np.ndarray
    logits: np.ndarray


def run_script(framework: str, script: str, folder: Path, job: Any) -> None:
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


def run_cases(framework: str, folder: Path) -> dict[str, Run]:
    """Draw a draft for each of a framework's cases and have its runner write and run them all.

    Args:
        framework: name of the environment and of the script.
        folder: an empty directory, which becomes the job's.

    Returns:
        Each case with what the framework said.
    """
    job, given = [], {}
    for name in DRAFTS[framework] | CONDITIONS[framework]:
        knobs = knobs_of(framework, name)
        source = np.random.default_rng(zlib.crc32(name.encode()))
        weights, inputs = draw_weights(knobs, source), draw_inputs(knobs, source)
        mode = "write" if name in DRAFTS[framework] else "run"
        case = knobs | {"name": name, "mode": mode, "steps": STEPS}
        twins = [case]
        if knobs["dtype"] == "bfloat16":
            weights, inputs = round_to_bfloat16(weights), round_to_bfloat16(inputs)
            twins.append(case | {"name": f"{name}.exact", "mode": "run", "dtype": "float32"})
        for twin in twins:
            files = folder / twin["name"]
            save_file(_ADAPTERS.get(framework, dict)(weights), f"{files}.weights.safetensors")
            save_file(inputs, f"{files}.inputs.safetensors")
        job += twins
        given[name] = (knobs, weights, inputs)
    run_script(framework, f"run_{framework}.py", folder, job)

    def heard(name: str) -> Tensors:
        return load_file(folder / f"{name}.out.safetensors")

    return {
        name: Run(
            name,
            *parts,
            heard(name),
            folder,
            heard(f"{name}.exact") if parts[0]["dtype"] == "bfloat16" else None,
        )
        for name, parts in given.items()
    }


def _named_for_sglang(weights: Tensors) -> Tensors:
    """Layers after the first norm their input by `hidden_norm`."""
    return {
        name
        if name.startswith("layers.0.")
        else name.replace("input_layernorm", "hidden_norm"): tensor
        for name, tensor in weights.items()
    }


_ADAPTERS: dict[str, Callable[[Tensors], Tensors]] = {"sglang": _named_for_sglang}


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
            qk_norm=knobs["model_type"] == "qwen3",
            sliding_window=knobs["sliding_window"],
        ),
        "rope": read_rope(knobs, run.name),
        "num_aux": knobs["num_aux"],
        "num_layers": knobs["num_layers"],
        "rms_norm_eps": knobs["rms_norm_eps"],
        "norm_before_residual": knobs["norm_before_residual"],
        "norm_before_fc": bool(knobs["norm_before_fc"]),
        "fc_norm": bool(knobs["fc_norm"]),
        "norm_output": bool(knobs["norm_output"]),
        "fc_bias": knobs["fc_bias"],
        "mlp_bias": knobs["mlp_bias"],
    }
    return DraftConfig(**(settings | changes))


def describe_specforge(run: Run) -> DraftConfig:
    """The same for a run of SpecForge 0.2.0, whose `norm_output` is whether the head has a norm."""
    return describe(run, norm_output=False, final_norm=run.knobs["norm_output"] is not False)


def forward(run: Run, config: DraftConfig, dtype: str = "float32") -> Steps:
    """Our forward of a run's draft, as it was drawn, on its inputs; computed once."""
    key = (run.folder, run.name, config, dtype)
    if key not in _forwards:
        _forwards[key] = compute(run, config, dtype)
    return _forwards[key]


_forwards: dict[tuple[Path, str, DraftConfig, str], Steps] = {}


def compute(run: Run, config: DraftConfig, dtype: str = "float32") -> Steps:
    """The same, computed anew."""
    outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
    own = {name: tensor for name, tensor in run.weights.items() if name not in outside}
    table = run.weights["embed_tokens.weight"]
    return take_steps(config, to_tree(own), table, run.inputs, dtype)


def take_steps(
    config: DraftConfig,
    tree: dict[str, Any],
    table: np.ndarray,
    inputs: Tensors,
    dtype: str = "float32",
) -> Steps:
    """Our forward of any draft.

    Operation by operation where the text is short, so that drafts of the same shapes share what is
    compiled; else as one.
    """
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)
    tokens = inputs["tokens"]
    text = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)  # x[0] is unread
    valid = inputs.get("valid")
    given = (
        params,
        jnp.asarray(inputs["aux"], dtype),
        jnp.asarray(table, dtype)[text],
        jnp.asarray(inputs["positions"]),
        None if valid is None else jnp.asarray(valid),
    )
    with jax.disable_jit(tokens.shape[1] <= len(NEAR)):
        parts = _take_steps(config, *given)
    return Steps(*(np.asarray(part, np.float32) for part in parts))


@partial(jax.jit, static_argnums=0)
def _take_steps(
    config: DraftConfig,
    params: dict[str, Any],
    aux: jax.Array,
    embeddings: jax.Array,
    positions: jax.Array,
    valid: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    kernel = head_kernel(config, params)
    fused: Any = Drafter(config).apply({"params": params}, aux, method="fuse")
    states, logits = unroll(
        config,
        params,
        aux,
        embeddings,
        positions=positions,
        valid=valid,
        steps=STEPS,
        read=lambda _, step: (step.state, project(step.head_input, kernel)),
    )
    return fused, states, logits


def largest_difference(run: Run, ours: Steps) -> float:
    """Between our fused features, states and logits of all steps and the framework's."""
    return differ(ours, run.outputs, run.inputs.get("valid"))


def differ(ours: Steps, theirs: Tensors, valid: np.ndarray | None = None) -> float:
    """The same of anybody's outputs.

    Only where there is text; relative to 1 + the size of the framework's number.
    """
    pairs = pair(ours, theirs, valid)
    return max(float(np.max(np.abs(a - b) / (1 + np.abs(b)))) for a, b in pairs)


def pair(
    ours: Steps, theirs: Tensors, valid: np.ndarray | None = None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Our numbers and theirs, `[n,width]`, of the columns that have a text to read."""
    seen = np.ones(ours.fc.shape[:2], bool) if valid is None else valid
    pairs = [(ours.fc[seen], theirs["fc"][seen])]
    lengths = seen.sum(axis=1, keepdims=True)
    for k in range(STEPS):
        whole = np.arange(seen.shape[1]) < lengths - 1 - k
        for name, tensor in (("state", ours.states[k]), ("logits", ours.logits[k])):
            pairs.append((tensor[whole], theirs[f"{name}.{k}"][whole]))
    return pairs


def tolerance(run: Run) -> float:
    """What `largest_difference` may be."""
    return TOLERANCE_AFAR if run.knobs["first_position"] else TOLERANCE


def require_order_one(run: Run) -> None:
    """Fail when what a framework said is not of the size that tolerances are meant for."""
    for name, tensor in run.outputs.items():
        assert 0.2 < np.sqrt(np.mean(np.square(tensor))) < 5, name

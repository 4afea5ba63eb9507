"""Random drafts for a framework's runner, and our own forward of the same drafts.

Norm weights and biases are always random: at ones and zeros a norm that is applied twice, or a
swapped pair, is invisible. Weights are scaled so that activations are of order 1, which is what
the tolerances are meant for.

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
from tests.witness.cases import COLUMNS, DRAFTS, STEPS, knobs_of

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "witness"
TOLERANCE = 1e-5  # of numbers of order 1
# At position 20,000 one rounding in a RoPE frequency turns a head by up to 2e-3; one wrong position
# would turn it by 1.
TOLERANCE_AFAR = 5e-3
OUTSIDE_THE_TREE = ("embed_tokens.weight", "d2t", "t2d")

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

    def file(self, kind: str) -> Path:
        """One of its files or directories: NAME.KIND."""
        return self.folder / f"{self.name}.{kind}"


class Steps(NamedTuple):
    """Our forward: `fc [1,T,D]`, `states [K,1,T,D]`, `logits [K,1,T,W]`."""

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
    for name in DRAFTS[framework]:
        knobs = knobs_of(framework, name)
        source = np.random.default_rng(zlib.crc32(name.encode()))
        weights = draw_weights(knobs, source)
        first, columns = knobs["first_position"], knobs["columns"]
        width = knobs["num_aux"] * knobs["target_hidden_size"]
        inputs: Tensors = {
            "tokens": source.integers(knobs["vocab_size"], size=(1, columns)),
            "aux": source.normal(size=(1, columns, width)).astype(np.float32),
            "positions": np.arange(first, first + columns)[None],
        }
        save_file(_ADAPTERS.get(framework, dict)(weights), folder / f"{name}.weights.safetensors")
        save_file(inputs, folder / f"{name}.inputs.safetensors")
        job.append(knobs | {"name": name, "mode": "write", "steps": STEPS})
        given[name] = (knobs, weights, inputs)
    run_script(framework, f"run_{framework}.py", folder, job)
    return {
        name: Run(name, *parts, load_file(folder / f"{name}.out.safetensors"), folder)
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


def draw_weights(knobs: dict[str, Any], source: np.random.Generator) -> Tensors:
    """Random weights of a draft, under canonical names."""
    width, ffn = knobs["hidden_size"], knobs["intermediate_size"]
    target = knobs["target_hidden_size"]
    queries = knobs["num_heads"] * knobs["head_dim"]
    keys = knobs["num_kv_heads"] * knobs["head_dim"]
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = gain * source.normal(size=(rows, columns)) / columns**0.5

    def vector(name: str, size: int) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * source.normal(size=size)

    def bias(name: str, size: int) -> None:
        weights[f"{name}.bias"] = 0.3 * source.normal(size=size)

    matrix("fc", width, knobs["num_aux"] * target)
    if knobs["fc_bias"]:
        bias("fc", width)
    if knobs["norm_before_fc"]:
        vector("input_norm", knobs["num_aux"] * target)
    if knobs["fc_norm"]:
        for a in range(knobs["num_aux"]):
            vector(f"fc_norm.{a}", target)
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
    drawn: Tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    if knobs["draft_vocab_size"] < knobs["vocab_size"]:
        used = np.sort(source.choice(knobs["vocab_size"], knobs["draft_vocab_size"], replace=False))
        drawn["d2t"] = used - np.arange(used.size)
        drawn["t2d"] = np.isin(np.arange(knobs["vocab_size"]), used)
    return drawn


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


def forward(run: Run, config: DraftConfig) -> Steps:
    """Our forward of a run's draft, as it was drawn, on its inputs; computed once."""
    key = (run.folder, run.name, config)
    if key not in _forwards:
        outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
        own = {name: tensor for name, tensor in run.weights.items() if name not in outside}
        table = run.weights["embed_tokens.weight"]
        _forwards[key] = take_steps(config, to_tree(own), table, run.inputs)
    return _forwards[key]


_forwards: dict[tuple[Path, str, DraftConfig], Steps] = {}


def take_steps(
    config: DraftConfig, tree: dict[str, Any], table: np.ndarray, inputs: Tensors
) -> Steps:
    """Our forward of any draft, in float32.

    Operation by operation where the text has the usual length, so that drafts of the same shapes
    share what is compiled; else as one.
    """
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)
    tokens = inputs["tokens"]
    text = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)  # x[0] is unread
    given = (
        params,
        jnp.asarray(inputs["aux"]),
        jnp.asarray(table, jnp.float32)[text],
        jnp.asarray(inputs["positions"]),
    )
    with jax.disable_jit(tokens.shape[1] == COLUMNS):
        return Steps(*map(np.asarray, _take_steps(config, *given)))


@partial(jax.jit, static_argnums=0)
def _take_steps(
    config: DraftConfig,
    params: dict[str, Any],
    aux: jax.Array,
    embeddings: jax.Array,
    positions: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    kernel = head_kernel(config, params)
    fused: Any = Drafter(config).apply({"params": params}, aux, method="fuse")
    states, logits = unroll(
        config,
        params,
        aux,
        embeddings,
        positions=positions,
        steps=STEPS,
        read=lambda _, step: (step.state, project(step.head_input, kernel)),
    )
    return fused, states, logits


def largest_difference(run: Run, ours: Steps) -> float:
    """Between our fused features, states and logits of all steps and the framework's."""
    return differ(ours, run.outputs)


def differ(ours: Steps, theirs: Tensors) -> float:
    """The same of anybody's outputs.

    Only where there is text; relative to 1 + the size of the framework's number.
    """
    pairs = [(ours.fc, theirs["fc"])]
    for k in range(STEPS):
        whole = ours.fc.shape[1] - 1 - k
        for name, tensor in (("state", ours.states[k]), ("logits", ours.logits[k])):
            pairs.append((tensor[:, :whole], theirs[f"{name}.{k}"][:, :whole]))
    return max(float(np.max(np.abs(a - b) / (1 + np.abs(b)))) for a, b in pairs)


def tolerance(run: Run) -> float:
    """What `largest_difference` may be."""
    return TOLERANCE_AFAR if run.knobs["first_position"] else TOLERANCE


def require_order_one(run: Run) -> None:
    """Fail when what a framework said is not of the size that tolerances are meant for."""
    for name, tensor in run.outputs.items():
        assert 0.2 < np.sqrt(np.mean(np.square(tensor))) < 5, name

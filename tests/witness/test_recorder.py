"""The recorder for PyTorch on other people's modules, and our trace of the same drafts."""

import json
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.traces import read_trace
from converters.trees import to_tree
from eagle3_jax.compare import compare
from eagle3_jax.config import DraftConfig
from eagle3_jax.model import head_kernel
from eagle3_jax.rollout import Own
from eagle3_jax.stages import ONCE, Step, Trace, stage_names
from eagle3_jax.trace import Traced, trace
from tests.witness.cases import COLUMNS, PLAIN, SGLANG, SPECFORGE, SPECULATORS, STEPS
from tests.witness.drawing import draw_weights
from tests.witness.frameworks import (
    OUTSIDE_THE_TREE,
    TOLERANCE,
    TOLERANCE_AFAR,
    Run,
    describe,
    describe_specforge,
    only_when_asked,
    run_script,
)

pytestmark = pytest.mark.witness

INSIDE = {"q_rotated", "k_rotated", "scores_max", "scores_lse"}  # a function, where nobody hears
NO_TRACE_OF = {  # stages that the maps do not reach
    "speculators": INSIDE | {"state"},
    "specforge": INSIDE | {"aux"},
    "sglang": {"scores_max", "scores_lse"},
}


def ours(run: Run, config: DraftConfig) -> Trace:
    """Our trace of a run's draft on its inputs."""
    outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
    own = {name: tensor for name, tensor in run.weights.items() if name not in outside}
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), to_tree(own))
    tokens, positions = run.inputs["tokens"], run.inputs["positions"]
    text = np.concatenate([np.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)  # x[0] is unread
    embeddings = jnp.asarray(run.weights["embed_tokens.weight"])[text]
    with jax.disable_jit(tokens.shape[1] == COLUMNS):
        found = _run(config, params, jnp.asarray(run.inputs["aux"]), embeddings)
    return as_trace(jax.tree.map(np.asarray, found), tokens[0], positions[0], config)


@partial(jax.jit, static_argnums=0)
def _run(config: DraftConfig, params: Any, aux: jax.Array, embeddings: jax.Array) -> Traced:
    kernel, columns = head_kernel(config, params), jnp.arange(aux.shape[1])
    return trace(config, params, kernel, aux, embeddings, steps=STEPS, columns=columns)


def as_trace(
    found: Traced, tokens: np.ndarray, positions: np.ndarray, config: DraftConfig
) -> Trace:
    steps = []
    for k in range(STEPS):
        there = len(tokens) - 1 - k  # x[T] is not known to us
        stages = {name: stage[k, 0, :there] for name, stage in found.steps.items()}
        if k == 0:
            stages |= {name: stage[0, :there] for name, stage in found.once.items()}
        stages["token"] = tokens[k : k + there, None]
        steps.append(Step(np.zeros(there, int), positions[:there], stages))
    return Trace(tuple(steps), {"head_dim": str(config.attention.head_dim)})


def require_no_parting(run: Run, framework: str, config: DraftConfig) -> None:
    mine, theirs = ours(run, config), read_trace(run.file("trace.pt"))
    tolerance = TOLERANCE_AFAR if run.knobs["columns"] > COLUMNS else TOLERANCE
    result = compare(mine, theirs, tolerance)
    assert result.first is None, (result.first, result.suspicion)
    held = {stage for step in theirs.steps for stage in step.stages}
    for k, step in enumerate(mine.steps):
        heard = {found.stage for found in result.found if found.step == k}
        silent = {name.rpartition(".")[2] for name in step.stages.keys() - heard}
        assert silent <= NO_TRACE_OF[framework], silent
        compared = {found.columns for found in result.found if found.step == k}
        assert compared == {len(tokens_of(run)) - 1 - k}
    assert "layers.0.v" in held
    assert not any({*ONCE} & step.stages.keys() for step in theirs.steps[1:])


def tokens_of(run: Run) -> np.ndarray:
    return run.inputs["tokens"][0]


NEAR = [name for name in SPECULATORS if not name.startswith("far")]


@pytest.mark.parametrize("name", NEAR)
def test_speculators(speculators_runs, name):
    run = speculators_runs[name]
    require_no_parting(run, "speculators", describe(run))


@pytest.mark.parametrize("name", SPECFORGE)
def test_specforge(specforge_runs, name):
    run = specforge_runs[name]
    require_no_parting(run, "specforge", describe_specforge(run))


@only_when_asked
@pytest.mark.parametrize("name", [name for name in SGLANG if not name.startswith("far")])
def test_sglang(sglang_runs, name):
    run = sglang_runs[name]
    require_no_parting(run, "sglang", describe(run))


# A server's way of calling: flat batches, a column a request after step 0, several rounds

SERVED = {
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "steps": STEPS,
    "rounds": [[7, 4], [1, 2], [3, 1]],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Two requests, their draft and what the recorder heard of them."""
    folder, source = tmp_path_factory.mktemp("served"), np.random.default_rng(7)
    knobs = PLAIN | {"draft_vocab_size": PLAIN["vocab_size"]}
    weights = draw_weights(knobs, source)
    inputs = {}
    for request in range(2):
        columns = sum(added[request] for added in SERVED["rounds"])
        width = knobs["num_aux"] * knobs["hidden_size"]
        inputs[f"ids.{request}"] = source.integers(knobs["vocab_size"], size=columns + 1)
        inputs[f"aux.{request}"] = source.normal(size=(columns, width)).astype(np.float32)
    save_file(weights, folder / "two.weights.safetensors")
    save_file(inputs, folder / "two.inputs.safetensors")
    job = [
        SERVED | {"name": "two", "mode": "serve"},
        {"name": "hollow", "mode": "shapes"},
    ]
    run_script("speculators", "run_recorder.py", folder, job)
    run = Run("two", knobs, weights, inputs, {}, folder)
    return run, json.loads((folder / "hollow.shapes.json").read_text())


def ours_served(run: Run) -> Trace:
    """Our trace of both requests, with own tokens, all columns at once."""
    config = describe(run)
    own = {name: part for name, part in run.weights.items() if name not in OUTSIDE_THE_TREE}
    params = jax.tree.map(jnp.asarray, to_tree(own))
    kernel, table = head_kernel(config, params), jnp.asarray(run.weights["embed_tokens.weight"])
    steps: list[list[Step]] = [[] for _ in range(STEPS)]
    for request in range(2):
        ids, aux = (run.inputs[f"{kind}.{request}"] for kind in ("ids", "aux"))
        count = len(aux)
        given = jnp.concatenate([jnp.asarray(aux), jnp.zeros((1, aux.shape[1]))])[None]
        with jax.disable_jit():
            found = trace(
                config,
                params,
                kernel,
                given,
                table[ids][None],
                steps=STEPS,
                columns=jnp.arange(count),
                own=Own(table, kernel, jnp.arange(len(table))),
            )
        for k in range(STEPS):
            stages = {name: np.asarray(stage[k, 0]) for name, stage in found.steps.items()}
            said = np.asarray(found.steps["top_ids"][k - 1, 0, :, :1])
            stages["token"] = said if k else ids[1:, None]
            if k == 0:
                stages |= {name: np.asarray(stage[0]) for name, stage in found.once.items()}
            steps[k].append(Step(np.full(count, request), np.arange(count), stages))
    joined = [
        Step(
            np.concatenate([step.rows for step in part]),
            np.concatenate([step.columns for step in part]),
            {name: np.concatenate([s.stages[name] for s in part]) for name in part[0].stages},
        )
        for part in steps
    ]
    return Trace(tuple(joined), {})


def test_a_server(served):
    run, _ = served
    theirs = read_trace(run.file("trace.pt"))
    result = compare(ours_served(run), theirs)
    assert result.first is None, (result.first, result.suspicion)
    # Each request's columns of all rounds at step 0, afterwards its last one of every round.
    later = [(0, 6), (0, 7), (0, 10), (1, 3), (1, 5), (1, 6)]
    first = [(0, column) for column in range(11)] + [(1, column) for column in range(7)]
    for k, step in enumerate(theirs.steps):
        places = list(zip(step.rows.tolist(), step.columns.tolist(), strict=True))
        assert places == (later if k else first)
        heard = {found.stage: found.columns for found in result.found if found.step == k}
        assert set(heard.values()) == {len(places)}
        lacking = {name.rpartition(".")[2] for name in stage_names(1) if name not in heard}
        expected = {"q_normed", "k_normed", "scores_lse", "scores_max"}
        # vLLM's head reads the last columns alone.
        logits = {"logits", "logits_lse", "top_logits", "top_ids"}
        assert lacking == expected | ({*ONCE} if k else {"aux", *logits})


SHAPES = {
    "padded": {
        "0.row": [0, 0, 0, 1, 1, 1, 1, 1],
        "0.column": [0, 1, 2, 0, 1, 2, 3, 4],
        "1.row": [0, 0, 0, 1, 1, 1, 1, 1],
        "1.column": [0, 1, 2, 0, 1, 2, 3, 4],
    },
    "padded, then decoded": {
        "0.row": [0, 0, 0, 1, 1, 1, 1, 1],
        "0.column": [0, 1, 2, 0, 1, 2, 3, 4],
        "1.row": [0, 1],
        "1.column": [2, 4],
    },
    "no positions": {"0.row": [0, 0, 0, 1, 1, 1], "0.column": [0, 1, 2, 0, 1, 2]},
    "one row of positions": {"0.row": [0, 0, 0, 1, 1, 1], "0.column": [4, 5, 6, 4, 5, 6]},
    "flat": {
        "0.row": [0, 0, 1, 1, 1],
        "0.column": [7, 8, 0, 1, 2],
        "1.row": [0, 1],
        "1.column": [8, 2],
    },
    "rounds": {"0.row": [0, 0, 0], "0.column": [0, 1, 2], "1.row": [0], "1.column": [1]},
    "begun in the middle": {"0.row": [0, 0], "0.column": [0, 1]},
}
REFUSED = {
    "a tree": "step 1 has 3 columns after a step 0 of 1 requests, expected one for each: a tree, "
    "or another batch?",
    "another batch": "step 1 has 3 columns after a step 0 of 2 requests, expected one for each: a "
    "tree, or another batch?",
    "nothing": "no step was heard, expected a call of the draft",
    "another map": "the model has no module model.fc, expected it for fc: is it the right map?",
}


@pytest.mark.parametrize("name", SHAPES)
def test_which_columns_a_call_has(served, name):
    assert served[1][name] == SHAPES[name] | {"again": True}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_are_refused(served, name):
    assert served[1][name] == REFUSED[name]

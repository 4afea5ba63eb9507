"""`--as` against the figures that the frameworks' own code computes on the same tensors.

The drafts are random. So that they are right often enough for a count to mean something, the
target's head says of a token that the draft can say what the draft's head says, and its last state
is what the draft's head read there, with noise.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.trees import to_tree
from eagle3_jax.batches import batches
from eagle3_jax.config import DraftConfig
from eagle3_jax.conventions import CONVENTIONS, measure
from eagle3_jax.heads import TargetHead
from eagle3_jax.model import head_kernel
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap
from tests.witness.cases import knobs_of
from tests.witness.drawing import draw_weights
from tests.witness.frameworks import (
    OUTSIDE_THE_TREE,
    Run,
    describe,
    describe_specforge,
    run_script,
)

pytestmark = pytest.mark.witness

STEPS = 4
LENGTHS = (62, 61, 57, 59)
SAID = 1e-6  # what the figures may differ by
NOISE = 0.3
CASES = {
    f"{framework}-{name}": (framework, case, knobs)
    for framework, whole in (("specforge", "no_final_norm"), ("speculators", "norm_output"))
    for name, case, knobs in (
        ("pruned", "plain", {"vocab_size": 12, "draft_vocab_size": 8}),
        ("knobs", whole, {"vocab_size": 16, "draft_vocab_size": 8}),
        ("whole", "whole_vocabulary", {"vocab_size": 8, "draft_vocab_size": 8}),
    )
}


class Scored(NamedTuple):
    """A draft, its target and its texts, and what a framework said of them."""

    config: DraftConfig
    params: dict[str, Any]
    kernel: jax.Array
    vocab: VocabMap
    head: TargetHead
    table: np.ndarray
    texts: list[Document]
    said: dict[str, Any]


def draw(framework: str, name: str, knobs: dict[str, Any], seed: int) -> tuple[Run, Scored]:
    """A draft with a target and texts, not yet scored."""
    source = np.random.default_rng(seed)
    weights = draw_weights(knobs, source)
    run = Run(name, knobs, weights, {}, {}, Path())
    config = describe_specforge(run) if framework == "specforge" else describe(run)
    outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
    tree = to_tree({key: tensor for key, tensor in weights.items() if key not in outside})
    params = jax.tree.map(jnp.asarray, tree)
    kernel = jnp.asarray(head_kernel(config, params))
    used = weights["d2t"] + np.arange(len(weights["d2t"])) if "d2t" in weights else None
    size, width = knobs["vocab_size"], knobs["hidden_size"]
    vocab = VocabMap.identity(size) if used is None else VocabMap.from_ids(used, size)
    head = 0.6 * source.normal(size=(size, width)).astype(np.float32) / width**0.5
    head[vocab.target_ids] = weights["lm_head.weight"]
    # SpecForge stores states after the final norm, speculators before it.
    norm = None if framework == "specforge" else weights["norm.weight"]
    table = weights["embed_tokens.weight"]
    texts = []
    for length in LENGTHS:
        ids = source.integers(size, size=length).astype(np.int32)
        aux = 0.5 * source.normal(size=(length, 3, width)).astype(np.float32)
        last = states_of_target(config, params, aux, table[ids], source)
        states = np.concatenate([aux, (last if norm is None else last / norm)[:, None]], axis=1)
        texts.append(Document(ids, spans(length, source), states, table[ids]))
    target = TargetHead(
        jnp.asarray(head).T, None if norm is None else jnp.asarray(norm), config.rms_norm_eps
    )
    return run, Scored(config, params, kernel, vocab, target, table, texts, {})


def states_of_target(
    config: DraftConfig,
    params: dict[str, Any],
    aux: np.ndarray,
    embedded: np.ndarray,
    source: np.random.Generator,
) -> np.ndarray:
    """Last states that say after each token much of what the draft would say of it."""
    reads = unroll(
        config,
        params,
        jnp.asarray(aux.reshape(1, len(aux), -1)),
        jnp.asarray(embedded)[None],
        steps=STEPS,
        read=lambda _, step: step.head_input,
    )
    last = np.zeros_like(embedded)
    for k in range(STEPS):
        at = 1 + k + np.arange(len(aux) - 1 - k)
        last[at] += np.asarray(reads[k, 0, : len(at)]) * 0.6**k
    size = np.sqrt(np.mean(last**2))
    return (last + NOISE * size * source.normal(size=last.shape)).astype(np.float32)


def spans(length: int, source: np.random.Generator) -> np.ndarray:
    """A loss mask of questions and answers; the last answer ends with the text."""
    marks, at, answers = np.zeros(length, np.bool_), 0, False
    while at < length:
        size = int(source.integers(2, 9 if answers else 5))
        marks[at : at + size] = answers
        at, answers = at + size, not answers
    marks[-1] = True
    return marks


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scored]:
    """Every case, scored by its framework."""
    found: dict[str, Scored] = {}
    for framework in ("specforge", "speculators"):
        folder = tmp_path_factory.mktemp(framework)
        job = []
        for seed, (name, (owner, case, changes)) in enumerate(CASES.items()):
            if owner != framework:
                continue
            knobs = knobs_of(framework, case) | changes
            run, drawn = draw(framework, name, knobs, seed)
            inputs = {"head": np.ascontiguousarray(np.asarray(drawn.head.kernel).T)}
            if drawn.head.norm is not None:
                inputs["norm"] = np.asarray(drawn.head.norm)
            for n, text in enumerate(drawn.texts):
                inputs[f"ids.{n}"] = text.ids.astype(np.int64)
                inputs[f"loss_mask.{n}"] = text.answer.astype(
                    np.int64 if framework == "specforge" else np.bool_
                )
                # safetensors writes the memory of a view as it lies
                aux = text.states[:, :3].reshape(len(text.ids), -1)
                inputs[f"aux.{n}"] = np.ascontiguousarray(aux)
                inputs[f"last.{n}"] = np.ascontiguousarray(text.states[:, 3])
            save_file(run.weights, folder / f"{name}.weights.safetensors")
            save_file(inputs, folder / f"{name}.inputs.safetensors")
            job.append(knobs | {"name": name, "mode": "score", "steps": STEPS, "documents": n + 1})
            found[name] = drawn
        run_script(framework, f"run_{framework}.py", folder, job)
        for knobs in job:
            said = json.loads((folder / f"{knobs['name']}.figures.json").read_text())
            found[knobs["name"]] = found[knobs["name"]]._replace(said=said)
    return found


def ours(case: Scored, framework: str, texts: list[Document]) -> dict[str, float | None]:
    return measure(
        CONVENTIONS[framework],
        case.config,
        case.params,
        case.kernel,
        case.vocab,
        batches(texts, slots=(0, 1, 2), last=3, columns=128, bucket=64),
        steps=STEPS,
        head=case.head,
        behind=jnp.asarray(case.table[0]),
    )


@pytest.mark.parametrize("name", CASES)
def test_drafts_are_right_often_enough(scored, name):
    said = scored[name].said["together"]
    shares = said.get("eval/per_position_acc") or [said[f"full_acc_{k}"] for k in range(STEPS)]
    assert 0.2 < shares[0] < 0.8, shares
    assert all(0 < share < 0.8 for share in shares), shares
    coverage = scored[name].vocab.in_draft
    assert coverage.all() == name.endswith("whole")


@pytest.mark.parametrize("name", CASES)
def test_figures_of_each_document(scored, name):
    case, framework = scored[name], CASES[name][0]
    assert len(case.said["documents"]) == len(LENGTHS)
    for text, said in zip(case.texts, case.said["documents"], strict=True):
        # What has nothing to divide by is no figure to us, and 0 to both.
        found = {key: figure or 0.0 for key, figure in ours(case, framework, [text]).items()}
        assert found == pytest.approx({key: said[key] for key in found}, rel=0, abs=SAID)
        assert not [key for key in said.keys() - found.keys() if "acc" in key]


@pytest.mark.parametrize("name", CASES)
def test_figures_of_all_documents(scored, name):
    case, framework = scored[name], CASES[name][0]
    found, said = ours(case, framework, case.texts), case.said["together"]
    if framework == "specforge":
        accuracies = [found[f"acc_{k}"] for k in range(STEPS)]
        assert accuracies == pytest.approx(said["eval/per_position_acc"], rel=0, abs=SAID)
        length = said["eval/simulated_acc_len"]
        assert found["simulated_acc_len"] == pytest.approx(length, rel=0, abs=SAID)
    else:
        assert found == pytest.approx({key: said[key] for key in found}, rel=0, abs=SAID)

"""Our loss and its gradients against those of the frameworks' own trainers, float32.

A batch of documents of several lengths, so that there is padding; loss masks with holes, whose last
token is marked; a target whose likeliest token is often none that the draft can say. Each framework
uses its own default steps and weights, which are those of the recipe then.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.trees import to_tensors, to_tree
from eagle3_jax.batches import stack
from eagle3_jax.config import DraftConfig
from eagle3_jax.losses import RECIPES, Recipe
from eagle3_jax.ops import rms_norm
from eagle3_jax.structs import Document, Features
from eagle3_jax.train import Teacher, ttt_loss
from tests.witness.cases import knobs_of
from tests.witness.drawing import Tensors, draw_weights
from tests.witness.frameworks import (
    OUTSIDE_THE_TREE,
    Run,
    describe,
    describe_specforge,
    only_when_asked,
    run_script,
)

pytestmark = pytest.mark.witness

TOLERANCE = 1e-5  # of the largest number of a gradient
LENGTHS = (21, 13, 17)
UNMARKED = 3  # tokens before an answer: as many as the steps of whoever packs documents
PACKED = 64  # columns of a row of speculators', the last ones padding
POST_NORM = {"specforge", "modelopt"}  # whose last states are stored after the final norm
CASES = {
    f"{framework}-{name}": (framework, name)
    for framework, names in {
        "specforge": ("plain", "fc_norm", "no_final_norm", "llama3", "whole_vocabulary"),
        "speculators": (
            "plain",
            "norm_before_fc",
            "residual+output",
            "fc_norm+output",
            "qk_norm+bias+two_layers",
            "whole_vocabulary",
        ),
        "modelopt": ("plain", "mlp_bias+two_layers", "whole_vocabulary"),
    }.items()
    for name in names
}
EACH = [
    pytest.param(name, marks=only_when_asked) if framework == "modelopt" else name
    for name, (framework, _) in CASES.items()
]


class Trained(NamedTuple):
    """A draft, its teacher and its texts, and a framework's loss and gradients of them.

    Attributes:
        pre_norm: `[B,T,Dt]`, the target's last states.
        said: the framework's, under canonical names, and `loss`.
    """

    config: DraftConfig
    params: dict[str, Any]
    teacher: Teacher
    features: Features
    pre_norm: jax.Array
    said: Tensors


def draw(
    framework: str, name: str, folder: Path, seed: int, *, unmarked: int = UNMARKED
) -> tuple[dict[str, Any], Trained]:
    """A job's case, its files written, and what we are to make of it."""
    knobs, source = knobs_of(framework, name), np.random.default_rng(seed)
    weights = draw_weights(knobs, source)
    run = Run(name, knobs, weights, {}, {}, folder)
    config = {
        "specforge": describe_specforge,
        "speculators": describe,
        "modelopt": lambda run: describe(run, double_norm=True),
    }[framework](run)
    outside = OUTSIDE_THE_TREE if config.final_norm else (*OUTSIDE_THE_TREE, "norm.weight")
    own = {key: tensor for key, tensor in weights.items() if key not in outside}
    vocab, width, count = knobs["vocab_size"], knobs["target_hidden_size"], knobs["num_aux"]
    norm = (1 + 0.3 * source.normal(size=width)).astype(np.float32)
    head = (2 * source.normal(size=(vocab, width)) / width**0.5).astype(np.float32)
    texts = []
    for length in LENGTHS:
        answer = source.random(length) < 0.7
        answer[:unmarked], answer[unmarked], answer[-1] = False, True, True
        states = source.normal(size=(length, count + 1, width)).astype(np.float32)
        texts.append(Document(source.integers(vocab, size=length), answer, states, None))
    table, slots = weights["embed_tokens.weight"], tuple(range(count))
    features = stack(
        texts, slots=slots, table=table, last=count, length=max(LENGTHS), rows=len(texts)
    )
    in_draft = weights.get("t2d", np.ones(vocab, np.bool_))
    teacher = Teacher(
        jnp.asarray(norm),
        jnp.asarray(head[in_draft].T),
        config.rms_norm_eps,
        jnp.asarray(head.T),
        jnp.asarray(in_draft),
    )
    params = jax.tree.map(jnp.asarray, to_tree(own))
    assert features.last is not None
    inputs: Tensors = {"norm": norm, "head": head}
    for n, text in enumerate(texts):
        last = text.states[:, count]
        if framework in POST_NORM:
            last = np.asarray(rms_norm(jnp.asarray(last), teacher.norm, teacher.eps))
        inputs |= {
            f"ids.{n}": text.ids,
            # SpecForge multiplies by it; elsewhere it selects.
            f"loss_mask.{n}": text.answer.astype(np.int64 if framework == "specforge" else bool),
            f"aux.{n}": np.ascontiguousarray(text.states[:, :count]).reshape(len(text.ids), -1),
            f"last.{n}": np.ascontiguousarray(last),
        }
    save_file(weights, folder / f"{name}.weights.safetensors")
    save_file(inputs, folder / f"{name}.inputs.safetensors")
    case = knobs | {"name": name, "mode": "train", "documents": len(texts), "max_len": PACKED}
    if framework == "speculators":  # its config asks for a number of steps, its trainer does not
        case["steps"] = 1
    return case, Trained(config, params, teacher, features, features.last, {})


def trained_by(framework: str, folder: Path) -> dict[str, Trained]:
    """Every case of a framework, its loss and gradients read back."""
    job, found = [], {}
    for seed, (owner, name) in enumerate(CASES.values()):
        if owner == framework:
            case, found[name] = draw(framework, name, folder, seed)
            job.append(case)
    run_script(framework, f"run_{framework}.py", folder, job)
    return {
        name: case._replace(said=load_file(folder / f"{name}.gradients.safetensors"))
        for name, case in found.items()
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Trained]]:
    """What frameworks said, each asked when its first case comes."""
    return Lazily(tmp_path_factory)


class Lazily(dict[str, dict[str, Trained]]):
    """Asks a framework once, and only if it is wanted."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        """Remember where to make directories."""
        self.folders = folders

    def __missing__(self, framework: str) -> dict[str, Trained]:
        """Ask."""
        self[framework] = trained_by(framework, self.folders.mktemp(f"{framework}_gradients"))
        return self[framework]


def differentiate(case: Trained, recipe: Recipe) -> tuple[float, Tensors]:
    """Our loss and gradients, under canonical names.

    Operation by operation, so that drafts of the same shapes share what is compiled.
    """

    def loss(params: dict[str, Any]) -> jax.Array:
        return ttt_loss(
            case.config,
            params,
            case.teacher,
            case.features,
            case.pre_norm,
            steps=recipe.steps,
            decay=recipe.decay,
            recipe=recipe,
        )[0]

    with jax.disable_jit(), jax.default_matmul_precision("highest"):
        found, gradients = jax.value_and_grad(loss)(case.params)
    return float(found), to_tensors(jax.tree.map(np.asarray, gradients))


def apart(ours: tuple[float, Tensors], said: Tensors) -> dict[str, float]:
    """How far the loss and each gradient lie apart, of the largest number of theirs."""
    loss, gradients = ours
    pairs = {name: (gradients[name], theirs) for name, theirs in said.items() if name != "loss"}
    pairs["loss"] = (np.asarray(loss), said["loss"])
    return {
        name: float(np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs)))
        for name, (mine, theirs) in pairs.items()
    }


@pytest.mark.parametrize("name", EACH)
def test_loss_and_gradients(runs, name):
    framework, case = CASES[name]
    trained = runs[framework][case]
    ours = differentiate(trained, RECIPES[framework])
    found = apart(ours, trained.said)
    assert max(found.values()) < TOLERANCE, found
    # What the framework does not train has no gradient of ours either.
    for parameter in ours[1].keys() - trained.said.keys():
        assert parameter == "lm_head.weight", parameter
        assert framework == "speculators"
        assert not ours[1][parameter].any()


WRONG: dict[tuple[str, str], dict[str, Any]] = {
    ("specforge", "mask"): {"offset": 2},
    ("specforge", "last mark"): {"offset": 1},
    ("specforge", "divisor"): {"divisor": "count"},
    ("specforge", "drop"): {"droppable": False},
    ("specforge", "decay"): {"decay": 0.81},
    ("specforge", "steps"): {"steps": 6},
    ("specforge", "average"): {"averaged": True},
    ("speculators", "mask"): {"offset": 2},
    ("speculators", "last mark"): {"last": False},
    ("speculators", "divisor"): {"divisor": "batch"},
    ("speculators", "drop"): {"droppable": True},
    ("speculators", "steps"): {"steps": 2},
}


@pytest.mark.parametrize(("framework", "rule"), WRONG)
def test_another_rule_is_seen(runs, framework, rule):
    trained = runs[framework]["plain"]
    wrong = RECIPES[framework]._replace(**WRONG[framework, rule])
    found = apart(differentiate(trained, wrong), trained.said)
    assert min(found["loss"], found["fc.weight"]) > 1e-3, found


def test_speculators_divergence_has_the_gradient_of_a_cross_entropy(runs):
    trained = runs["speculators"]["plain"]
    found = apart(
        differentiate(trained, RECIPES["speculators"]._replace(entropy=True)), trained.said
    )
    assert found.pop("loss") > 0.1
    assert max(found.values()) < TOLERANCE


def test_a_head_that_is_not_frozen_has_a_gradient_that_speculators_lacks(runs):
    trained = runs["speculators"]["plain"]
    _, gradients = differentiate(trained, RECIPES["speculators"]._replace(trains_head=True))
    assert "lm_head.weight" not in trained.said
    assert gradients["lm_head.weight"].any()


def test_speculators_last_columns_learn_of_the_next_document_where_it_is_marked_early(tmp_path):
    """One token less without a mark than it has steps: its row of documents is no batch of ours."""
    case, trained = draw("speculators", "plain", tmp_path, 0, unmarked=UNMARKED - 1)
    run_script("speculators", "run_speculators.py", tmp_path, [case])
    said = load_file(tmp_path / "plain.gradients.safetensors")
    found = apart(differentiate(trained, RECIPES["speculators"]), said)
    assert min(found["loss"], found["fc.weight"]) > 1e-3, found

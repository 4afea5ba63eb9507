"""Tensors that look as nobody trained them are told, and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters import load_draft, read_documents
from eagle3_jax.cli.demo import SHIPPED
from eagle3_jax.diagnose.weights import examine_vocabulary, examine_weights
from eagle3_jax.structs import Document
from tests.conftest import random_params, tiny_config

CONFIG = tiny_config(fc_norm=True)
PARAMS = random_params(CONFIG)
NORMS = 3 + 3 + 1  # before fc, in the layer, at the end


def placed(value, *path):
    """The parameters with one leaf at another value everywhere, or a function of it."""
    told = []

    def one(keys, leaf):
        if tuple(key.key for key in keys) != path:
            return leaf
        told.append(path)
        return value(leaf) if callable(value) else jnp.full_like(leaf, value)

    changed = jax.tree_util.tree_map_with_path(one, PARAMS)
    assert told, f"no such parameter: {path}"
    return changed


def claims(params, config=CONFIG):
    return [(found.strength, found.claim) for found in examine_weights(config, params)]


def test_random_parameters_and_the_shipped_draft_are_left_alone():
    assert claims(PARAMS) == []
    draft = load_draft(SHIPPED / "draft")
    assert claims(draft.params, draft.config) == []
    documents = list(read_documents(SHIPPED / "shards" / "familiar.safetensors"))
    assert examine_vocabulary(draft.vocab.target_ids, documents) == []


def test_a_norm_of_ones_among_others_is_told():
    (found,) = examine_weights(CONFIG, placed(1.0, "layers_0", "hidden_norm", "scale"))
    assert (found.strength, found.claim) == (
        "measured",
        "layers.0.hidden_norm.weight is 1 everywhere",
    )
    assert f"the other {NORMS - 1} norms are not" in found.evidence


def test_norms_that_are_all_ones_are_a_suggestion():
    ones = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: jnp.ones_like(leaf) if keys[-1].key == "scale" else leaf, PARAMS
    )
    (found,) = examine_weights(CONFIG, ones)
    assert found.strength == "suggested"
    assert f"all of {NORMS}" in found.evidence


def test_a_kernel_of_zeros_is_told():
    path = ("layers_0", "mlp", "up_proj", "kernel")
    assert claims(placed(0.0, *path)) == [
        ("measured", "layers.0.mlp.up_proj.weight is zero everywhere")
    ]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_proved_and_counted(value):
    changed = placed(lambda leaf: leaf.at[0].set(value), "norm", "scale")
    (found,) = examine_weights(CONFIG, changed)
    assert (found.strength, found.claim) == ("proved", "norm.weight is broken")
    assert found.evidence.startswith("1 of 8 values")


@pytest.mark.parametrize("place", [0, 2])
def test_a_state_that_fc_hardly_reads_is_told(place):
    width = CONFIG.target_hidden_size
    rows = slice(place * width, (place + 1) * width)
    changed = placed(lambda leaf: leaf.at[rows].multiply(0.01), "fc", "kernel")
    assert claims(changed) == [("measured", f"fc hardly reads the state at place {place}")]
    assert claims(placed(lambda leaf: leaf.at[rows].multiply(0.2), "fc", "kernel")) == []


def text(ids):
    ids = np.asarray(ids, np.int32)
    return Document(ids, np.ones(len(ids), bool), np.zeros((len(ids), 1, 2), np.float32), None)


def test_a_vocabulary_for_other_texts_is_told_with_what_could_be_had():
    texts = [text([9, 9, *[5] * 6, *[6] * 3, 7])]
    assert examine_vocabulary(np.array([5, 8]), texts) == []  # 60% of the 90% there are
    (found,) = examine_vocabulary(np.array([6, 8]), texts)
    assert found.claim == "the draft vocabulary is not one for these texts"
    assert "its 2 ids are 30.0% of the 10 answer tokens" in found.evidence
    assert "as many others could be 90.0%" in found.evidence


def test_without_a_due_token_nothing_is_said_of_the_vocabulary():
    silent = text([1, 2, 3, 4])
    assert examine_vocabulary(np.array([6]), [silent._replace(answer=~silent.answer)]) == []

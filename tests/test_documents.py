"""Documents that a draft would misread without a sign are refused, by their number."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.batches import require_document
from eagle3_jax.drafts import place_draft
from eagle3_jax.evaluate import evaluate, evaluate_documents
from eagle3_jax.structs import Document
from tests.samples import TABLE, VOCAB, WIDTH, tiny_draft

SLOTS = (0, 1, 2)
CONFIG = tiny_draft().config


def text(length: int = 5) -> Document:
    rng = np.random.default_rng(length)
    ids = rng.integers(0, VOCAB, length).astype(np.int32)
    states = rng.normal(size=(length, 4, WIDTH)).astype(np.float32)
    return Document(ids, np.ones(length, bool), states, TABLE[ids])


def with_value(array: np.ndarray, value: float) -> np.ndarray:
    return np.concatenate([array[:-1], np.full_like(array[-1:], value)])


BROKEN = {
    "id V": (
        {"ids": with_value(text().ids, VOCAB)},
        rf"holds token ids \d+ to {VOCAB}, expected 0",
    ),
    "id -1": ({"ids": with_value(text().ids, -1)}, r"holds token ids -1 to \d+, expected 0 to 31"),
    "real ids": ({"ids": text().ids + 0.5}, "holds token ids of type float64, expected integers"),
    "NaN": (
        {"states": with_value(text().states, np.nan)},
        "holds NaN or infinity, 8 in slot 0, 8 in slot 1, 8 in slot 2, 8 in slot 3, expected fin",
    ),
    "infinity": (
        {"embeddings": with_value(TABLE[:5], np.inf)},
        "holds NaN or infinity, 8 in embeddings, expected finite values",
    ),
    "lengths": ({"ids": text().ids[1:]}, r"has arrays of \[4, 5, 5, 5\] rows, expected one length"),
    "width": (
        {"states": text().states[:, :, 1:]},
        "holds states of width 7, expected 8, which the draft reads",
    ),
    "wide embeddings": (
        {"embeddings": np.ones((5, 9), np.float32)},
        r"holds embeddings of shape \[5, 9\], expected \[5, 8\], as wide as the draft",
    ),
    "no embeddings": ({"embeddings": None}, r"stores no embeddings \(boundary 0\), expected a tok"),
    "few slots": ({"states": text().states[:, :2]}, "stores no slot 2, expected 0 to 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_document_is_told_by_its_number(name):
    changes, told = BROKEN[name]
    with pytest.raises(ValueError, match=f"^document 1 {told}"):
        evaluate_documents(
            place_draft(tiny_draft()), [text(), text()._replace(**changes)], slots=SLOTS
        )


def test_a_document_is_refused_before_the_next_one_is_made():
    def source():
        yield text()
        yield text()._replace(states=np.full((5, 4, WIDTH), np.nan, np.float32))
        raise AssertionError("asked for one more")

    with pytest.raises(ValueError, match="document 1 holds NaN"):
        evaluate_documents(place_draft(tiny_draft()), source(), slots=SLOTS)


def test_a_good_document_passes():
    require_document(CONFIG, text(), 0, slots=(3, 0))
    half = text()._replace(states=text().states.astype(jnp.bfloat16))
    require_document(CONFIG, half, 0, slots=SLOTS)


def test_with_a_table_stored_embeddings_are_not_due():
    wide = text()._replace(embeddings=np.ones((5, 9), np.float32))
    for document in (wide, text()._replace(embeddings=None)):
        require_document(CONFIG, document, 0, table=TABLE)


@pytest.mark.parametrize("slots", [(-1, 0, 1), (0, 1, 4)])
def test_a_slot_that_is_not_stored_is_refused(slots):
    bad = min(slots) if min(slots) < 0 else max(slots)
    with pytest.raises(ValueError, match=f"^document 7 stores no slot {bad}, expected 0 to 3"):
        require_document(CONFIG, text(), 7, slots=slots)


@pytest.mark.parametrize("slots", [(), (0, 1), (0, 1, 2, 3)])
def test_as_many_slots_as_the_draft_reads_are_due(slots):
    with pytest.raises(ValueError, match=r"^slots are \[.*\], expected 3 of them"):
        evaluate_documents(place_draft(tiny_draft()), [text()], slots=slots)


@pytest.mark.parametrize("steps", [0, -1])
def test_a_step_at_least_is_due(steps):
    draft = place_draft(tiny_draft())
    with pytest.raises(ValueError, match=f"^steps is {steps}, expected 1 or more"):
        evaluate_documents(draft, [text()], slots=SLOTS, steps=steps)
    with pytest.raises(ValueError, match=f"^steps is {steps}, expected 1 or more"):
        evaluate(draft.config, draft.params, draft.kernel, draft.vocab, [], steps=steps)

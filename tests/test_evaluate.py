"""Evaluation over batches against counts made one column at a time."""

import numpy as np
import pytest

from eagle3_jax.batches import batches
from eagle3_jax.evaluate import evaluate
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap
from tests import reference
from tests.conftest import random_params, tiny_config

STEPS = 2
CONFIG = tiny_config(vocab_size=4, draft_vocab_size=3)
PARAMS = random_params(CONFIG)
KERNEL = PARAMS["lm_head"]["kernel"]
VOCAB = VocabMap.from_ids(np.array([0, 2, 3]), 4)
TABLE = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)


def document(length, seed):
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(length, 4, 8)).astype(np.float32)
    ids = rng.integers(0, 4, length).astype(np.int32)
    return Document(ids, rng.random(length) < 0.8, states, TABLE[ids])


TEXTS = [document(length, seed) for seed, length in enumerate((8, 5, 7))]


def batched(texts=TEXTS):
    return batches(texts, slots=(0, 1, 2), columns=16, bucket=8)


def naive():
    found = {name: [0] * STEPS for name in ("total", "covered", "right", "reached", "joint")}
    for text in TEXTS:
        aux = np.float64(text.states[:, :3].reshape(len(text.ids), -1))
        reads = reference.unroll(CONFIG, PARAMS, aux, np.float64(text.embeddings), STEPS)[1]
        for t in range(len(text.ids)):
            good = True
            for k in range(STEPS):
                due = t + 2 + k
                if due >= len(text.ids) or not text.answer[due]:
                    good = False
                    continue
                best = np.argmax(reads[k, t] @ np.float64(KERNEL))
                right = VOCAB.target_ids[best] == text.ids[due]
                found["total"][k] += 1
                found["covered"][k] += int(VOCAB.in_draft[text.ids[due]])
                found["right"][k] += int(right)
                found["reached"][k] += int(good)
                good = good and right
                found["joint"][k] += int(good)
    return found


def test_counts_of_padded_batches_agree_with_counting_column_by_column():
    seen = []
    counts = evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched(), steps=STEPS, on_batch=seen.append)
    expected = naive()
    assert {name: part.tolist() for name, part in counts._asdict().items()} == expected
    assert all(part.dtype == np.int64 for part in counts)
    assert [len(features.ids) for features in seen] == [2, 2]
    assert 0 < expected["joint"][1] < expected["joint"][0] < expected["covered"][0]


def test_a_key_that_is_not_valid_is_seen_by_no_column():
    texts = [document(8, seed) for seed in range(32)]
    [features] = batches(texts, slots=(0, 1, 2), columns=256, bucket=8)
    # Column 0 has nothing due in two steps, and its key is hidden.
    hidden = features._replace(
        answer=features.answer & (np.arange(8) >= 4), valid=features.valid.at[:, 0].set(False)
    )
    noisy = hidden._replace(aux=hidden.aux.at[:, 0].multiply(-50.0))
    found, again = (
        evaluate(CONFIG, PARAMS, KERNEL, VOCAB, [part], steps=STEPS) for part in (hidden, noisy)
    )
    assert found.right.tolist() == again.right.tolist()


def test_no_document_is_an_error():
    with pytest.raises(ValueError, match="found no document, expected at least one"):
        evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched([]), steps=STEPS)


def test_states_that_do_not_fit_the_draft_are_an_error():
    narrow = batches(TEXTS, slots=(0, 1), columns=16, bucket=8)
    with pytest.raises(ValueError, match="aux states have width 16, expected 24: 3 x 8"):
        evaluate(CONFIG, PARAMS, KERNEL, VOCAB, narrow, steps=STEPS)

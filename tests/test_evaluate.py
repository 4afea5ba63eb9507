"""Evaluation over batches against counts made one column at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.batches import batches
from eagle3_jax.drafts import place_draft
from eagle3_jax.evaluate import _filled, batch_columns, evaluate, evaluate_documents
from eagle3_jax.heads import TargetHead
from eagle3_jax.propose import draft_one, read_prefix
from eagle3_jax.rollout import greedy_ids
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap
from tests import reference
from tests.conftest import random_params, tiny_config
from tests.samples import TABLE as TABLE_OF_SAMPLES
from tests.samples import texts, tiny_draft

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


def naive(due_of=lambda text, token: (int(text.ids[token]), None)):
    """Counts of each text, column by column; `due_of` gives the id due at a token, and p."""
    names = ("total", "covered", "right", "top_4", "top_8", "reached", "joint", "agreement")
    found = {name: np.zeros((len(TEXTS), STEPS)) for name in names}
    for n, text in enumerate(TEXTS):
        aux = np.float64(text.states[:, :3].reshape(len(text.ids), -1))
        reads = reference.unroll(CONFIG, PARAMS, aux, np.float64(text.embeddings), STEPS)[1]
        for t in range(len(text.ids)):
            good = True
            for k in range(STEPS):
                token = t + 2 + k
                if token >= len(text.ids) or not text.answer[token]:
                    good = False
                    continue
                due, p = due_of(text, token)
                scores = reads[k, t] @ np.float64(KERNEL)
                order = VOCAB.target_ids[np.argsort(-scores, kind="stable")].tolist()
                right = order[0] == due
                found["total"][n, k] += 1
                found["covered"][n, k] += VOCAB.in_draft[due]
                found["right"][n, k] += right
                found["top_4"][n, k] += due in order
                found["top_8"][n, k] += due in order
                found["reached"][n, k] += good
                good = good and right
                found["joint"][n, k] += good
                if p is not None:
                    q = np.exp(scores - scores.max())
                    found["agreement"][n, k] += np.minimum(q / q.sum(), p[VOCAB.target_ids]).sum()
    return found


def assert_counted(counts, expected):
    for name, numbers in expected.items():
        np.testing.assert_allclose(getattr(counts, name), numbers, 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize(("devices", "rows"), [(1, 2), (2, 2), (3, 3), (8, 8)])
def test_rows_are_filled_up_to_a_number_that_devices_can_share(devices, rows):
    [features, _] = batched()
    filled = _filled(features, devices)
    assert filled.document.tolist() == [0, 1, -1, -1, -1, -1, -1, -1][:rows]
    for part, before in zip(filled[:5], features[:5], strict=True):
        assert part.shape == (rows, *before.shape[1:])
        np.testing.assert_array_equal(part[:2], before)
        assert not part[2:].any()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_documents_are_counted_in_batches_with_exact_products_for_float32(dtype):
    draft, documents, seen = place_draft(tiny_draft(), dtype), texts()[:2], []
    head = TargetHead(jnp.asarray(np.random.default_rng(5).normal(size=(8, 32)), dtype), None, 1e-5)
    counts = evaluate_documents(
        draft._replace(table=TABLE_OF_SAMPLES),
        documents,
        slots=(0, 1, 2),
        steps=1,
        head=head,
        on_batch=lambda features: seen.append((features, jax.config.jax_default_matmul_precision)),
    )
    assert len(counts.total) == 2
    [(features, products)] = seen
    assert products == ("highest" if dtype == jnp.float32 else "default")
    rows, columns = features.ids.shape
    assert rows * columns <= batch_columns() * jax.local_device_count() < (rows + 1) * columns
    np.testing.assert_array_equal(
        features.last[0, : len(documents[0].ids)], documents[0].states[:, -1]
    )


def test_counts_of_padded_batches_agree_with_counting_column_by_column():
    seen = []
    counts = evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched(), steps=STEPS, on_batch=seen.append)
    expected = naive()
    assert_counted(counts, expected)
    assert counts.agreement.dtype == np.float32
    assert [len(features.ids) for features in seen] == [2, 2]
    joint = expected["joint"].sum(axis=0)
    assert 0 < joint[1] < joint[0] < expected["covered"].sum(axis=0)[0]


def test_documents_keep_their_numbers_whatever_batch_they_are_in():
    texts = [*TEXTS, document(13, 9), document(3, 8)]
    together = evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched(texts), steps=STEPS)
    for number, text in enumerate(texts):
        alone = evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched([text]), steps=STEPS)
        for one, all_of_them in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], all_of_them[number])


@pytest.mark.parametrize("normed", [False, True])
def test_against_a_target_its_choice_is_due_and_agreement_is_counted(normed):
    rng = np.random.default_rng(5)
    kernel = 2 * rng.normal(size=(8, 4))
    scale = rng.normal(size=8)

    def due_of(text, token):
        state = np.float64(text.states[token - 1, 3])  # the target at x[t+1+k] says x[t+2+k]
        if not normed:
            state = scale * state / np.sqrt(np.mean(state**2) + 1e-5)
        p = np.exp(state @ kernel)
        return int(np.argmax(p)), p / p.sum()

    head = TargetHead(
        jnp.asarray(kernel, jnp.float32),
        None if normed else jnp.asarray(scale, jnp.float32),
        1e-5,
    )
    fed = batches(TEXTS, slots=(0, 1, 2), last=3, columns=16, bucket=8)
    counts = evaluate(CONFIG, PARAMS, KERNEL, VOCAB, fed, steps=STEPS, head=head)
    assert_counted(counts, naive(due_of))


def test_parameters_carry_the_precision():
    head = TargetHead(jnp.asarray(np.random.default_rng(5).normal(size=(8, 4))), None, 1e-5)

    def at(dtype):
        params, kernel, cast = jax.tree.map(
            lambda leaf: jnp.asarray(leaf, dtype), (PARAMS, KERNEL, head)
        )
        fed = batches(TEXTS, slots=(0, 1, 2), last=3, columns=16, bucket=8)
        return evaluate(CONFIG, params, kernel, VOCAB, fed, steps=STEPS, head=cast)

    full, half = at(jnp.float32), at(jnp.bfloat16)
    assert half.total.tolist() == full.total.tolist()
    away = np.abs(half.agreement - full.agreement) / full.total
    assert 1e-5 < away.max() < 0.02


def test_features_are_read_in_the_precision_of_the_head():
    target = TargetHead(jnp.asarray(np.random.default_rng(5).normal(size=(8, 4))), None, 1e-5)
    params, kernel, head = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, jnp.bfloat16), (PARAMS, KERNEL, target)
    )
    fed = list(batches(TEXTS, slots=(0, 1, 2), last=3, columns=16, bucket=8))
    rounded = [
        part._replace(
            aux=part.aux.astype(jnp.bfloat16), embeddings=part.embeddings.astype(jnp.bfloat16)
        )
        for part in fed
    ]
    found, again = (
        evaluate(CONFIG, params, kernel, VOCAB, texts, steps=STEPS, head=head)
        for texts in (fed, rounded)
    )
    np.testing.assert_array_equal(found.agreement, again.agreement)


def test_a_target_needs_its_last_state():
    head = TargetHead(jnp.ones((8, 4)), None, 1e-5)
    with pytest.raises(ValueError, match="the features hold no last state of the target"):
        evaluate(CONFIG, PARAMS, KERNEL, VOCAB, batched(), steps=STEPS, head=head)


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


def served(draft, text, steps):
    """Rounds and tokens of a server that drafts with a cache, where the text is the target's."""
    draft = draft._replace(params=jax.tree.map(jnp.asarray, draft.params))
    kernel = draft.params["lm_head"]["kernel"]
    target_ids = jnp.asarray(draft.vocab.target_ids)
    tokens, table = text.ids, TABLE_OF_SAMPLES
    aux = jnp.asarray(text.states[:, :3].reshape(1, len(tokens), -1))
    column = int(np.flatnonzero(text.answer)[0]) - 1  # it has read the answer's first token
    rounds = gained = 0
    while column + 2 < len(tokens):
        prefix = read_prefix(
            draft.config,
            draft.params,
            jnp.asarray(table[tokens[1 : column + 2]])[None],
            aux[:, : column + 1],
            room=steps - 1,
        )
        memory, accepted = prefix.memory, 0
        state, read = prefix.state[:, -1:], prefix.head_input[:, -1:]
        for k in range(steps):
            said = int(greedy_ids(read, kernel, target_ids)[0, 0])
            if column + 2 + k >= len(tokens) or said != tokens[column + 2 + k]:
                break
            accepted += 1
            if k + 1 < steps:
                embedding = jnp.asarray(table[said])[None, None]
                slot = jnp.array([column + 1 + k])
                step = draft_one(draft.config, draft.params, embedding, state, memory, slot)
                state, read, memory = step.state, step.head_input, step.memory
        rounds += 1
        gained += min(accepted + 1, len(tokens) - column - 2)
        column += accepted + 1
    return rounds, gained


def test_a_walk_is_what_drafting_and_verifying_round_by_round_gives():
    draft, documents = tiny_draft(), texts()[:3]
    params = jax.tree.map(jnp.asarray, draft.params)
    kernel = params["lm_head"]["kernel"]
    fed = batches(documents, slots=(0, 1, 2), columns=64, bucket=8)
    counts = evaluate(draft.config, params, kernel, draft.vocab, fed, steps=3)
    for steps in (1, 2, 3):
        expected = [served(draft, text, steps) for text in documents]
        found = (counts.rounds[:, steps - 1].tolist(), counts.gained[:, steps - 1].tolist())
        assert list(zip(*found, strict=True)) == expected
    assert counts.gained[:, -1].sum() > 1.3 * counts.rounds[:, -1].sum()
    assert counts.rounds[:, 0].sum() > counts.rounds[:, -1].sum()

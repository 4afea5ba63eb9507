"""What is read of logits in chunks against whole arrays in NumPy, ties included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax import heads
from eagle3_jax.heads import TargetHead, in_chunks, rank, rank_and_agree, teach
from tests.conftest import close

RNG = np.random.default_rng(0)
ROWS, COLUMNS, WIDTH, DRAFT, TARGET = 2, 7, 5, 6, 11


def whole(*shape):
    """Small whole numbers, so that products are exact and ties are many."""
    return jnp.asarray(RNG.integers(-1, 2, shape), jnp.float32)


@pytest.fixture(params=[1 << 23, 3 * DRAFT], ids=["one chunk", "chunks of eight rows"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(heads, "_LOGITS", request.param)


def softmax(x):
    weights = np.exp(np.float64(x) - np.max(x, axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def test_a_rank_counts_what_comes_before(chunks):
    states, kernel = whole(ROWS, COLUMNS, WIDTH), whole(WIDTH, DRAFT)
    due = jnp.asarray(RNG.integers(0, DRAFT, (ROWS, COLUMNS)))
    found = jax.jit(rank)(states, kernel, due)
    order = np.argsort(-np.asarray(states @ kernel), axis=-1, kind="stable")  # the lower id first
    assert found.tolist() == np.argmax(order == np.asarray(due)[..., None], axis=-1).tolist()
    ties = np.sort(np.asarray(states @ kernel), axis=-1)
    assert np.mean(ties[..., 1:] == ties[..., :-1]) > 0.3


def test_where_a_score_is_no_number_nothing_is_likeliest(chunks):
    states, kernel = whole(ROWS, COLUMNS, WIDTH), whole(WIDTH, DRAFT)
    due = jnp.asarray(RNG.integers(0, DRAFT, (ROWS, COLUMNS)))
    healthy = rank(states, kernel, due)
    found = rank(states.at[0, 1].set(jnp.nan), kernel, due)
    assert found[0, 1] == DRAFT
    assert found.at[0, 1].set(healthy[0, 1]).tolist() == healthy.tolist()


def test_the_teacher_is_the_targets_whole_distribution(chunks):
    states, kernel = whole(ROWS, COLUMNS, WIDTH), whole(WIDTH, TARGET)
    teacher = jax.jit(teach)(states, kernel)
    scores = np.asarray(states @ kernel)
    assert teacher.best.tolist() == np.argmax(scores, axis=-1).tolist()
    close(teacher.normaliser, np.log(np.exp(np.float64(scores)).sum(axis=-1)))


def test_agreement_is_the_mass_that_two_distributions_share(chunks):
    states, kernel = whole(ROWS, COLUMNS, WIDTH), whole(WIDTH, DRAFT)
    theirs, target_kernel = whole(ROWS, COLUMNS, WIDTH + 1), whole(WIDTH + 1, TARGET)
    spoken = np.array([0, 2, 3, 7, 8, 10])
    teacher = teach(theirs, target_kernel)
    due = jnp.zeros((ROWS, COLUMNS), int)
    ranks, shared = jax.jit(rank_and_agree)(states, kernel, due, teacher, target_kernel[:, spoken])
    assert ranks.tolist() == rank(states, kernel, due).tolist()
    # The whole vocabulary, where the draft gives what it cannot say no mass.
    said = np.zeros((ROWS, COLUMNS, TARGET))
    said[..., spoken] = softmax(states @ kernel)
    close(shared, np.minimum(said, softmax(theirs @ target_kernel)).sum(axis=-1))


def test_a_draft_that_is_the_target_agrees_wholly():
    states, kernel = whole(1, COLUMNS, WIDTH), whole(WIDTH, TARGET)
    due = jnp.zeros((1, COLUMNS), int)
    _, shared = rank_and_agree(states, kernel, due, teach(states, kernel), kernel)
    close(shared, np.ones((1, COLUMNS)))


def test_a_targets_head_reads_stored_states_after_its_norm_and_in_its_own_type():
    last = jnp.array([[[3.0, 4.0]]])
    kernel, norm = jnp.zeros((2, 3), jnp.bfloat16), jnp.array([2.0, -1.0], jnp.bfloat16)
    root = np.sqrt(12.5 + 0.5)
    read = TargetHead(kernel, norm, 0.5).read(last)
    close(read, [[[6.0 / root, -4.0 / root]]], 2**-7)
    plain = TargetHead(kernel, None, 0.5).read(last)
    assert plain.tolist() == last.tolist()
    assert read.dtype == plain.dtype == jnp.bfloat16


def test_no_array_of_logits_is_longer_than_a_chunk():
    states = jax.ShapeDtypeStruct((1, 4096, 8), jnp.float32)
    kernel = jax.ShapeDtypeStruct((8, 32768), jnp.float32)
    due = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
    text = str(jax.make_jaxpr(rank)(states, kernel, due))
    assert "256,32768]" in text
    assert "4096,32768]" not in text
    assert "f32[16,256,8]" in text  # no chunk more than the rows fill


def test_a_chunk_is_told_nothing_of_another():
    seen = []

    def read(x, y):
        seen.append(x.shape)
        return {"sum": x.sum(axis=-1) + y}

    x, y = whole(3, 5, 2), whole(3, 5)
    found = in_chunks(read, 1 << 20, x, y)["sum"]
    assert found.tolist() == (x.sum(axis=-1) + y).tolist()
    assert seen == [(8, 2)]

"""The training loss against a naive one in float64, its gradient, and one optimiser step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eagle3_jax.structs import Features
from eagle3_jax.train import Teacher, train_step, ttt_loss
from tests import reference
from tests.conftest import close, random_params, random_text, tiny_config

CONFIG = tiny_config(target_hidden_size=6)
LENGTHS, STEPS, DECAY = (8, 6), 3, 0.7


def example(config=CONFIG):
    """Two texts, the second padded with noise that must not count; and a teacher."""
    rng = np.random.default_rng(0)
    aux, embeddings = random_text(config, rows=2, columns=8)
    valid = np.arange(8) < np.array(LENGTHS)[:, None]
    answer = valid & (np.arange(8) >= 3)
    embeddings = jnp.where(valid[..., None], embeddings, 0.0)
    width = config.target_hidden_size
    teacher = Teacher(
        jnp.asarray(1 + 0.3 * rng.normal(size=width), jnp.float32),
        jnp.asarray(rng.normal(size=(width, 12)), jnp.float32),
        1e-5,
    )
    last = jnp.asarray(rng.normal(size=(2, 8, width)), jnp.float32)
    ids = jnp.zeros((2, 8), jnp.int32)
    features = Features(
        ids, aux, embeddings, jnp.asarray(answer), jnp.asarray(valid), jnp.arange(len(ids))
    )
    return random_params(config), teacher, features, last


def naive(config, params, teacher, features, last):
    texts = [
        tuple(
            np.asarray(part[row, :size], bool if part.dtype == bool else np.float64)
            for part in (features.aux, features.embeddings, features.answer, last)
        )
        for row, size in enumerate(LENGTHS)
    ]
    plain = (np.float64(teacher.norm), np.float64(teacher.kernel), teacher.eps)
    return reference.ttt_loss(config, params, texts, plain, steps=STEPS, decay=DECAY)


@pytest.fixture(scope="module")
def measured():
    """Loss, progress and gradients of the example, compiled once."""
    params, teacher, features, last = example()

    @jax.jit
    def run(params, features, last):
        def loss(p):
            return ttt_loss(CONFIG, p, teacher, features, last, steps=STEPS, decay=DECAY)

        return jax.value_and_grad(loss, has_aux=True)(params)

    with jax.default_matmul_precision("highest"):
        yield run, run(params, features, last)


def test_the_loss_agrees_with_a_naive_one_column_by_column(measured):
    (loss, progress), _ = measured[1]
    expected, agreement = naive(CONFIG, *example())
    close(loss, expected)
    close(progress.loss, expected)
    close(progress.agreement, agreement)


def test_the_gradient_agrees_with_float64_differences_of_the_naive_loss(measured):
    gradients = measured[1][1]
    params, *rest = example()
    rng = np.random.default_rng(1)
    for _ in range(3):
        direction = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), params)

        def moved(distance, direction=direction):
            there = jax.tree.map(lambda p, way: np.float64(p) + distance * way, params, direction)
            return naive(CONFIG, there, *rest)[0]

        slope = (moved(1e-6) - moved(-1e-6)) / 2e-6
        products = jax.tree.map(lambda g, way: np.sum(np.float64(g) * way), gradients, direction)
        assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-3)


def test_every_parameter_is_trained(measured):
    for path, gradient in jax.tree_util.tree_leaves_with_path(measured[1][1]):
        assert float(jnp.abs(gradient).max()) > 0, jax.tree_util.keystr(path)


def test_padding_does_not_change_loss_or_gradient(measured):
    run, ((loss, _), gradients) = measured
    params, _, features, last = example()
    padding = ~features.valid[..., None]
    noisy = features._replace(aux=jnp.where(padding, 50.0, features.aux))
    (again, _), other = run(params, noisy, jnp.where(padding, 50.0, last))
    assert float(again) == float(loss)
    jax.tree.map(np.testing.assert_array_equal, other, gradients)


def test_a_key_that_is_not_valid_is_seen_by_no_column(measured):
    run = measured[0]
    params, _, features, last = example()
    answer = features.answer & (jnp.arange(8) >= 5)  # column 0 has nothing due in three steps
    hidden = features._replace(answer=answer, valid=features.valid.at[:, 0].set(False))
    noisy = hidden._replace(aux=hidden.aux.at[:, 0].set(50.0))
    (loss, _), _ = run(params, hidden, last)
    (again, _), _ = run(params, noisy, last)
    assert float(again) == float(loss)


def test_without_answers_the_loss_is_zero_and_not_a_division_by_zero(measured):
    run = measured[0]
    params, _, features, last = example()
    silent = features._replace(answer=jnp.zeros_like(features.answer))
    (loss, progress), gradients = run(params, silent, last)
    assert float(loss) == 0.0
    assert progress.agreement.tolist() == [0.0] * STEPS
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradients))


def test_one_optimiser_step_goes_against_the_gradient_and_training_goes_on(measured):
    (loss, _), gradients = measured[1]
    params, teacher, features, last = example()
    expected = jax.tree.map(lambda p, g: np.asarray(p - 0.05 * g), params, gradients)
    optimizer = optax.sgd(0.05)
    step = train_step(CONFIG, optimizer, steps=STEPS, decay=DECAY)
    params, state, progress = step(params, optimizer.init(params), teacher, features, last)
    close(progress.loss, loss)
    jax.tree.map(close, params, expected)
    for _ in range(5):
        params, state, progress = step(params, state, teacher, features, last)
    assert float(progress.loss) < float(loss) - 0.1

"""The training loss against a naive one in float64, its gradient, and one optimiser step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from eagle3_jax.losses import RECIPES
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


def test_features_are_read_in_the_precision_of_the_head():
    params, teacher, features, last = example()
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    rounded = features._replace(
        aux=features.aux.astype(jnp.bfloat16), embeddings=features.embeddings.astype(jnp.bfloat16)
    )

    @jax.jit
    def loss(features):
        return ttt_loss(CONFIG, half, teacher, features, last, steps=1, decay=DECAY)[0]

    assert float(loss(features)) == float(loss(rounded))


def test_agreement_is_counted_beyond_what_half_precision_can_count():
    params, teacher, _, _ = example()
    params["lm_head"]["kernel"] = jnp.zeros_like(params["lm_head"]["kernel"])  # all are first
    aux, embeddings = random_text(CONFIG, columns=303)
    marked = jnp.ones((1, 303), bool)
    features = Features(
        jnp.zeros((1, 303), jnp.int32), aux, embeddings, marked, marked, jnp.arange(1)
    )
    last = jnp.ones((1, 303, CONFIG.target_hidden_size))
    _, progress = ttt_loss(CONFIG, params, teacher, features, last, steps=1, decay=DECAY)
    assert progress.agreement.tolist() == [1.0]  # of 301 columns


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
    optimizer = optax.sgd(0.05, momentum=0.0)  # whose state has arrays
    step = train_step(CONFIG, optimizer, steps=STEPS, decay=DECAY)
    given = params, optimizer.init(params)
    params, state, progress = step(*given, teacher, features, last)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    close(progress.loss, loss)
    jax.tree.map(close, params, expected)
    for _ in range(5):
        params, state, progress = step(params, state, teacher, features, last)
    assert float(progress.loss) < float(loss) - 0.1


# EAGLE's own rules: no package holds its trainer, so they are written out here


SAID = np.array([1, 2, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16])  # of 17; token 0 can be said, or not


def eagle_example(*, with_zero):
    """The example with a whole head, holes in the mask, and answers that end with the text."""
    params, teacher, features, last = example()
    rng = np.random.default_rng(2)
    said = np.where(SAID == 1, 0, SAID) if with_zero else SAID
    head = jnp.asarray(rng.normal(size=(CONFIG.target_hidden_size, 17)), jnp.float32)
    teacher = teacher._replace(
        kernel=head[:, said],
        head=head,
        in_draft=jnp.zeros(17, bool).at[said].set(True),
        behind=jnp.asarray(rng.normal(size=CONFIG.hidden_size), jnp.float32),
    )
    answer = features.answer.at[:, 4].set(False)
    return params, teacher, features._replace(answer=answer), last


def eagle_loss(params, teacher, features, last):
    """`Model.forward` of eagle/traineagle3/cnets.py, column by column, in float64.

    Everything moves one to the left before the first step, and again after each: token 0 and
    logits of zero come in at the end. The loss mask only moves after a step.
    """
    norm, head, behind = (np.float64(p) for p in (teacher.norm, teacher.head, teacher.behind))
    in_draft, kernel = np.asarray(teacher.in_draft), reference.Tree(params)("lm_head.kernel")
    loss = 0.0
    for row, size in enumerate(LENGTHS):
        aux, embeddings, states = (
            np.float64(part[row, :size]) for part in (features.aux, features.embeddings, last)
        )
        rms = np.sqrt(np.mean(states**2, axis=1, keepdims=True) + teacher.eps)
        target = np.concatenate([norm * states / rms @ head, np.zeros((1 + STEPS, 17))])[1:]
        marks = np.concatenate([np.asarray(features.answer[row, :size]), np.zeros(STEPS, bool)])
        text = np.concatenate([embeddings, behind[None]])
        reads = reference.unroll(CONFIG, params, aux, text, STEPS)[1]
        for k in range(STEPS):
            for t in range(size):
                if marks[t + k] and in_draft[target[t + k].argmax()]:
                    wanted = reference.softmax(target[t + k][in_draft])
                    said = np.log(reference.softmax(reads[k, t] @ kernel))
                    loss -= DECAY**k * (wanted @ said) / features.valid.size
    return loss


def eagle_run(params, *rest):
    def loss(p):
        return ttt_loss(CONFIG, p, *rest, steps=STEPS, decay=DECAY, recipe=RECIPES["eagle"])[0]

    with jax.disable_jit(), jax.default_matmul_precision("highest"):
        return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize("with_zero", [True, False])
def test_eagles_loss_agrees_with_its_rules(with_zero):
    params, *rest = eagle_example(with_zero=with_zero)
    assert float(eagle_run(params, *rest)[0]) == pytest.approx(eagle_loss(params, *rest), rel=1e-6)


def test_eagles_gradient_agrees_with_float64_differences_in_every_parameter():
    params, *rest = eagle_example(with_zero=True)
    gradients = eagle_run(params, *rest)[1]
    rng = np.random.default_rng(3)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        direction = rng.normal(size=gradient.shape)

        def moved(distance, path=path, direction=direction):
            there = jax.tree_util.tree_map_with_path(
                lambda at, p: np.float64(p) + (distance * direction if at == path else 0.0), params
            )
            return eagle_loss(there, *rest)

        slope = (moved(1e-5) - moved(-1e-5)) / 2e-5
        products = np.float64(gradient) * direction
        size = np.sqrt(np.sum(products**2))
        assert abs(np.sum(products) - slope) < 1e-5 * size, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("head", "the teacher has no head or no in_draft, expected both for this recipe"),
        ("in_draft", "the teacher has no head or no in_draft, expected both for this recipe"),
        ("behind", "the teacher has no behind, expected it for this recipe"),
    ],
)
def test_a_teacher_that_lacks_what_a_recipe_needs_is_refused(part, message):
    params, teacher, *rest = eagle_example(with_zero=True)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # JAX adds notes; see below
        eagle_run(params, teacher._replace(**{part: None}), *rest)
    assert caught.value.args == (message,)


def test_an_optimiser_step_takes_a_recipe_and_leaves_its_frozen_head_alone():
    params, *rest = example()
    before = jax.tree.map(np.asarray, params)
    optimizer = optax.sgd(0.05)
    step = train_step(CONFIG, optimizer, steps=2, decay=1.0, recipe=RECIPES["speculators"])
    after = step(params, optimizer.init(params), *rest)[0]
    moved = jax.tree.map(lambda old, new: bool((old != new).any()), before, after)
    still = {path[0].key for path, leaf in jax.tree_util.tree_leaves_with_path(moved) if not leaf}
    assert still == {"lm_head"}

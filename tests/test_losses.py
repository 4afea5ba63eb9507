"""Soft-target cross-entropy, masks, step weights and how a recipe joins the steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.losses import (
    OURS,
    RECIPES,
    kl_divergence,
    masked_sum,
    soft_target_cross_entropy,
    step_weights,
)
from tests.conftest import close
from tests.reference import softmax


def test_cross_entropy_is_minus_the_sum_of_p_log_q():
    rng = np.random.default_rng(0)
    logits, teacher = 3 * rng.normal(size=(2, 2, 3, 5))
    expected = -np.sum(softmax(teacher) * np.log(softmax(logits)), -1)
    close(soft_target_cross_entropy(jnp.float32(logits), jnp.float32(teacher)), expected)


def test_a_perfect_draft_is_left_with_the_teachers_entropy():
    even = jnp.zeros((1, 4))
    close(soft_target_cross_entropy(even, even), [np.log(4.0)])


def test_the_gradient_is_q_minus_p_and_none_reaches_the_teacher():
    logits, teacher = jnp.array([1.0, 2.0, -1.0]), jnp.array([0.5, 0.0, 0.5])
    to_draft, to_teacher = jax.grad(soft_target_cross_entropy, argnums=(0, 1))(logits, teacher)
    close(to_draft, softmax(np.float64(logits)) - softmax(np.float64(teacher)))
    assert not to_teacher.any()


def test_large_and_half_precision_logits_are_handled_in_float32():
    logits = jnp.array([3e4, 0.0], jnp.float16)
    found = soft_target_cross_entropy(logits, jnp.array([0.0, 0.0], jnp.float16))
    assert found.dtype == jnp.float32
    close(found, 1.5e4)


def test_half_precision_logits_are_normalised_in_float32():
    logits = jnp.array([0.1, 0.7, -1.3], jnp.bfloat16)
    teacher = np.array([0.3, 0.5, 0.2])
    expected = -np.sum(softmax(teacher) * np.log(softmax(np.float64(logits))))
    close(soft_target_cross_entropy(logits, jnp.float32(teacher)), expected)


def test_columns_are_counted_beyond_what_half_precision_can_count():
    _, number = masked_sum(jnp.zeros((1, 301)), jnp.ones((1, 301), bool))
    assert float(number) == 301.0


def test_what_is_masked_counts_for_nothing_even_where_it_is_not_a_number():
    values = jnp.array([[1.0, jnp.nan], [2.0, jnp.inf]])
    total, number = masked_sum(values, jnp.array([[True, False], [True, False]]))
    assert (float(total), float(number)) == (3.0, 2.0)
    empty = masked_sum(values, jnp.zeros((2, 2), bool))
    assert [float(part) for part in empty] == [0.0, 0.0]


def test_a_step_weighs_decay_times_the_one_before():
    close(step_weights(4, 0.5), [1.0, 0.5, 0.25, 0.125])
    close(step_weights(3, 1.0), [1.0, 1.0, 1.0])


def test_kl_divergence_is_zero_for_a_perfect_draft_and_has_the_same_gradient():
    rng = np.random.default_rng(1)
    logits, teacher = jnp.asarray(3 * rng.normal(size=(2, 7)), jnp.float32)
    p, q = softmax(np.float64(teacher)), softmax(np.float64(logits))
    close(kl_divergence(logits, teacher), np.sum(p * np.log(p / q)))
    close(kl_divergence(teacher, teacher), 0.0)
    close(jax.grad(kl_divergence)(logits, teacher), q - p)


# Two steps of sums 6 and 10 over 3 columns and over none, of a batch of 8, each step half the last.
JOINED = {
    "ours": (6 / 3 + 0.5 * 10) / 1.5,
    "specforge": 6 / 8 + 0.5 * 10 / 8,
    "eagle": 6 / 8 + 0.5 * 10 / 8,
    "speculators": 6 / (3 + 1e-5) + 0.5 * 10 / (1 + 1e-5),
    "modelopt": 6 / (3 + 1e-5) + 0.5 * 10 / (1 + 1e-5),
}


@pytest.mark.parametrize("name", JOINED)
def test_a_recipe_joins_the_steps(name):
    recipe = {"ours": OURS, **RECIPES}[name]
    loss = recipe.join(jnp.array([6.0, 10.0]), jnp.array([3.0, 0.0]), 8, 0.5)
    close(loss, JOINED[name], 2e-7)


def test_recipes_differ_in_these_rules():
    """As the frameworks write them; their own runs are the judges of all but `eagle`."""
    rules = {name: (r.steps, r.decay, r.offset, r.last) for name, r in RECIPES.items()}
    assert rules == {
        "specforge": (7, 0.8, 0, False),
        "eagle": (7, 0.8, 0, True),
        "speculators": (3, 1.0, 1, True),
        "modelopt": (3, 0.9, 1, True),
    }
    assert {name for name, r in RECIPES.items() if r.droppable} == {"specforge", "eagle"}
    assert {name for name, r in RECIPES.items() if not r.trains_head} == {"speculators"}
    assert {name for name, r in RECIPES.items() if not r.entropy} == {"speculators"}
    assert {name for name, r in RECIPES.items() if r.reads_behind} == {"eagle"}


def test_a_long_mask_is_counted_to_the_last_column():
    """A count in bfloat16 would stop at 256."""
    values = jnp.ones((1, 257), jnp.bfloat16)
    assert float(masked_sum(values, jnp.ones((1, 257), bool))[1]) == 257.0


def test_bfloat16_logits_are_widened_before_they_are_normalised():
    rng = np.random.default_rng(6)
    logits, teacher = (rng.normal(size=(3, 64)).astype(np.float32) * 8 for _ in range(2))
    rounded = [np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) for x in (logits, teacher)]
    q, p = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in rounded)
    expected = -(np.exp(p) * q).sum(-1)
    found = soft_target_cross_entropy(
        jnp.asarray(logits, jnp.bfloat16), jnp.asarray(teacher, jnp.bfloat16)
    )
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=1e-5)

"""Angles of every scaling against float64 formulas, near and far, and where lengths decide."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.rope import rotation, score_factor
from tests import reference
from tests.conftest import close

HEAD = 16
SHORT = tuple(1.0 + 0.1 * i for i in range(8))
LONG = tuple(2.0 + 0.7 * i for i in range(8))
SCALINGS = {
    "default": None,
    "linear": LinearScaling(4.0),
    "dynamic": DynamicScaling(4.0, 2048),
    "llama3": Llama3Scaling(8.0, 1.0, 4.0, 8192),
    "llama3, ramp": Llama3Scaling(32.0, 1.0, 64.0, 128),
    "yarn": YarnScaling(32.0, 2048),
    "yarn, factor 1": YarnScaling(1.0, 2048),
    "yarn, not truncated": YarnScaling(8.0, 4096, truncate=False),
    "yarn, other ramp": YarnScaling(8.0, 4096, beta_fast=16.0, beta_slow=2.0),
    "yarn, ramp of no width": YarnScaling(8.0, 6, beta_fast=1.0, beta_slow=1.0),
    "yarn, ramp past the end": YarnScaling(8.0, 10**9, beta_fast=32.0, beta_slow=1.0),
    "yarn, mscale": YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=0.7),
    "yarn, half an mscale": YarnScaling(40.0, 4096, mscale=0.5),
    "yarn, attention factor": YarnScaling(40.0, 4096, attention_factor=1.3),
    "longrope": LongRopeScaling(SHORT, LONG, 4096, 32.0),
    "longrope, factor 1": LongRopeScaling(SHORT, LONG, 4096, 1.0),
    "longrope, attention factor": LongRopeScaling(SHORT, LONG, 4096, 32.0, attention_factor=1.2),
}


def agrees(config, positions, head_dim=HEAD):
    frequencies, magnitude = reference.inverse_frequencies(config, head_dim, max(positions) + 1)
    angles = np.multiply.outer(np.float64(positions), frequencies)
    found = rotation(config, head_dim, jnp.asarray(positions)[None])
    # The angle is a float32 product: two roundings of its own size.
    tolerance = 1e-6 + 2.0**-22 * max(1.0, angles.max())
    close(found.cos[0], magnitude * np.cos(angles), tolerance)
    close(found.sin[0], magnitude * np.sin(angles), tolerance)
    assert found.cos.dtype == found.sin.dtype == jnp.float32


@pytest.mark.parametrize("start", [0, 2040, 20000])
@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_agrees_with_its_formula(name, start):
    agrees(RopeConfig(scaling=SCALINGS[name]), list(range(start, start + 64)))


@pytest.mark.parametrize("theta", [100.0, 500000.0])
@pytest.mark.parametrize("name", SCALINGS)
def test_every_scaling_honours_the_base(name, theta):
    agrees(RopeConfig(theta=theta, scaling=SCALINGS[name]), [0, 1, 17, 5000])


@pytest.mark.parametrize("name", [name for name in SCALINGS if "longrope" not in name])
def test_only_part_of_a_head_may_turn(name):
    config = RopeConfig(partial=0.5, scaling=SCALINGS[name])
    agrees(config, [0, 1, 17, 5000])
    assert rotation(config, HEAD, jnp.zeros((1, 1), jnp.int32)).cos.shape == (1, 1, 4)


def test_plain_angles_are_the_position_times_powers_of_the_base():
    found = rotation(RopeConfig(theta=100.0), 4, jnp.array([[0, 1, 10]]))
    close(found.cos[0], np.cos([[0.0, 0.0], [1.0, 0.1], [10.0, 1.0]]))
    close(found.sin[0], np.sin([[0.0, 0.0], [1.0, 0.1], [10.0, 1.0]]))


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_rows_own_length_decides_and_not_its_neighbours(name):
    config = RopeConfig(scaling=SCALINGS[name])
    rows = jnp.array([[0, 1, 2], [0, 1, 9000]])
    together = rotation(config, HEAD, rows)
    for row in range(2):
        alone = rotation(config, HEAD, rows[row : row + 1])
        np.testing.assert_array_equal(together.cos[row], alone.cos[0])
        np.testing.assert_array_equal(together.sin[row], alone.sin[0])
    assert not np.allclose(together.sin[0, 1], together.sin[1, 1], atol=1e-3)


def test_dynamic_and_longrope_change_just_past_the_original_length():
    for scaling in (DynamicScaling(4.0, 100), LongRopeScaling(SHORT, LONG, 100, 4.0)):
        config = RopeConfig(scaling=scaling)
        last_inside = rotation(config, HEAD, jnp.array([[1, 99]])).sin[0, 0]
        first_outside = rotation(config, HEAD, jnp.array([[1, 100]])).sin[0, 0]
        inside = rotation(config, HEAD, jnp.array([[1, 2]])).sin[0, 0]
        np.testing.assert_array_equal(last_inside, inside)
        assert not np.array_equal(first_outside, inside)


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        # The logarithm of e**2 is 2.
        (YarnScaling(math.e**2, 64, mscale=1.0, mscale_all_dim=1.0), 1.2**2),
        (YarnScaling(math.e**2, 64, mscale=2.0, mscale_all_dim=0.5), 1.1**2),
        (YarnScaling(math.e**2, 64, mscale_all_dim=0.5), 1.1**2),
        (YarnScaling(math.e**2, 64, mscale_all_dim=0.5, attention_factor=3.0), 1.1**2),
        (YarnScaling(math.e**2, 64, mscale=1.0), 1.0),
        (YarnScaling(math.e**2, 64, mscale=1.0, mscale_all_dim=0.0), 1.0),
        (YarnScaling(0.5, 64, mscale=1.0, mscale_all_dim=1.0), 1.0),
        (LinearScaling(4.0), 1.0),
        (None, 1.0),
    ],
)
def test_only_deepseeks_yarn_makes_scores_larger(scaling, factor):
    assert score_factor(RopeConfig(scaling=scaling)) == pytest.approx(factor)


def test_positions_come_in_any_order():
    config = RopeConfig(scaling=SCALINGS["dynamic"])
    forth = rotation(config, HEAD, jnp.array([[3, 5000, 1]]))
    back = rotation(config, HEAD, jnp.array([[1, 5000, 3]]))
    np.testing.assert_array_equal(forth.cos[:, ::-1], back.cos)

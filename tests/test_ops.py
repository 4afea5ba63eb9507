"""The parameter-free arithmetic against NumPy, drawings and hand-made numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.ops import due_at, project, read_at, rms_norm, rotate, shift_left
from eagle3_jax.structs import Rotation
from tests.conftest import close

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


# Norm


def test_rms_norm_divides_by_the_root_mean_square():
    x = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    found = rms_norm(x, jnp.array([2.0, -1.0]), 0.5)
    root = math.sqrt(12.5 + 0.5)
    close(found, [[6.0 / root, -4.0 / root], [0.0, 0.0]])


def test_rms_norm_rounds_before_it_multiplies_by_the_weight():
    x = normal(64, 8).astype(jnp.bfloat16)
    scale = normal(8).astype(jnp.bfloat16)
    wide = np.asarray(x, np.float32)
    normed = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + np.float32(1e-5))
    rounded = jnp.asarray(normed, jnp.bfloat16) * scale
    late = (jnp.asarray(normed) * scale.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (rounded != late).any()  # or else this test could not tell
    found = rms_norm(x, scale, 1e-5)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(found), np.float32(rounded))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_rms_norm_survives_a_massive_activation(dtype):
    x = normal(2, 16).at[0, 3].set(25_000.0).astype(dtype)
    found = rms_norm(x, jnp.ones(16, dtype), 1e-5)
    wide = np.float64(x)
    close(found, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5), 2**-7)


# Rotation


def test_rotation_pairs_the_first_half_with_the_second():
    x = jnp.array([1.0, 2.0, 3.0, 4.0])[None, None, None]
    quarter, half = Rotation(*(jnp.array([v])[None] for v in ([0.0, -1.0], [1.0, 0.0])))
    # The pair (1, 3) turns by 90 degrees, the pair (2, 4) by 180.
    close(rotate(x, Rotation(quarter, half))[0, 0, 0], [-3.0, -2.0, 1.0, -4.0])


def test_interleaved_rotation_pairs_neighbours():
    x = jnp.array([1.0, 2.0, 3.0, 4.0])[None, None, None]
    quarter, half = Rotation(*(jnp.array([v])[None] for v in ([0.0, -1.0], [1.0, 0.0])))
    # The pair (1, 2) turns by 90 degrees, the pair (3, 4) by 180.
    found = rotate(x, Rotation(quarter, half), interleaved=True)
    close(found[0, 0, 0], [-2.0, 1.0, -3.0, -4.0])


@pytest.mark.parametrize("width", [6, 8])
def test_interleaved_rotation_is_the_product_of_complex_numbers(width):
    x, angles = normal(2, 3, 4, width), 3 * normal(2, 3, 3)
    found = rotate(x, Rotation(jnp.cos(angles), jnp.sin(angles)), interleaved=True)
    whole = np.float64(x)
    numbers = whole[..., 0:6:2] + 1j * whole[..., 1:6:2]
    numbers *= np.exp(1j * np.float64(angles))[:, :, None]
    close(found[..., 0:6:2], numbers.real)
    close(found[..., 1:6:2], numbers.imag)
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])


def test_rotation_leaves_what_it_does_not_turn_untouched():
    x = normal(1, 2, 3, 6)
    turn = Rotation(jnp.zeros((1, 2, 1)), jnp.ones((1, 2, 1)))
    found = rotate(x, turn)
    np.testing.assert_array_equal(found[..., 2:], x[..., 2:])
    close(found[..., 0], -x[..., 1])
    close(found[..., 1], x[..., 0])


def test_rotation_turns_every_position_by_its_own_angles():
    x = jnp.ones((2, 2, 1, 2))
    angles = np.array([[0.0, 1.0], [2.0, 3.0]])[..., None]
    found = rotate(x, Rotation(jnp.cos(jnp.asarray(angles)), jnp.sin(jnp.asarray(angles))))
    close(found[:, :, 0, 0], (np.cos(angles) - np.sin(angles))[..., 0])
    close(found[:, :, 0, 1], (np.cos(angles) + np.sin(angles))[..., 0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation_computes_in_float32_and_rounds_once(interleaved):
    x = normal(1, 3, 2, 4).astype(jnp.bfloat16)
    turn = Rotation(normal(1, 3, 2), normal(1, 3, 2))
    wide = rotate(x.astype(jnp.float32), turn, interleaved=interleaved).astype(jnp.bfloat16)
    found = rotate(x, turn, interleaved=interleaved)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.float32(found), np.float32(wide))


# Shifts


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        (0, [1, 2, 3, 4]),
        (1, [2, 3, 4, 0]),
        (3, [4, 0, 0, 0]),
        (4, [0, 0, 0, 0]),
        (5, [0, 0, 0, 0]),
        (9, [0, 0, 0, 0]),
    ],
)
def test_a_shift_brings_zeros_in_at_the_end(by, expected):
    x = jnp.array([[1, 2, 3, 4]])
    assert shift_left(x, by)[0].tolist() == expected
    assert jax.jit(shift_left)(x, by)[0].tolist() == expected
    assert shift_left(x[..., None].repeat(2, -1), by)[0, :, 1].tolist() == expected
    assert shift_left(x > 0, by)[0].tolist() == [bool(v) for v in expected]


def test_a_shift_keeps_rows_apart():
    assert shift_left(jnp.array([[1, 2], [3, 4]]), 1).tolist() == [[2, 0], [4, 0]]


def test_step_k_reads_token_t_plus_1_plus_k_and_is_due_the_one_after():
    tokens = jnp.array([[10, 11, 12, 13, 14]])
    assert read_at(tokens, 0)[0].tolist() == [11, 12, 13, 14, 0]
    assert read_at(tokens, 2)[0].tolist() == [13, 14, 0, 0, 0]
    assert due_at(tokens, 0)[0].tolist() == [12, 13, 14, 0, 0]
    assert due_at(tokens, 2)[0].tolist() == [14, 0, 0, 0, 0]


# Head


def test_the_head_accumulates_in_float32():
    # 1 + 2**-9 in every product of a bfloat16 head would be lost at each addition.
    x, kernel = normal(3, 512).astype(jnp.bfloat16), normal(512, 5).astype(jnp.bfloat16)
    found = project(x, kernel)
    assert found.dtype == jnp.float32
    close(found, np.float64(x) @ np.float64(kernel))


def test_logits_of_50_keep_their_order_in_bfloat16():
    # 50 and 50.0625 are one number in bfloat16, two in the head.
    x = jnp.array([[50.0, 0.0625]], jnp.bfloat16)
    kernel = jnp.array([[1.0, 1.0], [0.0, 1.0]], jnp.bfloat16)
    assert project(x, kernel)[0].tolist() == [50.0, 50.0625]

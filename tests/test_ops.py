"""The parameter-free arithmetic against NumPy, drawings and hand-made numbers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.ops import (
    attend,
    due_at,
    project,
    read_at,
    rms_norm,
    rotate,
    shift_left,
    visible,
    write_branch,
    write_context,
)
from eagle3_jax.structs import KV, Rotation
from tests.conftest import close

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def drawn(mask):
    """A mask as a drawing, one line a query column."""
    return ["".join(".x"[int(seen)] for seen in row) for row in np.asarray(mask)]


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


# Masks


def test_a_column_sees_itself_and_what_came_before():
    assert drawn(visible(jnp.arange(4)[None], 4)[0]) == [
        "x...",
        "xx..",
        "xxx.",
        "xxxx",
    ]


def test_columns_of_a_cache_stand_at_their_slots():
    mask = visible(jnp.array([[0, 1], [3, 4]]), 6)
    assert drawn(mask[0]) == ["x.....", "xx...."]
    assert drawn(mask[1]) == ["xxxx..", "xxxxx."]


def test_a_window_hides_what_is_far_behind():
    assert drawn(visible(jnp.arange(5)[None], 5, window=2)[0]) == [
        "x....",
        "xx...",
        ".xx..",
        "..xx.",
        "...xx",
    ]


def test_a_window_moves_on_with_every_step():
    assert drawn(visible(jnp.arange(5)[None], 5, lead=1, window=3)[0]) == [
        "x....",
        "xx...",
        ".xx..",
        "..xx.",
        "...xx",
    ]
    assert drawn(visible(jnp.arange(3)[None], 3, lead=1)[0]) == ["x..", "xx.", "xxx"]


def test_nobody_sees_padding():
    valid = jnp.array([[True, False, True, True], [True, True, False, False]])
    mask = visible(jnp.broadcast_to(jnp.arange(4), (2, 4)), 4, key_valid=valid)
    assert drawn(mask[0]) == ["x...", "x...", "x.x.", "x.xx"]
    assert drawn(mask[1]) == ["x...", "xx..", "xx..", "xx.."]


# Attention


def dense(query, keys, values, mask, scale):
    """One query head at a time over one list of keys, in float64."""
    query, keys, values = (np.float64(part) for part in (query, keys, values))
    scores = np.where(mask, keys @ query * scale, -np.inf)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 3), (4, 1)])
@pytest.mark.parametrize("slot", [None, 0, 1, 2])
@pytest.mark.parametrize("value_width", [4, 3, 6])
def test_attention_is_one_softmax_over_context_and_own_branch(heads, kv_heads, slot, value_width):
    rows, columns, length, slots, width = 2, 3, 5, 3, 4
    query, widths = 2 * normal(rows, columns, heads, width), (width, value_width)
    context = KV(*(normal(rows, kv_heads, length, w) for w in widths))
    branch = KV(*(normal(rows, kv_heads, columns, slots, w) for w in widths))
    mask = jnp.asarray(RNG.random((rows, columns, length)) < 0.6).at[..., 0].set(True)
    found = jax.jit(attend, static_argnums=5)(
        query,
        context,
        mask,
        None if slot is None else branch,
        None if slot is None else jnp.asarray(slot),
        0.7,
    )
    assert found.shape == (rows, columns, heads, value_width)
    filled = 0 if slot is None else slot + 1
    for row, column, head in np.ndindex(rows, columns, heads):
        kv = head // (heads // kv_heads)
        keys, values = (
            np.concatenate([part[row, kv], own[row, kv, column, :filled]])
            for part, own in zip(context, branch, strict=True)
        )
        seen = np.concatenate([mask[row, column], np.ones(filled, bool)])
        expected = dense(query[row, column, head], keys, values, seen, 0.7)
        close(found[row, column, head], expected)


def test_attention_with_an_empty_context_sees_its_branch_alone():
    query, context = normal(1, 1, 1, 2), KV(normal(1, 1, 2, 2), normal(1, 1, 2, 2))
    branch = KV(normal(1, 1, 1, 1, 2), jnp.array([5.0, 7.0])[None, None, None, None])
    nothing = jnp.zeros((1, 1, 2), bool)
    close(attend(query, context, nothing, branch, jnp.asarray(0), 1.0)[0, 0, 0], [5.0, 7.0])


def test_attention_survives_scores_that_overflow_exp():
    query = jnp.full((1, 1, 1, 2), 300.0)
    keys = jnp.array([[1.0, 1.0], [1.0, 0.0]])[None, None]
    values = jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, None]
    branch = KV(1.5 * keys[:, :, None, :1], values[:, :, None, 1:])
    seen = jnp.ones((1, 1, 2), bool)
    close(attend(query, KV(keys, values), seen, None, None, 1.0)[0, 0, 0], [1.0, 2.0])
    found = attend(query, KV(keys, values), seen, branch, jnp.asarray(0), 1.0)
    close(found[0, 0, 0], [3.0, 4.0])


def test_bfloat16_attention_scores_are_float32():
    # Scores of about 256 are 2 apart in bfloat16: rounded ones would lose the winner.
    query = jnp.full((1, 1, 1, 2), 16.0, jnp.bfloat16)
    keys = jnp.array([[8.0, 8.0], [8.0, 8.0625]], jnp.bfloat16)[None, None]
    values = jnp.eye(2, dtype=jnp.bfloat16)[None, None]
    seen = jnp.ones((1, 1, 2), bool)
    found = attend(query, KV(keys, values), seen, None, None, 1.0)[0, 0, 0]
    assert found.dtype == jnp.bfloat16
    close(found, [1 / (1 + math.e), math.e / (1 + math.e)], 2**-8)
    branch = KV(keys[:, :, None, 1:], values[:, :, None, 1:])
    first = jnp.array([[[True, False]]])
    merged = attend(query, KV(keys, values), first, branch, jnp.asarray(0), 1.0)[0, 0, 0]
    close(merged, [1 / (1 + math.e), math.e / (1 + math.e)], 2**-8)


def test_the_gradient_of_merged_attention_is_that_of_one_softmax():
    query, context = normal(1, 1, 1, 2), KV(normal(1, 1, 2, 2), normal(1, 1, 2, 2))
    branch = KV(*(part[:, :, None] for part in (normal(1, 1, 2, 2), normal(1, 1, 2, 2))))
    both = KV(*(jnp.concatenate([c, b[:, :, 0]], 2) for c, b in zip(context, branch, strict=True)))

    def merged(q):
        mask = jnp.ones((1, 1, 2), bool)
        return jnp.sum(attend(q, context, mask, branch, jnp.asarray(1), 1.0)[..., 0])

    def single(q):
        return jnp.sum(attend(q, both, jnp.ones((1, 1, 4), bool), None, None, 1.0)[..., 0])

    close(jax.jit(jax.grad(merged))(query), jax.jit(jax.grad(single))(query))


# Memory


def test_new_keys_go_to_each_rows_own_slot():
    context = KV(jnp.zeros((2, 1, 5, 1)), jnp.ones((2, 1, 5, 1)))
    new = KV(jnp.array([2.0, 3.0]).reshape(1, 1, 2, 1).repeat(2, 0), jnp.full((2, 1, 2, 1), 4.0))
    found = write_context(context, new, jnp.array([0, 3]))
    assert found.keys[:, 0, :, 0].tolist() == [[2, 3, 0, 0, 0], [0, 0, 0, 2, 3]]
    assert found.values[:, 0, :, 0].tolist() == [[4, 4, 1, 1, 1], [1, 1, 1, 4, 4]]


def test_without_a_slot_the_new_keys_are_the_context():
    new = KV(normal(1, 1, 2, 1), normal(1, 1, 2, 1))
    assert write_context(None, new, None) is new
    with pytest.raises(AssertionError, match="a start slot needs a context to write into"):
        write_context(None, new, jnp.array([0]))


def test_keys_and_values_of_two_widths_are_written_alike():
    context = KV(jnp.zeros((1, 1, 3, 2)), jnp.zeros((1, 1, 3, 1)))
    new = KV(jnp.full((1, 1, 1, 2), 5.0), jnp.full((1, 1, 1, 1), 6.0))
    found = write_context(context, new, jnp.array([1]))
    assert found.keys[0, 0].tolist() == [[0, 0], [5, 5], [0, 0]]
    assert found.values[0, 0].tolist() == [[0], [6], [0]]
    branch = write_branch(KV(*(part[:, :, None] for part in context)), new, jnp.asarray(2))
    assert branch.keys[0, 0, 0].tolist() == [[0, 0], [0, 0], [5, 5]]
    assert branch.values[0, 0, 0].tolist() == [[0], [0], [6]]


def test_a_branch_slot_is_filled_for_every_column():
    branch = KV(jnp.zeros((1, 1, 2, 3, 1)), jnp.zeros((1, 1, 2, 3, 1)))
    new = KV(jnp.array([5.0, 6.0]).reshape(1, 1, 2, 1), jnp.array([7.0, 8.0]).reshape(1, 1, 2, 1))
    found = write_branch(branch, new, jnp.asarray(1))
    assert found.keys[0, 0, :, :, 0].tolist() == [[0, 5, 0], [0, 6, 0]]
    assert found.values[0, 0, :, :, 0].tolist() == [[0, 7, 0], [0, 8, 0]]


def test_keys_are_stored_in_the_type_of_the_memory():
    half = KV(jnp.zeros((1, 1, 3, 1), jnp.bfloat16), jnp.zeros((1, 1, 3, 1), jnp.bfloat16))
    new = KV(normal(1, 1, 1, 1), normal(1, 1, 1, 1))
    assert write_context(half, new, jnp.array([1])).keys.dtype == jnp.bfloat16
    branch = KV(*(part[:, :, None] for part in half))
    assert write_branch(branch, new, jnp.asarray(1)).values.dtype == jnp.bfloat16


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

"""Attention against NumPy, its masks drawn; in one piece and in blocks."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax import attention
from eagle3_jax.attention import attend, visible, write_branch, write_context
from eagle3_jax.structs import KV, View
from tests.conftest import close

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def drawn(mask):
    """A mask as a drawing, one line a query column."""
    return ["".join(".x"[int(seen)] for seen in row) for row in np.asarray(mask)]


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


# One piece


def dense(query, keys, values, mask, scale):
    """One query head at a time over one list of keys, in float64."""
    query, keys, values = (np.float64(part) for part in (query, keys, values))
    scores = np.where(mask, keys @ query * scale, -np.inf)
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ values


def expected_of(query, context, branch, view, scale):
    """Attention by hand: every row, column and head for itself."""
    rows, columns, heads, _ = query.shape
    kv_heads, length = context.keys.shape[1:3]
    slots = np.arange(columns)[None].repeat(rows, 0) if view.slots is None else view.slots
    mask = visible(jnp.asarray(slots), length, lead=view.lead, window=view.window)
    if view.key_valid is not None:
        mask &= view.key_valid[:, None]
    filled = 0 if view.slot is None else int(view.slot) + 1
    first = 0 if view.window is None else max(filled - view.window, 0)
    found = np.empty((rows, columns, heads, context.values.shape[-1]))
    for row, column, head in np.ndindex(rows, columns, heads):
        kv = head // (heads // kv_heads)
        keys, values = (
            np.concatenate([part[row, kv], own[row, kv, column, first:filled]])
            for part, own in zip(context, branch, strict=True)
        )
        seen = np.concatenate([mask[row, column], np.ones(filled - first, bool)])
        found[row, column, head] = dense(query[row, column, head], keys, values, seen, scale)
    return found


def drawn_case(rows, columns, length, heads, kv_heads, value_width=4):
    widths = (4, value_width)
    query = 2 * normal(rows, columns, heads, 4)
    context = KV(*(normal(rows, kv_heads, length, width) for width in widths))
    branch = KV(*(normal(rows, kv_heads, columns, 3, width) for width in widths))
    return query, context, branch


def given(slot):
    return None if slot is None else jnp.asarray(slot)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 3), (4, 1)])
@pytest.mark.parametrize("slot", [None, 0, 1, 2])
@pytest.mark.parametrize("value_width", [4, 3, 6])
def test_attention_is_one_softmax_over_context_and_own_branch(heads, kv_heads, slot, value_width):
    query, context, branch = drawn_case(2, 3, 5, heads, kv_heads, value_width)
    valid = jnp.asarray(RNG.random((2, 5)) < 0.6).at[:, 0].set(True)
    view = View(jnp.array([[4, 0, 2], [1, 3, 3]]), key_valid=valid, slot=given(slot))
    found = jax.jit(attend, static_argnums=4)(query, context, branch, view, 0.7)
    assert found.shape == (2, 3, heads, value_width)
    close(found, expected_of(query, context, branch, view, 0.7))


# Blocks


@pytest.mark.parametrize("columns", [5, 8, 27])
@pytest.mark.parametrize(
    ("slot", "window", "padded"),
    [(None, None, False), (1, None, True), (None, 3, False), (1, 9, False), (1, 1, False)],
)
def test_a_text_in_blocks_is_attended_as_in_one_piece(monkeypatch, columns, slot, window, padded):
    monkeypatch.setattr(attention, "_BLOCK", 4)
    monkeypatch.setattr(attention, "_SEGMENTS", 3)
    query, context, branch = drawn_case(2, columns, columns, 4, 2)
    valid = jnp.asarray(RNG.random((2, columns)) < 0.7).at[:, 0].set(True) if padded else None
    lead = 0 if slot is None else slot + 1
    view = View(window=window, lead=lead, key_valid=valid, slot=given(slot))
    found = jax.jit(lambda q, c, b: attend(q, c, b, view, 0.7))(query, context, branch)
    close(found, expected_of(query, context, branch, view, 0.7))


def test_columns_of_a_cache_read_it_from_their_slots_however_many_they_are(monkeypatch):
    monkeypatch.setattr(attention, "_BLOCK", 2)
    query, context, branch = drawn_case(2, 3, 5, 4, 2)
    view = View(jnp.array([[4, 0, 2], [1, 3, 3]]))
    found = attend(query, context, None, view, 0.7)
    close(found, expected_of(query, context, branch, view, 0.7))


def test_no_array_of_a_long_text_is_as_large_as_its_square():
    columns = 2048
    parts = jax.eval_shape(lambda: drawn_case(1, columns, columns, 2, 1))
    text = str(jax.make_jaxpr(lambda q, c, b: attend(q, c, b, View(slot=0), 1.0))(*parts))
    assert f"{attention._BLOCK},{columns}]" in text
    assert f"{columns},{columns}]" not in text


def test_gradients_in_blocks_are_those_of_one_piece(monkeypatch):
    query, context, branch = drawn_case(1, 9, 9, 2, 1)
    view = View(slot=jnp.asarray(1))

    def total(query, context, branch):
        return jnp.sum(jnp.sin(attend(query, context, branch, view, 0.7)))

    whole = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(query, context, branch)
    monkeypatch.setattr(attention, "_BLOCK", 4)
    blocks = jax.jit(jax.grad(lambda *parts: total(*parts), argnums=(0, 1, 2)))(
        query, context, branch
    )
    jax.tree.map(close, blocks, whole)


# Edges


def test_attention_with_an_empty_context_sees_its_branch_alone():
    query, context = normal(1, 1, 1, 2), KV(normal(1, 1, 2, 2), normal(1, 1, 2, 2))
    branch = KV(normal(1, 1, 1, 1, 2), jnp.array([5.0, 7.0])[None, None, None, None])
    view = View(key_valid=jnp.zeros((1, 2), bool), slot=jnp.asarray(0))
    close(attend(query, context, branch, view, 1.0)[0, 0, 0], [5.0, 7.0])


ALL = View(jnp.array([[9]]))


def test_attention_survives_scores_that_overflow_exp():
    query = jnp.full((1, 1, 1, 2), 300.0)
    keys = jnp.array([[1.0, 1.0], [1.0, 0.0]])[None, None]
    values = jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, None]
    branch = KV(1.5 * keys[:, :, None, :1], values[:, :, None, 1:])
    close(attend(query, KV(keys, values), None, ALL, 1.0)[0, 0, 0], [1.0, 2.0])
    found = attend(query, KV(keys, values), branch, ALL._replace(slot=jnp.asarray(0)), 1.0)
    close(found[0, 0, 0], [3.0, 4.0])


def test_bfloat16_attention_scores_are_float32():
    # Scores of about 256 are 2 apart in bfloat16: rounded ones would lose the winner.
    query = jnp.full((1, 1, 1, 2), 16.0, jnp.bfloat16)
    keys = jnp.array([[8.0, 8.0], [8.0, 8.0625]], jnp.bfloat16)[None, None]
    values = jnp.eye(2, dtype=jnp.bfloat16)[None, None]
    found = attend(query, KV(keys, values), None, ALL, 1.0)[0, 0, 0]
    assert found.dtype == jnp.bfloat16
    close(found, [1 / (1 + math.e), math.e / (1 + math.e)], 2**-8)
    branch = KV(keys[:, :, None, 1:], values[:, :, None, 1:])
    first = View(jnp.array([[0]]), slot=jnp.asarray(0))
    merged = attend(query, KV(keys, values), branch, first, 1.0)[0, 0, 0]
    close(merged, [1 / (1 + math.e), math.e / (1 + math.e)], 2**-8)


def test_the_gradient_of_merged_attention_is_that_of_one_softmax():
    query, context = normal(1, 1, 1, 2), KV(normal(1, 1, 2, 2), normal(1, 1, 2, 2))
    branch = KV(*(part[:, :, None] for part in (normal(1, 1, 2, 2), normal(1, 1, 2, 2))))
    both = KV(*(jnp.concatenate([c, b[:, :, 0]], 2) for c, b in zip(context, branch, strict=True)))

    def merged(q):
        return jnp.sum(attend(q, context, branch, ALL._replace(slot=1), 1.0)[..., 0])

    def single(q):
        return jnp.sum(attend(q, both, None, ALL, 1.0)[..., 0])

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

"""Cached greedy answers against uncached passes over the same tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.generate import Decoding, decode, greedy, idle, insert, prefill
from eagle3_jax.target import logits
from tests.conftest import close
from tests.test_target import run, target_params, tiny_target

CONFIG = tiny_target(num_layers=2)
PARAMS = target_params(CONFIG, seed=2)
NEW, BOUNDARIES = 5, (0, 1)
PROMPTS = np.random.default_rng(3).integers(0, 16, (3, 4)).astype(np.int32)
LENGTHS = np.array([4, 2, 3], np.int32)


begun = jax.jit(prefill, static_argnums=(0, 4))
going_on = jax.jit(decode, static_argnums=(0, 3, 4, 5))


@functools.partial(jax.jit, static_argnums=2)
def answer(prompts, lengths, end_ids):
    return greedy(
        CONFIG,
        PARAMS,
        prompts,
        lengths,
        max_new=NEW,
        end_ids=end_ids,
        boundaries=BOUNDARIES,
    )


@pytest.fixture(scope="module")
def answered():
    with jax.default_matmul_precision("highest"):
        return answer(PROMPTS, LENGTHS, ())


def uncached(prompt, new):
    """One row the slow way: the whole text again for every token, padded on the right."""
    text = list(prompt)
    for _ in range(new):
        padded = jnp.asarray([text + [0] * (10 - len(text))], jnp.int32)
        output = run(CONFIG, PARAMS, padded, (0, 1, 2))
        scores = logits(CONFIG, PARAMS, output.post_norm[0, len(text) - 1])
        text.append(int(jnp.argmax(scores)))
    return text[len(prompt) :], output.states[0]


def test_cached_answers_equal_recomputing_the_whole_text_for_every_token(answered):
    assert answered.live.all()
    for row, length in enumerate(LENGTHS):
        expected, _ = uncached(PROMPTS[row, :length], NEW)
        assert answered.ids[:, row].tolist() == expected
    assert len({tuple(column) for column in np.asarray(answered.ids).T}) > 1


def test_states_captured_on_the_way_are_those_of_a_full_pass(answered):
    assert answered.states.shape == (NEW, 3, len(BOUNDARIES) + 1, 8)
    for row, length in enumerate(LENGTHS):
        text = [*PROMPTS[row, :length], *np.asarray(answered.ids[:, row])]
        padded = jnp.asarray([text + [0] * (10 - len(text))], jnp.int32)
        output = run(CONFIG, PARAMS, padded, (0, 1, 2))
        close(answered.states[:, row], output.states[0, length : length + NEW])


def test_what_pads_a_prompt_and_who_stands_beside_it_change_nothing(answered):
    other = PROMPTS.copy()
    other[1, 2:] = 7  # padding
    other[0] = other[0][::-1]  # a neighbour
    again = answer(other, LENGTHS, ())
    for row in (1, 2):
        np.testing.assert_array_equal(again.ids[:, row], answered.ids[:, row])
        np.testing.assert_array_equal(again.states[:, row], answered.states[:, row])


def test_a_row_ends_with_its_end_token_and_the_others_go_on(answered):
    ids = np.asarray(answered.ids)
    end = int(ids[1, 0])
    stopped = answer(PROMPTS, LENGTHS, (end,))
    for row in range(3):
        own = ids[:, row].tolist()
        live = own.index(end) + 1 if end in own else NEW
        assert stopped.live[:, row].tolist() == [step < live for step in range(NEW)]
        assert stopped.ids[:live, row].tolist() == own[:live]


def test_prefill_chooses_after_the_last_token_of_each_prompt(answered):
    decoding, states = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    assert decoding.token.tolist() == answered.ids[0].tolist()
    assert decoding.length.tolist() == LENGTHS.tolist()
    assert not decoding.done.any()
    whole = run(CONFIG, PARAMS, jnp.asarray(PROMPTS), (*BOUNDARIES, 2))
    close(states, whole.states)


def test_idle_rows_are_done_and_read_nothing():
    waiting = idle(CONFIG, 3, 12, jnp.float32)
    assert waiting.done.all()
    _, captured = going_on(CONFIG, PARAMS, waiting, NEW, BOUNDARIES, ())
    assert not captured.live.any()


def test_prompts_are_inserted_into_the_rows_named_and_surplus_rows_are_dropped(answered):
    fresh, _ = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    waiting = idle(CONFIG, 3, 12, jnp.float32)
    stale = waiting._replace(memory=jax.tree.map(lambda part: part + 9.0, waiting.memory))
    # Prompt 0 goes to row 2, prompt 2 to row 0; prompt 1 is padding of the batch.
    placed = insert(stale, fresh, jnp.array([2, 3, 0]))
    assert isinstance(placed, Decoding)
    assert placed.done.tolist() == [False, True, False]
    assert placed.length.tolist() == [3, 0, 4]
    _, captured = going_on(CONFIG, PARAMS, placed, NEW, BOUNDARIES, ())
    assert captured.live[:, 0].all()
    assert captured.live[:, 2].all()
    assert not captured.live[:, 1].any()
    np.testing.assert_array_equal(captured.ids[:, 2], answered.ids[:, 0])
    np.testing.assert_array_equal(captured.ids[:, 0], answered.ids[:, 2])
    close(captured.states[:, 0], answered.states[:, 2])


def test_a_memory_keeps_its_type_whatever_is_inserted():
    fresh, _ = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    placed = insert(idle(CONFIG, 3, 12, jnp.bfloat16), fresh, jnp.arange(3))
    for old, new in zip(jax.tree.leaves(placed.memory), jax.tree.leaves(fresh.memory), strict=True):
        assert old.dtype == jnp.bfloat16
        np.testing.assert_array_equal(old[:, :, :4], new.astype(jnp.bfloat16))


def test_a_row_whose_memory_is_full_is_done():
    fresh, _ = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    placed = insert(idle(CONFIG, 3, 6, jnp.float32), fresh, jnp.arange(3))
    after, captured = going_on(CONFIG, PARAMS, placed, NEW, BOUNDARIES, ())
    # Room for 6: prompts of 4, 2 and 3 leave 2, 4 and 3 tokens.
    assert captured.live.sum(axis=0).tolist() == [2, 4, 3]
    assert after.done.all()
    assert after.length.tolist() == [5, 5, 5]  # the last slot, which is within the memory


def test_decoding_goes_on_where_it_stopped(answered):
    fresh, _ = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    placed = insert(idle(CONFIG, 3, 12, jnp.float32), fresh, jnp.arange(3))
    half, first = going_on(CONFIG, PARAMS, placed, 2, BOUNDARIES, ())
    _, second = going_on(CONFIG, PARAMS, half, NEW - 2, BOUNDARIES, ())
    np.testing.assert_array_equal(jnp.concatenate([first.ids, second.ids]), answered.ids)


def test_a_row_that_is_done_stays_as_it_ended(answered):
    end = int(answered.ids[0, 1])  # row 1 ends at once, row 0 never
    fresh, _ = begun(CONFIG, PARAMS, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), BOUNDARIES)
    placed = insert(idle(CONFIG, 3, 12, jnp.float32), fresh, jnp.arange(3))
    after, captured = going_on(CONFIG, PARAMS, placed, NEW, BOUNDARIES, (end,))
    assert after.done.tolist()[:2] == [False, True]
    assert after.length.tolist()[:2] == [LENGTHS[0] + NEW, LENGTHS[1] + 1]
    assert captured.ids[:, 1].tolist() == [end] * NEW

"""Recorded states against a pass over each text alone, and answers against plain greedy ones."""

from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from eagle3_jax.generate import greedy
from eagle3_jax.record import answer_prompts, bucket, read_texts
from tests.conftest import close
from tests.test_target import LAYERS, run, target_params, tiny_target

CONFIG = tiny_target()
PARAMS = target_params(CONFIG, seed=2)
EVERY = tuple(range(LAYERS))
RNG = np.random.default_rng(5)
# Two lengths of a batch, and lengths at both edges of a bucket.
TEXTS = [RNG.integers(0, 16, size).astype(np.int32) for size in (3, 64, 65, 1, 96, 7, 97)]
PROMPTS = [RNG.integers(0, 16, size).astype(np.int32) for size in (4, 2, 9, 1, 43)]
NEW, LONGEST = 21, 54  # the longest prompt and its answer fill the 64 slots to the last


def alone(ids):
    """A text's states at every boundary by a pass of its own."""
    padded = np.zeros((1, 128), np.int32)
    padded[0, : len(ids)] = ids
    return run(CONFIG, PARAMS, jnp.asarray(padded), (*EVERY, LAYERS)).states[0, : len(ids)]


def read(texts, **options):
    settings = {"boundaries": EVERY, "dtype": "float32", "columns": 200} | options
    found = list(read_texts(CONFIG, PARAMS, texts, **settings))
    assert sorted(one.number for one in found) == list(range(len(texts)))
    return sorted(found, key=lambda one: one.number)


def answered(prompts=PROMPTS, **options):
    settings = {
        "max_new": NEW,
        "longest": 99,
        "end_ids": (),
        "boundaries": EVERY,
        "dtype": "float32",
        "rows": 2,
    }
    found = list(answer_prompts(CONFIG, PARAMS, prompts, **(settings | options)))
    assert sorted(one.number for one in found) == list(range(len(prompts)))
    return [one for _, one in sorted((one.number, one) for one in found)]


@pytest.fixture(scope="module")
def plain():
    """Each prompt's answer, all of them together in one batch that is never refilled."""
    ids = np.zeros((len(PROMPTS), 43), np.int32)
    for row, prompt in enumerate(PROMPTS):
        ids[row, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in PROMPTS], np.int32)
    with jax.default_matmul_precision("highest"):
        captured = jax.jit(partial(greedy, CONFIG, max_new=NEW, end_ids=()))(
            PARAMS, jnp.asarray(ids), jnp.asarray(lengths)
        )
    return np.asarray(captured.ids).T


def test_a_bucket_is_64_or_96_times_a_power_of_two():
    assert [bucket(n) for n in (1, 64, 65, 96, 97, 128, 129, 193, 1500)] == [
        *(64, 64, 96, 96, 128, 128, 192, 256, 1536)
    ]


def test_states_are_those_of_each_text_alone_at_every_boundary():
    for one, text in zip(read(TEXTS), TEXTS, strict=True):
        np.testing.assert_array_equal(one.ids, text)
        assert one.states.shape == (len(text), LAYERS + 1, 8)
        close(one.states, alone(text))


def test_only_the_boundaries_asked_for_and_the_last_state_in_the_type_asked_for():
    [one] = read(TEXTS[:1], boundaries=(2,))
    [rounded] = read(TEXTS[:1], boundaries=(2,), dtype="bfloat16")
    close(one.states, alone(TEXTS[0])[:, [2, LAYERS]])
    assert rounded.states.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(rounded.states, one.states.astype(ml_dtypes.bfloat16))


def test_nothing_gives_nothing():
    assert read([]) == []
    assert answered([]) == []


def test_answers_of_a_stream_are_those_of_one_batch_and_states_those_of_a_whole_pass(plain):
    assert len({tuple(answer) for answer in plain}) > 1
    for one, prompt, answer in zip(answered(), PROMPTS, plain, strict=True):
        np.testing.assert_array_equal(one.ids, np.concatenate([prompt, answer]))
        close(one.states, alone(one.ids))


def test_an_answer_ends_with_its_end_token(plain):
    end = int(plain[0, 3])
    for one, prompt, answer in zip(answered(end_ids=(end,)), PROMPTS, plain, strict=True):
        own = answer.tolist()
        size = own.index(end) + 1 if end in own else NEW
        assert one.ids.tolist() == [*prompt, *own[:size]]
        assert len(one.states) == len(one.ids)


def test_prompt_and_answer_are_no_longer_than_the_longest(plain):
    sizes = [min(len(prompt) + NEW, LONGEST) for prompt in PROMPTS]
    assert sizes[-1] == LONGEST < len(PROMPTS[-1]) + NEW
    for one, prompt, answer, size in zip(
        answered(longest=LONGEST), PROMPTS, plain, sizes, strict=True
    ):
        assert one.ids.tolist() == [*prompt, *answer][:size]

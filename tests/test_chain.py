"""The walk over stored states against a server that drafts, verifies and accepts with a target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.chain import Pair, Weights
from benchmarks.chain_counts import compare
from eagle3_jax.vocab import VocabMap
from tests.conftest import random_params, tiny_config
from tests.test_target import target_params, tiny_target

# Three sayable tokens of four: chance alone accepts many, and the target says the fourth, too.
TARGET = tiny_target(vocab_size=4, num_layers=2)
DRAFT = tiny_config(vocab_size=4, draft_vocab_size=3, fc_norm=True, norm_output=True)
VOCAB = VocabMap.from_ids(np.array([0, 1, 3]), 4)
PAIR = Pair(TARGET, DRAFT, (0, 1, 2))
RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(0, 4, size).astype(np.int32) for size in RNG.integers(1, 17, 24)]
NEW, STEPS, END = 21, (1, 3), 0


@pytest.fixture(scope="module")
def found():
    params = random_params(DRAFT, seed=2)
    weights = Weights(
        target=target_params(TARGET, seed=2),
        draft=params,
        table=jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)), jnp.float32),
        kernel=params["lm_head"]["kernel"],
        target_ids=jnp.asarray(VOCAB.target_ids),
    )
    with jax.default_matmul_precision("highest"):
        every = list(
            compare(PAIR, weights, VOCAB, PROMPTS, steps=STEPS, max_new=NEW, end_ids=(END,))
        )
    return {k: [one for one in every if one.steps == k] for k in STEPS}


@pytest.mark.parametrize("steps", STEPS)
def test_the_walk_counts_the_rounds_and_tokens_of_a_real_server(found, steps):
    assert [one.prompt for one in found[steps]] == list(range(len(PROMPTS)))
    for one in found[steps]:
        assert one.walked == one.served, one
        assert one.served[1] == one.answer_tokens - 1, one


@pytest.mark.parametrize("steps", STEPS)
def test_what_is_served_is_the_targets_plain_greedy_answer(found, steps):
    assert all(one.same_text for one in found[steps])


def test_these_answers_end_in_every_way_and_many_drafts_are_accepted(found):
    lengths = {one.answer_tokens for one in found[3]}
    assert {1, NEW} < lengths
    rounds, tokens = (sum(one.served[part] for one in found[3]) for part in (0, 1))
    assert tokens > 1.5 * rounds
    assert rounds < sum(one.served[0] for one in found[1])
    # None of it hangs on rounding.
    assert min(one.margin for one in found[3] if one.margin is not None) > 1e-3

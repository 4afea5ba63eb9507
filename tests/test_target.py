"""The target's states at every boundary, cached and not, against naive float64."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.config import AttentionConfig, RopeConfig, TargetConfig
from eagle3_jax.ops import rms_norm
from eagle3_jax.target import Target, empty_memory, head_kernel, logits
from tests import reference
from tests.conftest import close

LAYERS = 3
HEADS = functools.partial(AttentionConfig, num_heads=4, num_kv_heads=2, head_dim=4)
SETS = {
    "Llama": {},
    "Qwen2": {"attention": HEADS(bias=True), "tie_embeddings": True},
    "Qwen3": {"attention": HEADS(qk_norm=True)},
    "Mistral": {"windows": (2, None, 3)},
    "with every bias": {"attention": HEADS(bias=True, output_bias=True), "mlp_bias": True},
}


def tiny_target(**changes: Any) -> TargetConfig:
    settings: dict[str, Any] = {
        "hidden_size": 8,
        "intermediate_size": 12,
        "vocab_size": 16,
        "num_layers": LAYERS,
        "attention": HEADS(),
        "rope": RopeConfig(theta=100.0),
    }
    return TargetConfig(**(settings | changes))


def target_params(config: TargetConfig, seed: int = 0) -> dict[str, Any]:
    shapes = jax.eval_shape(Target(config).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        noise = rng.normal(size=leaf.shape)
        if path[-1].key == "scale":
            noise = 1 + 0.3 * noise
        elif path[-1].key == "kernel":
            noise *= 1.5 / np.sqrt(leaf.shape[0])
        return jnp.asarray(noise, jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, shapes["params"])


@functools.partial(jax.jit, static_argnums=(0, 3))
def run(config, params, ids, boundaries=(), memory=None, start=None):
    return Target(config).apply({"params": params}, ids, boundaries, memory, start)


IDS = jnp.asarray(np.random.default_rng(1).integers(0, 16, (2, 6)), jnp.int32)
EVERY = tuple(range(LAYERS + 1))


@pytest.mark.parametrize("name", SETS)
def test_states_and_logits_agree_with_the_naive_float64_target(name):
    config = tiny_target(**SETS[name])
    params = target_params(config)
    output = run(config, params, IDS, EVERY)
    found = logits(config, params, output.post_norm)
    for row in range(2):
        states, expected = reference.target(config, params, np.asarray(IDS[row]))
        close(output.states[row].swapaxes(0, 1), states)
        close(found[row], expected)


def test_boundary_0_is_the_embedding_and_boundary_l_the_last_state_before_the_norm():
    config = tiny_target()
    params = target_params(config)
    output = run(config, params, IDS, (0, LAYERS))
    np.testing.assert_array_equal(output.states[:, :, 0], params["embed_tokens"][IDS])
    np.testing.assert_array_equal(output.states[:, :, 1], output.pre_norm)
    normed = rms_norm(output.pre_norm, params["norm"]["scale"], config.rms_norm_eps)
    close(output.post_norm, normed)


def test_boundaries_come_in_the_order_asked_for():
    config = tiny_target()
    params = target_params(config)
    every = run(config, params, IDS, EVERY).states
    some = run(config, params, IDS, (3, 1)).states
    np.testing.assert_array_equal(some, every[:, :, jnp.array([3, 1])])
    assert run(config, params, IDS).states.shape == (2, 6, 0, 8)


@pytest.mark.parametrize("name", ["Qwen2", "Mistral"])
def test_cached_equals_uncached_with_rows_at_slots_of_their_own(name):
    config = tiny_target(**SETS[name])
    params = target_params(config)
    whole = run(config, params, IDS, EVERY)
    memory = empty_memory(config, 2, 8, jnp.float32)
    start = jnp.zeros(2, jnp.int32)
    first = run(config, params, IDS[:, :4], EVERY, memory, start)
    close(first.states, whole.states[:, :4])
    # Row 0 goes on after three tokens, over a stale slot; row 1 after four.
    start = jnp.array([3, 4])
    ids = jnp.take_along_axis(IDS, start[:, None] + jnp.arange(2), axis=1)
    then = run(config, params, ids, EVERY, first.memory, start)
    for row in range(2):
        here = int(start[row])
        close(then.states[row], whole.states[row, here : here + 2])


def test_later_tokens_change_nothing_before_them():
    config = tiny_target()
    params = target_params(config)
    plain = run(config, params, IDS)
    other = run(config, params, IDS.at[:, 4:].set(0))
    np.testing.assert_array_equal(plain.pre_norm[:, :4], other.pre_norm[:, :4])


def test_a_tied_head_is_the_embedding_table():
    config = tiny_target(tie_embeddings=True)
    params = target_params(config)
    assert "lm_head" not in params
    np.testing.assert_array_equal(head_kernel(config, params), params["embed_tokens"].T)
    untied = tiny_target()
    params = target_params(untied)
    np.testing.assert_array_equal(head_kernel(untied, params), params["lm_head"]["kernel"])


def test_logits_are_float32_whatever_the_parameters_are():
    config = tiny_target()
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), target_params(config))
    post_norm = jnp.ones((1, 8), jnp.bfloat16)
    assert logits(config, params, post_norm).dtype == jnp.float32

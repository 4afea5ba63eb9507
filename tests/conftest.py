"""Shared by all tests: tolerances, exact matrix products, and random tiny drafts."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.config import AttentionConfig, DraftConfig, LatentAttentionConfig
from eagle3_jax.model import Drafter
from eagle3_jax.rollout import unroll

# What a command under test compiles stays out of the user's cache.
jax.config.update("jax_enable_compilation_cache", False)

# Largest difference allowed between two computations whose values are of order 1.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}

# Most tests unroll this much, so that they share what is compiled.
COLUMNS, STEPS = 5, 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What `--dist loadgroup` keeps on one worker: a file, whose tests share what is compiled.

    All witnesses are one group, since their files share what each framework was asked once.
    """
    for item in items:
        group = "witness" if "witness" in item.path.parts else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    """Full float32 products also on devices that would round their inputs."""
    with jax.default_matmul_precision("highest"):
        yield


def tiny_config(**changes: Any) -> DraftConfig:
    """A draft small enough to compile fast, with grouped heads and a head_dim of its own."""
    settings: dict[str, Any] = {
        "hidden_size": 8,
        "target_hidden_size": 8,
        "intermediate_size": 16,
        "vocab_size": 32,
        "draft_vocab_size": 12,
        "attention": AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4),
    }
    return DraftConfig(**(settings | changes))


def latent_heads(**changes: Any) -> LatentAttentionConfig:
    """Multi-head latent attention of which no two widths are alike."""
    widths: dict[str, Any] = {
        "num_heads": 3,
        "q_lora_rank": 7,
        "kv_lora_rank": 5,
        "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 4,
        "v_head_dim": 3,
    }
    return LatentAttentionConfig(**(widths | changes))


def random_params(config: DraftConfig, seed: int = 0) -> dict[str, Any]:
    """Parameters with every norm weight and bias random: ones and zeros would hide faults."""
    aux = jnp.zeros((1, 2, config.aux_width))
    embeddings = jnp.zeros((1, 2, config.hidden_size))
    shapes = jax.eval_shape(
        Drafter(config).init, jax.random.key(0), embeddings, aux, jnp.zeros((1, 2), jnp.int32)
    )["params"]
    rng = np.random.default_rng(seed)

    def fill(path: Any, leaf: Any) -> jax.Array:
        noise = rng.normal(size=leaf.shape)
        if path[-1].key == "scale":
            return jnp.asarray(1.0 + 0.3 * noise, jnp.float32)
        if path[-1].key == "bias":
            return jnp.asarray(0.3 * noise, jnp.float32)
        return jnp.asarray(1.5 * noise / np.sqrt(leaf.shape[0]), jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def random_text(
    config: DraftConfig, *, columns: int = COLUMNS, rows: int = 1, seed: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Random aux states `[B,T,A*Dt]` and embeddings `[B,T,D]`."""
    rng = np.random.default_rng(seed)
    aux = rng.normal(size=(rows, columns, config.aux_width))
    embeddings = rng.normal(size=(rows, columns, config.hidden_size))
    return jnp.asarray(aux, jnp.float32), jnp.asarray(embeddings, jnp.float32)


def close(found: Any, expected: Any, tolerance: float = TOLERANCE["float32"]) -> None:
    """Equal to within a tolerance that is scaled by the largest magnitude expected, if above 1."""
    expected = np.asarray(expected, np.float64)
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=0, atol=tolerance * largest
    )


def unrolled(
    config: DraftConfig,
    params: Any,
    aux: jax.Array,
    embeddings: jax.Array,
    *,
    steps: int = STEPS,
    whole: bool = False,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """States handed on and head inputs of every step and column, `[K,B,T,D]` each.

    By default run operation by operation, so that configurations of the same shapes share what
    is compiled; with `whole` compiled as one, which is faster for shapes that few tests have.
    """
    if whole:
        return _compiled(config, params, aux, embeddings, steps, options)
    with jax.disable_jit():
        return _states_and_reads(config, params, aux, embeddings, steps, options)


def _states_and_reads(
    config: DraftConfig,
    params: Any,
    aux: jax.Array,
    embeddings: jax.Array,
    steps: int,
    options: dict[str, Any],
) -> tuple[jax.Array, jax.Array]:
    return unroll(
        config,
        params,
        aux,
        embeddings,
        steps=steps,
        read=lambda _, step: (step.state, step.head_input),
        **options,
    )


_compiled = jax.jit(_states_and_reads, static_argnums=(0, 4))

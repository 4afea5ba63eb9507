"""Drafting from one prefix with a cache: what a server does, one token after the other.

The prefix's columns are read once (step 0); every further step appends one key to the context,
so plain causal attention over the cache is all there is.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.config import DraftConfig
from eagle3_jax.layers import apply
from eagle3_jax.model import Drafter, empty_memory
from eagle3_jax.structs import DraftStep, Memory, View


def read_prefix(
    config: DraftConfig,
    params: dict[str, Any],
    embeddings: Float[Array, "B T D"],
    aux: Float[Array, "B T AD"],
    *,
    room: int,
) -> DraftStep:
    """Step 0 over a prefix, its keys kept in a cache with `room` slots for further steps.

    Args:
        config: the draft's.
        params: its parameters.
        embeddings: of each column's next token, x[t+1].
        aux: the target's states at x[t].
        room: how many steps may follow.

    Returns:
        The step over all T columns; the last one is where drafting goes on.
    """
    rows, columns, _ = embeddings.shape
    memory = empty_memory(config, rows, columns + room, embeddings.dtype)
    positions = jnp.broadcast_to(jnp.arange(columns), (rows, columns))
    start = jnp.zeros(rows, jnp.int32)
    step: DraftStep = apply(
        Drafter(config), params, embeddings, aux, positions, memory=memory, start=start
    )
    return step


def draft_one(
    config: DraftConfig,
    params: dict[str, Any],
    embedding: Float[Array, "B 1 D"],
    state: Float[Array, "B 1 D"],
    memory: tuple[Memory, ...],
    slot: Int[Array, " B"],
) -> DraftStep:
    """One further step of each row, its key appended at context slot `slot`.

    The slot is also the RoPE position: column t of the prefix stands at t, its step k at t + k.

    Args:
        config: the draft's.
        params: its parameters.
        embedding: of the token drafted last.
        state: what the last step handed on.
        memory: the cache.
        slot: the first free slot of each row.
    """
    step: DraftStep = apply(
        Drafter(config),
        params,
        embedding,
        state,
        slot[:, None],
        memory,
        View(slot[:, None], config.attention.sliding_window, start=slot),
        method="extend",
    )
    return step

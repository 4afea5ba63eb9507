"""Greedy answers of a target, batched and cached, with its states captured on the way.

Rows are ragged: each has its own length, prompts are padded on the right, and a decoded token
overwrites the padding's slot. A finished row keeps its place until a new prompt is inserted, so
shapes never change and a stream of prompts keeps every row busy.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import TargetConfig
from eagle3_jax.layers import apply
from eagle3_jax.structs import Memory, TargetOutput
from eagle3_jax.target import Target, empty_memory, logits

Params = dict[str, Any]


class Decoding(NamedTuple):
    """Rows under way.

    Attributes:
        memory: keys of every layer, `[B,S,...]`.
        token: `[B]`, the token to feed next; chosen, not yet read by the target.
        length: `[B]`, tokens already in the memory, which is the position of `token`.
        done: `[B]`, rows that are finished or empty.
    """

    memory: tuple[Memory, ...]
    token: Int[Array, " B"]
    length: Int[Array, " B"]
    done: Bool[Array, " B"]


class Captured(NamedTuple):
    """Tokens that the target read and its states at them, one row per step.

    Attributes:
        ids: `[steps,B]`.
        live: `[steps,B]`, false where the row was already done.
        states: `[steps,B,A+1,Dt]`, the boundaries asked for, then boundary L.
    """

    ids: Int[Array, "steps B"]
    live: Bool[Array, "steps B"]
    states: Float[Array, "steps B A1 Dt"]


def idle(config: TargetConfig, rows: int, length: int, dtype: DTypeLike) -> Decoding:
    """Rows that wait for prompts.

    Args:
        config: the target's.
        rows: B.
        length: S, the longest prompt plus answer.
        dtype: of the keys and values.
    """
    return Decoding(
        empty_memory(config, rows, length, dtype),
        # Two arrays, not one twice: a caller may donate them.
        token=jnp.zeros(rows, jnp.int32),
        length=jnp.zeros(rows, jnp.int32),
        done=jnp.ones(rows, bool),
    )


def prefill(
    config: TargetConfig,
    params: Params,
    ids: Int[Array, "R P"],
    lengths: Int[Array, " R"],
    boundaries: tuple[int, ...],
) -> tuple[Decoding, Float[Array, "R P A1 Dt"]]:
    """Read prompts, padded on the right, and choose each one's first answer token.

    Returns:
        The rows under way, and the states at every prompt token (padding included).
    """
    output: TargetOutput = apply(Target(config), params, ids, boundaries)
    last = jnp.take_along_axis(output.post_norm, (lengths - 1)[:, None, None], axis=1)[:, 0]
    token = jnp.argmax(logits(config, params, last), axis=-1).astype(jnp.int32)
    decoding = Decoding(output.memory, token, lengths, jnp.zeros(lengths.shape, bool))
    return decoding, _with_last(output)


def insert(decoding: Decoding, fresh: Decoding, rows: Int[Array, " R"]) -> Decoding:
    """Put prefilled prompts into rows; a row number of B or more is dropped (padding)."""

    def place(old: Array, new: Array) -> Array:
        return old.at[rows, :, : new.shape[2]].set(new.astype(old.dtype), mode="drop")

    memory = jax.tree.map(place, decoding.memory, fresh.memory)
    return Decoding(
        memory,
        decoding.token.at[rows].set(fresh.token, mode="drop"),
        decoding.length.at[rows].set(fresh.length, mode="drop"),
        decoding.done.at[rows].set(fresh.done, mode="drop"),
    )


def decode(
    config: TargetConfig,
    params: Params,
    decoding: Decoding,
    steps: int,
    boundaries: tuple[int, ...],
    end_ids: tuple[int, ...],
) -> tuple[Decoding, Captured]:
    """Feed every row its chosen token, `steps` times over.

    A row is done once it has read an end token or its memory is full.
    """
    room = decoding.memory[0].context.keys.shape[2]
    target = Target(config)
    ends = jnp.asarray(end_ids, jnp.int32)

    def step(now: Decoding, _: None) -> tuple[Decoding, Captured]:
        output: TargetOutput = apply(
            target, params, now.token[:, None], boundaries, now.memory, now.length
        )
        chosen = jnp.argmax(logits(config, params, output.post_norm[:, 0]), axis=-1)
        length = jnp.where(now.done, now.length, now.length + 1)
        finished = now.done | jnp.isin(now.token, ends) | (length >= room)
        token = jnp.where(finished, now.token, chosen.astype(jnp.int32))
        # A finished row goes on rewriting its last slot, which nothing reads any more.
        following = Decoding(output.memory, token, jnp.minimum(length, room - 1), finished)
        return following, Captured(now.token, ~now.done, _with_last(output)[:, 0])

    return jax.lax.scan(step, decoding, length=steps)


def greedy(
    config: TargetConfig,
    params: Params,
    ids: Int[Array, "B P"],
    lengths: Int[Array, " B"],
    *,
    max_new: int,
    end_ids: tuple[int, ...],
    boundaries: tuple[int, ...] = (),
) -> Captured:
    """Answer one batch of prompts, end token included.

    Args:
        config: the target's.
        params: its parameters.
        ids: prompts, padded on the right.
        lengths: tokens of each prompt.
        max_new: most answer tokens; a row that ends earlier is not live afterwards.
        end_ids: tokens that end an answer.
        boundaries: states to capture at the answer's tokens.

    Returns:
        The answers, step first.
    """
    fresh, _ = prefill(config, params, ids, lengths, boundaries)
    rows, longest = ids.shape
    dtype = fresh.memory[0].context.keys.dtype
    # One slot more than needed: a full memory would end rows that still have tokens to read.
    waiting = idle(config, rows, longest + max_new + 1, dtype)
    started = insert(waiting, fresh, jnp.arange(rows))
    _, captured = decode(config, params, started, max_new, boundaries, end_ids)
    return captured


def _with_last(output: TargetOutput) -> Float[Array, "B T A1 Dt"]:
    return jnp.concatenate([output.states, output.pre_norm[:, :, None]], axis=2)

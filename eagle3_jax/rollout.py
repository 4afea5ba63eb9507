"""`unroll`: several draft steps from every column of a text at once.

    step k, column t      position t+k      token x[t+1+k]      state of column t from step k-1
                          sees context keys s <= t of step 0 and its own keys of steps 1..k

With the text's tokens this is the training-time test; with each column's own tokens it is greedy
chain drafting from every prefix. While all earlier steps were right the two read the same tokens.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import DraftConfig
from eagle3_jax.layers import apply
from eagle3_jax.model import Drafter
from eagle3_jax.ops import project, read_at
from eagle3_jax.structs import KV, DraftStep, Memory, View
from eagle3_jax.wiring import Wiring

Out = TypeVar("Out")


class Own(NamedTuple):
    """What a draft needs to go on with its own tokens.

    Attributes:
        table: `[V,D]`, token embeddings.
        kernel: `[D,W]`, the head.
        target_ids: `[W]`, the target id of each draft id.
    """

    table: Float[Array, "V D"]
    kernel: Float[Array, "D W"]
    target_ids: Int[Array, " W"]


def unroll(
    config: DraftConfig,
    params: dict[str, Any],
    aux: Float[Array, "B T AD"],
    embeddings: Float[Array, "B T D"],
    *,
    steps: int,
    read: Callable[[Int[Array, ""] | int, DraftStep], Out],
    own: Own | None = None,
    positions: Int[Array, "B T"] | None = None,
    valid: Bool[Array, "B T"] | None = None,
    wiring: Wiring | None = None,
) -> Out:
    """Run `steps` draft steps from every column.

    Pure under `jit`, `grad` and `vmap`; shapes do not depend on the step.

    Args:
        config: the draft's.
        params: its parameters.
        aux: the target's states at x[t].
        embeddings: the embedding of x[t] (the shift to x[t+1+k] is made here).
        steps: K, one or more.
        read: what is wanted of step k, as arrays of the same shape at every step; it is called
            with k and the step, whose state and memory nobody keeps.
        own: go on with each column's own greedy tokens instead of the text's. Step 0 reads the
            text in either case.
        positions: RoPE position of each column at step 0; by default 0, 1, 2, ...
        valid: false on padding, whose keys nobody sees.
        wiring: how the draft's parts are joined; by default as its config says.

    Returns:
        What `read` returned, stacked: `[K, ...]`.
    """
    batch, columns, _ = embeddings.shape
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(columns), (batch, columns))
    if valid is not None:
        # A scaling that depends on a row's length must not count its padding.
        positions = jnp.where(valid, positions, 0)
    joined = wiring or Wiring.of(config)
    drafter = Drafter(config, joined)
    first: DraftStep = apply(drafter, params, read_at(embeddings, 0), aux, positions, valid=valid)
    started = read(0, first)
    if steps == 1:
        return jax.tree.map(lambda part: jnp.asarray(part)[None], started)

    chosen = read_at(embeddings, 1) if own is None else _choose(own, first)
    memory = tuple(_with_branch(layer, steps - 1) for layer in first.memory)

    def advance(
        carry: tuple[Array, tuple[Memory, ...], Array], step: Int[Array, ""]
    ) -> tuple[tuple[Array, tuple[Memory, ...], Array], Out]:
        state, memory, tokens = carry
        window = config.attention.sliding_window
        view = View(window=window, lead=step, key_valid=valid, slot=step - 1)
        moved = positions + step * joined.advance
        after: DraftStep = apply(
            drafter, params, tokens, state, moved, memory, view, method="extend"
        )
        following = read_at(embeddings, step + 1) if own is None else _choose(own, after)
        return (after.state, after.memory, following), read(step, after)

    _, later = jax.lax.scan(advance, (first.state, memory, chosen), jnp.arange(1, steps))
    return jax.tree.map(
        lambda zero, rest: jnp.concatenate([jnp.asarray(zero)[None], rest]), started, later
    )


def greedy_ids(
    head_input: Float[Array, "*dims D"], kernel: Float[Array, "D W"], target_ids: Int[Array, " W"]
) -> Int[Array, "*dims"]:
    """The target ids that the draft finds likeliest; ties go to the lowest draft id."""
    return target_ids[jnp.argmax(project(head_input, kernel), axis=-1)]


def _choose(own: Own, step: DraftStep) -> Float[Array, "B T D"]:
    ids = greedy_ids(step.head_input, own.kernel, own.target_ids)
    return own.table[ids].astype(step.state.dtype)


def _with_branch(layer: Memory, slots: int) -> Memory:
    def empty(context: Array) -> Array:
        return jnp.zeros((*context.shape[:3], slots, context.shape[3]), context.dtype)

    return Memory(layer.context, KV(*map(empty, layer.context)))

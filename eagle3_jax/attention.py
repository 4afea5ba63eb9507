"""Grouped-query attention over a shared context and each column's own branch.

    column t at step k:   context keys s <= t        branch keys j = 1..k of column t
                          [T, S]                     [T, J]
    one softmax over both, never a [T, kT] array

A long text is worked off in blocks of columns, so that no [T, T] array exists either, and no block
reads keys far behind its last column: masked work is skipped, not done and thrown away.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.structs import KV, View

_BLOCK = 128  # columns of a text worked off at a time; shorter texts in one piece
_SEGMENTS = 8  # runs of blocks that read the same keys, so that shapes are static


def visible(
    slots: Int[Array, "B T"],
    context_length: int,
    *,
    lead: Int[Array, ""] | int = 0,
    window: int | None = None,
    key_valid: Bool[Array, "B S"] | None = None,
) -> Bool[Array, "B T S"]:
    """Which context slots a column sees: those not after its own slot.

    Args:
        slots: the context slot of each query column.
        context_length: S.
        lead: how many steps the query is ahead of its column (step k), for the window.
        window: a query sees only keys less than this many positions back.
        key_valid: false on context slots that hold padding.

    Returns:
        The context mask.
    """
    keys = jnp.arange(context_length)
    mask = keys <= slots[..., None]
    if window is not None:
        mask &= slots[..., None] + lead - keys < window
    if key_valid is not None:
        mask &= key_valid[:, None, :]
    return mask


def attend(
    query: Float[Array, "B T N H"],
    context: KV,
    branch: KV | None,
    view: View,
    scale: float,
) -> Float[Array, "B T N Hv"]:
    """Attend over the context and, for steps k > 0, the column's own branch.

    Args:
        query: rotated queries.
        context: keys `[B,K,S,H]` and values `[B,K,S,Hv]`; N is a multiple of K.
        branch: keys `[B,K,T,J,H]` and values `[B,K,T,J,Hv]` of each column's own earlier steps;
            read where the view has a branch slot.
        view: which keys a column sees.
        scale: factor of the scores, as a rule H**-0.5.

    Returns:
        The mixed values, heads apart.
    """
    batch, columns, heads, width = query.shape
    kv_heads = context.keys.shape[1]
    grouped = query.reshape(batch, columns, kv_heads, heads // kv_heads, width)
    grouped = grouped.transpose(0, 2, 3, 1, 4)  # [B,K,G,T,H]
    if view.slots is not None or columns <= _BLOCK:
        slots = view.slots
        if slots is None:
            slots = jnp.broadcast_to(jnp.arange(columns), (batch, columns))
        part = _read_context(grouped, context, slots, view, scale)
    else:
        part = _read_in_blocks(grouped, context, view, scale)
    if view.slot is not None and branch is not None:
        part = _join(part, _read_branch(grouped, branch, view.slot, view.window, scale))
    # Divided last: a row of H numbers and not one of S.
    mixed = (part.mixed / part.total).astype(query.dtype)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, columns, heads, -1)


class _Part(NamedTuple):
    """A softmax over some of the keys, not yet divided.

    Attributes:
        mixed: values, weighted by exp(score - highest).
        total: the sum of these weights.
        highest: the largest score.
    """

    mixed: Float[Array, "B K G T Hv"]
    total: Float[Array, "B K G T 1"]
    highest: Float[Array, "B K G T 1"]


def _join(one: _Part, other: _Part) -> _Part:
    """The softmax over the keys of both: a common maximum and a common total."""
    highest = jnp.maximum(one.highest, other.highest)
    mine, theirs = jnp.exp(one.highest - highest), jnp.exp(other.highest - highest)
    mixed = one.mixed * mine + other.mixed * theirs
    return _Part(mixed, one.total * mine + other.total * theirs, highest)


def _read_in_blocks(
    grouped: Float[Array, "B K G T H"], context: KV, view: View, scale: float
) -> _Part:
    """`_read_context` of a whole text, block after block."""
    batch, _, _, columns, _ = grouped.shape
    blocks = -(-columns // _BLOCK)
    filling = [(0, 0)] * 3 + [(0, blocks * _BLOCK - columns), (0, 0)]  # the rest of the last block
    filled = jnp.pad(grouped, filling).reshape(*grouped.shape[:3], blocks, _BLOCK, -1)
    queries, first = jnp.moveaxis(filled, 3, 0), jnp.arange(blocks) * _BLOCK
    segments = min(_SEGMENTS, blocks)
    bounds = [blocks * number // segments for number in range(segments + 1)]
    parts = []
    for begin, end in itertools.pairwise(bounds):
        reach = min(end * _BLOCK, columns)
        keys = KV(*(part[:, :, :reach] for part in context))
        valid = None if view.key_valid is None else view.key_valid[:, :reach]
        seen = view._replace(key_valid=valid)

        def one(block: tuple[Array, Array], keys: KV = keys, seen: View = seen) -> _Part:
            query, start = block
            slots = jnp.broadcast_to(start + jnp.arange(_BLOCK), (batch, _BLOCK))
            return _read_context(query, keys, slots, seen, scale)

        parts.append(jax.lax.map(one, (queries[begin:end], first[begin:end])))

    def laid_out(*pieces: Array) -> Array:
        whole = jnp.moveaxis(jnp.concatenate(pieces), 0, 3)  # [B,K,G,blocks,block,...]
        return whole.reshape(*whole.shape[:3], blocks * _BLOCK, -1)[:, :, :, :columns]

    return jax.tree.map(laid_out, *parts)


def _read_context(
    grouped: Float[Array, "B K G T H"],
    context: KV,
    slots: Int[Array, "B T"],
    view: View,
    scale: float,
) -> _Part:
    """The keys that all columns share, as far as each sees them."""
    mask = visible(
        slots,
        context.keys.shape[2],
        lead=view.lead,
        window=view.window,
        key_valid=view.key_valid,
    )
    scores = _products("bkgth,bksh->bkgts", grouped, context.keys) * scale
    weights, total, highest = _weigh(scores, mask[:, None, None])
    mixed = _products("bkgts,bksh->bkgth", weights.astype(grouped.dtype), context.values)
    return _Part(mixed, total, highest)


def _read_branch(
    grouped: Float[Array, "B K G T H"],
    branch: KV,
    slot: Int[Array, ""] | int,
    window: int | None,
    scale: float,
) -> _Part:
    """Every column's own steps up to branch slot `slot`: few keys, others in each column."""
    steps_back = slot - jnp.arange(branch.keys.shape[3])
    filled = steps_back >= 0
    if window is not None:
        filled &= steps_back < window
    scores = _products("bkgth,bktjh->bkgtj", grouped, branch.keys) * scale
    weights, total, highest = _weigh(scores, filled)
    # On a CPU many products of a few rows take five times as long as this sum.
    weights = weights.astype(grouped.dtype).astype(jnp.float32)
    mixed = jnp.sum(weights[..., None] * branch.values[:, :, None], axis=-2)
    return _Part(mixed, total, highest)


def _weigh(
    scores: Float[Array, "B K G T S"], seen: Bool[Array, "*dims S"]
) -> tuple[Array, Array, Array]:
    """exp(score - highest), the sum of these, and the highest, of the scores that are seen."""
    scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    # Softmax does not depend on the maximum, and its gradient does not either.
    highest = jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    weights = jnp.exp(scores - highest)
    return weights, weights.sum(axis=-1, keepdims=True), highest


def _products(spec: str, one: Array, other: Array) -> Array:
    """A product accumulated in float32."""
    return jnp.einsum(spec, one, other, preferred_element_type=jnp.float32)


def write_context(context: KV | None, new: KV, start: Int[Array, " B"] | None) -> KV:
    """Put T new keys into each row's context from slot `start[b]` on.

    Without `start` the new keys are the whole context: the uncached forward pass.
    """
    if start is None:
        return new
    assert context is not None, "a start slot needs a context to write into"

    def put(old: Array, fresh: Array, first: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, fresh.astype(old.dtype), first, axis=1)

    return KV(*(jax.vmap(put)(old, fresh, start) for old, fresh in zip(context, new, strict=True)))


def write_branch(branch: KV, new: KV, slot: Int[Array, ""]) -> KV:
    """Put each column's new key into its branch slot `slot`."""
    return KV(
        *(
            jax.lax.dynamic_update_slice_in_dim(
                old, fresh[:, :, :, None].astype(old.dtype), slot, 3
            )
            for old, fresh in zip(branch, new, strict=True)
        )
    )

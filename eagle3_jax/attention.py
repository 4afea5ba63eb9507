"""Grouped-query attention over a shared context and each column's own branch.

    column t at step k:   context keys s <= t        branch keys j = 1..k of column t
                          [T, S]                     [T, J]
    one softmax over both, never a [T, kT] array

A long text is worked off in blocks of columns, so that no [T, T] array exists either, and no block
reads keys far behind its last column: masked work is skipped, not done and thrown away.
"""

import itertools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.structs import KV, View

_BLOCK = 128  # columns of a text worked off at a time; shorter texts in one piece
_SEGMENTS = 4  # runs of blocks that read the same keys, so that shapes are static


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
    own = None if view.slot is None else branch
    if view.slots is not None or columns <= _BLOCK:
        slots = view.slots
        if slots is None:
            slots = jnp.broadcast_to(jnp.arange(columns), (batch, columns))
        mixed = _mix(grouped, context, own, slots, view, scale)
    else:
        mixed = _mix_in_blocks(grouped, context, own, view, scale)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, columns, heads, -1)


def _mix_in_blocks(
    grouped: Float[Array, "B K G T H"],
    context: KV,
    branch: KV | None,
    view: View,
    scale: float,
) -> Float[Array, "B K G T Hv"]:
    """`_mix` for a whole text, block after block."""
    batch, _, _, columns, _ = grouped.shape
    blocks = -(-columns // _BLOCK)

    def in_blocks(x: Array, axis: int) -> Array:
        """Put blocks of columns on a new first axis; the last block is filled up with zeros."""
        filling = [(0, 0)] * x.ndim
        filling[axis] = (0, blocks * _BLOCK - columns)
        shape = (*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :])
        return jnp.moveaxis(jnp.pad(x, filling).reshape(shape), axis, 0)

    queries = in_blocks(grouped, 3)
    branches = None if branch is None else KV(*(in_blocks(part, 2) for part in branch))
    first = jnp.arange(blocks) * _BLOCK
    segments = min(_SEGMENTS, blocks)
    bounds = [blocks * number // segments for number in range(segments + 1)]
    mixed = []
    for begin, end in itertools.pairwise(bounds):
        reach = min(end * _BLOCK, columns)
        keys = KV(*(part[:, :, :reach] for part in context))
        valid = None if view.key_valid is None else view.key_valid[:, :reach]
        seen = view._replace(key_valid=valid)

        def one(
            block: tuple[Array, KV | None, Array], keys: KV = keys, seen: View = seen
        ) -> Float[Array, "B K G T Hv"]:
            query, own, start = block
            slots = jnp.broadcast_to(start + jnp.arange(_BLOCK), (batch, _BLOCK))
            return _mix(query, keys, own, slots, seen, scale)

        inside = jax.tree.map(lambda x: x[begin:end], (queries, branches, first))  # noqa: B023
        mixed.append(jax.lax.map(one, inside))
    joined = jnp.moveaxis(jnp.concatenate(mixed), 0, 3)  # [B,K,G,blocks,block,Hv]
    return joined.reshape(*joined.shape[:3], blocks * _BLOCK, -1)[:, :, :, :columns]


def _mix(
    grouped: Float[Array, "B K G T H"],
    context: KV,
    branch: KV | None,
    slots: Int[Array, "B T"],
    view: View,
    scale: float,
) -> Float[Array, "B K G T Hv"]:
    """One softmax over two score arrays: a common maximum and a common total."""
    low = jnp.finfo(jnp.float32).min
    mask = visible(
        slots,
        context.keys.shape[2],
        lead=view.lead,
        window=view.window,
        key_valid=view.key_valid,
    )
    scores = _products("bkgth,bksh->bkgts", grouped, context.keys) * scale
    scores = jnp.where(mask[:, None, None], scores, low)
    highest = scores.max(axis=-1, keepdims=True)
    own = None
    if branch is not None:
        assert view.slot is not None, "a branch needs its last filled slot"
        steps_back = view.slot - jnp.arange(branch.keys.shape[3])
        filled = steps_back >= 0
        if view.window is not None:
            filled &= steps_back < view.window
        own = _products("bkgth,bktjh->bkgtj", grouped, branch.keys) * scale
        own = jnp.where(filled, own, low)
        highest = jnp.maximum(highest, own.max(axis=-1, keepdims=True))
    # Softmax does not depend on the maximum, and its gradient does not either.
    highest = jax.lax.stop_gradient(highest)
    weights = jnp.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    mixed = _products("bkgts,bksh->bkgth", weights.astype(grouped.dtype), context.values)
    if own is not None and branch is not None:
        own = jnp.exp(own - highest)
        total += own.sum(axis=-1, keepdims=True)
        mixed += _products("bkgtj,bktjh->bkgth", own.astype(grouped.dtype), branch.values)
    # Divided last: a row of H numbers and not one of S.
    return (mixed / total).astype(grouped.dtype)


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

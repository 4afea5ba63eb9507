"""The arithmetic that draft and target share. No parameters, no modules.

RMS statistics, softmax and the head's accumulation are float32 inside and cast back, so that
precision follows the parameters alone.

    column t at step k:   context keys s <= t        branch keys j = 1..k of column t
                          [T, S]                     [T, J]
    one softmax over both, never a [T, kT] array
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.structs import KV, Rotation


def rms_norm(
    x: Float[Array, "*dims D"], scale: Float[Array, " D"], eps: float | Float[Array, ""]
) -> Array:
    """Normalise by the root mean square, then multiply by the weight.

    Hugging Face's order: normalise in float32, cast to the input's type, then multiply.

    Args:
        x: any leading shape, width D.
        scale: the norm's weight.
        eps: added to the mean square.

    Returns:
        The shape of `x`.
    """
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return scale * normed.astype(x.dtype)


def rotate(
    x: Float[Array, "B T heads H"], rotation: Rotation, *, interleaved: bool = False
) -> Float[Array, "B T heads H"]:
    """Turn each head by its position's angles.

    Only the first 2R dimensions turn; the rest passes through (partial RoPE).

    Args:
        x: query or key heads, or the slice of them that is given to RoPE.
        rotation: angles of each column.
        interleaved: pair i is dimensions 2i and 2i+1 ("GPT-J" pairing) instead of i and R+i, first
            half against second ("neox" pairing). Each dimension stays where it was.

    Returns:
        The shape of `x`.
    """
    half = rotation.cos.shape[-1]
    cos, sin = rotation.cos[:, :, None, :], rotation.sin[:, :, None, :]
    turning, rest = jnp.split(x.astype(jnp.float32), [2 * half], axis=-1)
    # An axis of two holds a pair's members: neighbours lie along the last, halves before it.
    pairs, member = ((half, 2), -1) if interleaved else ((2, half), -2)
    apart = turning.reshape(*x.shape[:-1], *pairs)
    first, second = jnp.unstack(apart, axis=member)
    turned = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=member)
    return jnp.concatenate([turned.reshape(turning.shape), rest], axis=-1).astype(x.dtype)


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
    context_mask: Bool[Array, "B T S"],
    branch: KV | None,
    slot: Int[Array, ""] | None,
    scale: float,
    window: int | None = None,
) -> Float[Array, "B T N Hv"]:
    """Grouped-query attention over the context and, for steps k > 0, the column's own branch.

    Args:
        query: rotated queries.
        context: keys `[B,K,S,H]` and values `[B,K,S,Hv]`; N is a multiple of K.
        context_mask: true where column t sees context key s.
        branch: keys `[B,K,T,J,H]` and values `[B,K,T,J,Hv]` of each column's own earlier steps.
        slot: the last branch slot that is filled; needs `branch`.
        scale: factor of the scores, as a rule H**-0.5.
        window: a query sees only branch keys less than this many steps back; for the context,
            `context_mask` says so.

    Returns:
        The mixed values, heads apart.
    """
    batch, columns, heads, width = query.shape
    kv_heads = context.keys.shape[1]
    grouped = query.reshape(batch, columns, kv_heads, heads // kv_heads, width)
    grouped = grouped.transpose(0, 2, 3, 1, 4)  # [B,K,G,T,H]
    low = jnp.finfo(jnp.float32).min

    scores = _scores("bkgth,bksh->bkgts", grouped, context.keys) * scale
    scores = jnp.where(context_mask[:, None, None], scores, low)
    if branch is None:
        weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
        mixed = jnp.einsum("bkgts,bksh->bkgth", weights, context.values)
    else:
        assert slot is not None, "a branch needs its last filled slot"
        own = _scores("bkgth,bktjh->bkgtj", grouped, branch.keys) * scale
        steps_back = slot - jnp.arange(branch.keys.shape[3])
        filled = steps_back >= 0
        if window is not None:
            filled &= steps_back < window
        own = jnp.where(filled, own, low)
        # One softmax over two score arrays: a common maximum and a common total.
        highest = jnp.maximum(scores.max(axis=-1, keepdims=True), own.max(axis=-1, keepdims=True))
        highest = jax.lax.stop_gradient(highest)
        weights, own_weights = jnp.exp(scores - highest), jnp.exp(own - highest)
        total = weights.sum(axis=-1, keepdims=True) + own_weights.sum(axis=-1, keepdims=True)
        weights = (weights / total).astype(query.dtype)
        own_weights = (own_weights / total).astype(query.dtype)
        mixed = jnp.einsum("bkgts,bksh->bkgth", weights, context.values)
        mixed += jnp.einsum("bkgtj,bktjh->bkgth", own_weights, branch.values)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, columns, heads, -1)


def _scores(spec: str, query: Array, keys: Array) -> Array:
    return jnp.einsum(spec, query, keys, preferred_element_type=jnp.float32)


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


def shift_left(x: Array, by: Int[Array, ""] | int) -> Array:
    """Column t gets what stood at column t + by; zeros enter at the end. `x` is `[B,T,...]`."""
    columns = x.shape[1]
    stays = jnp.arange(columns) < columns - by
    stays = stays.reshape(1, columns, *(1,) * (x.ndim - 2))
    return jnp.where(stays, jnp.roll(x, -by, axis=1), jnp.zeros((), x.dtype))


def read_at(x: Array, step: Int[Array, ""] | int) -> Array:
    """What column t reads at step k of anything stored per token: its value at token t+1+k.

    So for embeddings; and the target's own state at that token is the teacher of step k.
    """
    return shift_left(x, 1 + step)


def due_at(x: Array, step: Int[Array, ""] | int) -> Array:
    """What column t is to predict at step k, of anything stored per token: that of token t+2+k."""
    return shift_left(x, 2 + step)


def project(x: Float[Array, "*dims D"], kernel: Float[Array, "D W"]) -> Float[Array, "*dims W"]:
    """Logits of the head, accumulated and returned in float32 whatever the parameters are."""
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)

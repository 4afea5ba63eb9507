"""The arithmetic that draft and target share. No parameters, no modules.

RMS statistics and the head's accumulation are float32 inside and cast back, so that precision
follows the parameters alone.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.structs import Rotation


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

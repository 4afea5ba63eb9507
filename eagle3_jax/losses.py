"""What the draft is trained on: cross-entropy against the target's own distribution."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def soft_target_cross_entropy(
    logits: Float[Array, "*dims W"], teacher: Float[Array, "*dims W"]
) -> Float[Array, "*dims"]:
    """Minus sum p log q, per position, in nats.

    p is the teacher's softmax over the draft vocabulary, that is, renormalised on it. This is
    not the KL divergence: the entropy of p is missing, which has no gradient.

    Args:
        logits: the draft's.
        teacher: the target's, its rows restricted to the draft vocabulary.
    """
    target = jax.lax.stop_gradient(jax.nn.softmax(teacher.astype(jnp.float32), axis=-1))
    return -jnp.sum(target * jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1), axis=-1)


def masked_sum(
    values: Float[Array, "*dims"], mask: Bool[Array, "*dims"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The sum over the mask and the mask's count, which add up across batches."""
    return jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=jnp.float32)


def step_weights(steps: int, decay: float) -> Float[Array, " K"]:
    """Weight of each step's loss: decay**k (EAGLE-3 uses 0.8)."""
    return decay ** jnp.arange(steps, dtype=jnp.float32)

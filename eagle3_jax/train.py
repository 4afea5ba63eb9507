"""Training-time test: one optimiser step of the draft against the target's distribution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from eagle3_jax.config import DraftConfig
from eagle3_jax.losses import masked_sum, soft_target_cross_entropy, step_weights
from eagle3_jax.ops import due_at, project, read_at, rms_norm
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import DraftStep, Features


class Teacher(NamedTuple):
    """What of the target makes the soft targets; frozen.

    Attributes:
        norm: `[Dt]`, weight of the final norm.
        kernel: `[Dt,W]`, the head's rows of the draft vocabulary.
        eps: epsilon of the final norm.
    """

    norm: Float[Array, " Dt"]
    kernel: Float[Array, "Dt W"]
    eps: float | Float[Array, ""]


class Progress(NamedTuple):
    """What one optimiser step saw.

    Attributes:
        loss: the weighted mean cross-entropy, in nats.
        agreement: `[K]`, how often the draft's first choice is the teacher's, per step.
    """

    loss: Float[Array, ""]
    agreement: Float[Array, " K"]


def ttt_loss(
    config: DraftConfig,
    params: dict[str, Any],
    teacher: Teacher,
    features: Features,
    pre_norm: Float[Array, "B T Dt"],
    *,
    steps: int,
    decay: float,
) -> tuple[Float[Array, ""], Progress]:
    """Soft-target cross-entropy of `steps` steps, step k weighted by decay**k.

    A column counts at step k when the token due, x[t+2+k], is an answer token; each step's loss
    is the mean over its own columns.

    Args:
        config: the draft's, with its own head.
        params: its parameters.
        teacher: the frozen parts of the target.
        features: the texts.
        pre_norm: the target's last state at each token, before its final norm.
        steps: K.
        decay: weight of a step relative to the one before.
    """
    dtype = params["lm_head"]["kernel"].dtype
    normed = rms_norm(pre_norm.astype(jnp.float32), teacher.norm, teacher.eps)

    def read(step: Int[Array, ""] | int, after: DraftStep) -> tuple[Array, Array, Array]:
        logits = project(after.head_input, params["lm_head"]["kernel"])
        wanted = project(read_at(normed, step), teacher.kernel)
        mask = due_at(features.answer, step)
        total, count = masked_sum(soft_target_cross_entropy(logits, wanted), mask)
        return total, count, jnp.sum(_same_first(logits, wanted) & mask, dtype=jnp.float32)

    totals, counts, agreed = unroll(
        config,
        params,
        features.aux.astype(dtype),
        features.embeddings.astype(dtype),
        steps=steps,
        read=read,
        valid=features.valid,
    )
    seen = jnp.maximum(counts, 1.0)
    weights = step_weights(steps, decay)
    loss = jnp.sum(weights * totals / seen) / jnp.sum(weights)
    return loss, Progress(loss, agreed / seen)


def _same_first(logits: Float[Array, "*dims W"], wanted: Float[Array, "*dims W"]) -> Array:
    """Whether both have a highest value at one place; cheaper on a CPU than two argmaxes."""
    highest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.any(highest & (wanted == wanted.max(axis=-1, keepdims=True)), axis=-1)


def train_step(
    config: DraftConfig, optimizer: optax.GradientTransformation, *, steps: int, decay: float
) -> Callable[..., tuple[Any, Any, Progress]]:
    """One optimiser step, jitted.

    Returns:
        A function of (params, optimiser state, teacher, features, pre_norm) that returns the
        first two, a step on, and what it saw. Parameters and optimiser state are donated: the
        old ones may not be used again.
    """

    def advance(
        params: Any, state: Any, teacher: Teacher, features: Features, pre_norm: Array
    ) -> tuple[Any, Any, Progress]:
        def loss(p: Any) -> tuple[Float[Array, ""], Progress]:
            return ttt_loss(config, p, teacher, features, pre_norm, steps=steps, decay=decay)

        gradients, progress = jax.grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, progress

    return jax.jit(advance, donate_argnums=(0, 1))

"""How often a draft is right on stored target states: jitted counts over batches."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import DraftConfig
from eagle3_jax.metrics import Counts, count
from eagle3_jax.rollout import greedy_ids, unroll
from eagle3_jax.structs import DraftStep, Features
from eagle3_jax.vocab import VocabMap


def evaluate(
    config: DraftConfig,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    vocab: VocabMap,
    batches: Iterable[Features],
    *,
    steps: int,
    on_batch: Callable[[Features], None] | None = None,
) -> Counts:
    """Count right predictions under teacher forcing, against the text's own ids.

    Args:
        config: the draft's.
        params: its parameters; their type is the precision of the computation.
        kernel: the head, `[D,W]`.
        vocab: the draft vocabulary.
        batches: the features; one compilation for each of their shapes.
        steps: K.
        on_batch: called after each batch (progress).

    Returns:
        Counts over all batches, as NumPy integers.

    Raises:
        ValueError: when there is no batch, or its states do not fit the draft.
    """
    target_ids, in_draft = jnp.asarray(vocab.target_ids), jnp.asarray(vocab.in_draft)
    total: Counts | None = None
    for features in batches:
        found = _counted(config, steps, params, kernel, target_ids, in_draft, features)
        # Summed on the host in 64 bits: counts of a large shard outgrow int32.
        exact = Counts(*(np.asarray(part, np.int64) for part in found))
        total = exact if total is None else total + exact
        if on_batch is not None:
            on_batch(features)
    if total is None:
        raise ValueError("found no document, expected at least one")
    return total


@functools.partial(jax.jit, static_argnums=(0, 1))
def _counted(
    config: DraftConfig,
    steps: int,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    target_ids: Int[Array, " W"],
    in_draft: Bool[Array, " V"],
    features: Features,
) -> Counts:
    def predict(_: Int[Array, ""] | int, step: DraftStep) -> Int[Array, "B T"]:
        return greedy_ids(step.head_input, kernel, target_ids)

    predicted = unroll(
        config,
        params,
        features.aux.astype(kernel.dtype),
        features.embeddings.astype(kernel.dtype),
        steps=steps,
        read=predict,
        valid=features.valid,
    )
    return count(predicted, features.ids, features.answer, in_draft)

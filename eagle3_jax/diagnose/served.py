"""A draft as another program computes it, as a case to score beside the trained one."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from eagle3_jax.config import AttentionConfig, DraftConfig, LatentAttentionConfig
from eagle3_jax.diagnose.cases import Case, Setting
from eagle3_jax.diagnose.readings import configured
from eagle3_jax.diagnose.rewiring import forgettable

_SAME = ("hidden_size", "target_hidden_size", "intermediate_size", "num_aux", "num_layers")


def served_case(
    setting: Setting,
    case: Case,
    config: DraftConfig,
    *,
    slots: tuple[int, ...],
    target_ids: np.ndarray,
    unused: frozenset[str],
    table: Float[Array, "V D"] | None,
    kernel: Float[Array, "D W"],
    longest: int,
) -> Case | str:
    """The case of an engine, or why it cannot be scored.

    Args:
        setting: of the search; its `ropes` hold the engine's.
        case: as trained.
        config: the draft that the engine computes.
        slots: stored states that it feeds.
        target_ids: `[W]`, what it means by each row of the head.
        unused: canonical names of tensors that it does not use or does not find.
        table: token embeddings that it reads; `None`: those of the features.
        kernel: the head that it reads.
        longest: columns of the longest text.
    """
    own = setting.config
    for name in _SAME:
        if getattr(config, name) != getattr(own, name):
            return f"its {name} is {getattr(config, name)}, the draft's {getattr(own, name)}"
    if _heads(config) != _heads(own):
        return "its attention has other heads"
    windows = (config.attention.sliding_window, own.attention.sliding_window)
    if windows[0] != windows[1] and min(w for w in windows if w is not None) < longest:
        return f"its sliding window is {windows[0]}, the draft's {windows[1]}"
    if len(slots) != len(case.slots):
        return f"it feeds {len(slots)} states, the draft reads {len(case.slots)}"
    if config.rope not in setting.ropes:
        return "its rotary embedding turns other dimensions"
    if table is not None and (case.table is None or table.shape != case.table.shape):
        return "its token embeddings have another shape"
    if kernel.shape != case.kernel.shape:
        return f"its head has {kernel.shape[1]} rows, the draft's {case.kernel.shape[1]}"
    params = case.params
    for name, forget in forgettable(params):
        if name in unused:
            params = forget(params)
    ids = np.clip(target_ids, 0, config.vocab_size - 1)  # beyond the vocabulary nothing is due
    theirs = configured(config, params, kernel, ids, table, slots)
    return theirs._replace(rope=jnp.asarray(setting.ropes.index(config.rope), jnp.int32))


def _heads(config: DraftConfig) -> AttentionConfig | LatentAttentionConfig:
    """Attention without what an engine may have otherwise: a bias that it drops is one of zeros.

    A window is looked at elsewhere: it shows in longer texts alone.
    """
    if isinstance(config.attention, LatentAttentionConfig):
        return config.attention
    return replace(config.attention, bias=False, output_bias=False, sliding_window=None)

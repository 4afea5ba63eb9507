"""Drafts as servers meet them: named, configured and shaped otherwise than one of them expects."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from converters.drafts import OpenDraft, Reading, open_draft
from converters.engines import Served, engine_of, serve
from tests.raw_drafts import ABSENT, CONFIG, IDS, LAYER, SHAPES, noise, raw_tensors, write_raw

DEPTH = 12
ATTENTION = f"{LAYER}self_attn."
# Heads whose widths make up the draft's: all that EAGLE can load.
EVEN_KEYS = {"head_dim": 2}
EVEN = {
    f"{ATTENTION}q_proj.weight": noise(8, 16),
    f"{ATTENTION}k_proj.weight": noise(4, 16),
    f"{ATTENTION}v_proj.weight": noise(4, 16),
    f"{ATTENTION}o_proj.weight": noise(8, 8),
}
QKV_BIASES = {f"{ATTENTION}{x}_proj.bias": noise(16 if x == "q" else 8) for x in "qkv"}
FC_NORMS = {f"fc_norm.{i}.weight": noise(8, seed=i) for i in range(3)}
SECOND = {
    f"layers.1.{name.removeprefix(LAYER)}": noise(*(shape[0], 8) if "self_attn" in name else shape)
    for name, shape in SHAPES.items()
    if name.startswith(LAYER) and "norm" not in name and "o_proj" not in name
} | {
    "layers.1.self_attn.o_proj.weight": noise(8, 16),
    "layers.1.post_attention_layernorm.weight": noise(8),
}
ABSOLUTE = {"d2t": IDS.astype(np.int64)}
WIDE_FC = {"fc.weight": noise(8, 32)}
LATENT_KEYS = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "q_lora_rank": 7,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 4,
    "v_head_dim": 3,
    "num_key_value_heads": 4,
}
LATENT = {f"{ATTENTION}{x}_proj.weight": None for x in "qkv"} | {
    f"{ATTENTION}q_a_proj.weight": noise(7, 16),
    f"{ATTENTION}q_a_layernorm.weight": noise(7),
    f"{ATTENTION}q_b_proj.weight": noise(24, 7),
    f"{ATTENTION}kv_a_proj_with_mqa.weight": noise(9, 16),
    f"{ATTENTION}kv_a_layernorm.weight": noise(5),
    f"{ATTENTION}kv_b_proj.weight": noise(20, 5),
    f"{ATTENTION}o_proj.weight": noise(8, 12),
}
_TOP = ("architectures", "draft_vocab_size", "eagle_config")
SPECULATORS_KEYS: dict[str, Any] = {
    **dict.fromkeys(CONFIG, ABSENT),
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": 12,
    "speculators_model_type": "eagle3",
    "speculators_config": {"algorithm": "eagle3"},
    "transformer_layer_config": {k: v for k, v in CONFIG.items() if k not in _TOP},
}


def renamed(old: str, new: str) -> dict[str, Any]:
    """The tensors whose names start so, under other names."""
    tensors = raw_tensors()
    moved = {name: tensor for name, tensor in tensors.items() if name.startswith(old)}
    return dict.fromkeys(moved) | {new + k.removeprefix(old): v for k, v in moved.items()}


def opened(
    directory: Path,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    *,
    layers: int = DEPTH,
    dialect: str | None = "sglang",
    **settings: Any,
) -> OpenDraft:
    """A draft on disk, in the reading of a dialect."""
    write_raw(directory, keys, tensors)
    reading = Reading(dialect=dialect, settings=settings, target_layers=layers)
    return open_draft(directory, reading)


def served_by(
    engine: str,
    directory: Path,
    draft: OpenDraft,
    *,
    layers: int = DEPTH,
    target_class: str = "llama",
    **options: Any,
) -> Served:
    """A draft as an engine serves it."""
    return serve(
        directory,
        draft,
        engine_of(engine),
        target_layers=layers,
        target_class=target_class,
        **options,
    )


@dataclass(frozen=True)
class Trap:
    """A draft, and what must hold of it on some engines (names separated by blanks)."""

    told: str
    expected: dict[str, dict[str, Any]]
    keys: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    dialect: str = "sglang"
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

"""Draft directories written tensor by tensor, not by the code under test."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

ABSENT: Any = object()  # takes a key away
IDS = np.array([0, 1, 3, 4, 7, 8, 9, 15, 20, 21, 30, 31])
OFFSETS, MASK = IDS - np.arange(12), np.isin(np.arange(32), IDS)
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
LAYER = "midlayer."
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 32,
    "draft_vocab_size": 12,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eagle_config": {LAYER_IDS: [1, 3, 4]},
}
SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (8, 24),
    f"{LAYER}hidden_norm.weight": (8,),
    f"{LAYER}input_layernorm.weight": (8,),
    f"{LAYER}post_attention_layernorm.weight": (8,),
    f"{LAYER}self_attn.q_proj.weight": (16, 16),
    f"{LAYER}self_attn.k_proj.weight": (8, 16),
    f"{LAYER}self_attn.v_proj.weight": (8, 16),
    f"{LAYER}self_attn.o_proj.weight": (8, 16),
    f"{LAYER}mlp.gate_proj.weight": (16, 8),
    f"{LAYER}mlp.up_proj.weight": (16, 8),
    f"{LAYER}mlp.down_proj.weight": (8, 16),
    "norm.weight": (8,),
    "lm_head.weight": (12, 8),
}
WHOLE = {"lm_head.weight": None, "d2t": None, "t2d": None}  # the target's head


def noise(*shape: int, seed: int = 99) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).normal(size=shape), np.float32)


def raw_tensors() -> dict[str, np.ndarray]:
    weights = {name: noise(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
    return weights | {"d2t": OFFSETS.astype(np.int64), "t2d": MASK}


def write_raw(
    directory: Path,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
) -> Path:
    """A SpecForge draft, with keys and tensors changed; `ABSENT` or `None` takes one away."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    config = {key: value for key, value in (CONFIG | (keys or {})).items() if value is not ABSENT}
    (directory / "config.json").write_text(json.dumps(config))
    held = {k: v for k, v in (raw_tensors() | (tensors or {})).items() if v is not None}
    save_file(held, directory / "model.safetensors")
    return directory

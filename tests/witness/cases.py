"""What the frameworks are given: knobs of tiny drafts, a table for each framework.

Where a case is silent, `PLAIN` holds, and what `BESIDE` adds for its framework.
"""

from typing import Any

import ml_dtypes
import numpy as np

COLUMNS = 14
STEPS = 3

LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


def longrope(rotated: int) -> dict[str, Any]:
    half = rotated // 2
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0 + 0.05 * i for i in range(half)],
        "long_factor": [2.0 + 0.5 * i for i in range(half)],
        "original_max_position_embeddings": 32,
    }


PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,  # not hidden_size / num_heads
    "intermediate_size": 48,
    "vocab_size": 96,
    "draft_vocab_size": 40,
    "num_aux": 3,
    "num_layers": 1,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "attention_bias": False,
    "mlp_bias": False,
    "norm_before_residual": False,
    "norm_before_fc": False,
    "fc_norm": False,
    "norm_output": False,
    "target_hidden_size": 32,
    "fc_bias": False,
    "attention": "eager",
    "first_position": 0,
    "columns": COLUMNS,
    "lengths": None,  # of the texts of a batch; none is one text of all columns
    "dtype": "float32",
    "sliding_window": None,
}
FAR: dict[str, Any] = {"first_position": 20000, "max_position_embeddings": 32768}

SPECULATORS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "residual+before_fc": {"norm_before_residual": True, "norm_before_fc": True},
    "residual+fc_norm": {"norm_before_residual": True, "fc_norm": True},
    "residual+output": {"norm_before_residual": True, "norm_output": True},
    "before_fc+output": {"norm_before_fc": True, "norm_output": True},
    "fc_norm+output": {"fc_norm": True, "norm_output": True},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "sdpa": {"attention": "sdpa"},
    "aux1": {"num_aux": 1},
    "aux4+fc_norm": {"num_aux": 4, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "two_layers+residual+output": {
        "num_layers": 2,
        "norm_before_residual": True,
        "norm_output": True,
    },
    "attention_bias": {"attention_bias": True},
    "mlp_bias": {"mlp_bias": True},
    "qk_norm": {"model_type": "qwen3"},
    "qk_norm+bias+two_layers": {"model_type": "qwen3", "attention_bias": True, "num_layers": 2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    # These two change within the run: their limit is crossed between step 0 and step 2.
    "dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        "max_position_embeddings": COLUMNS,
    },
    "longrope": {
        "rope_parameters": longrope(12) | {"original_max_position_embeddings": COLUMNS},
    },
    "far": FAR,
    "far+llama3": FAR | {"rope_parameters": LLAMA3},
}

# SpecForge takes no position past the length of its row: a far one needs a long text.
LONG: dict[str, Any] = {"columns": 400, "max_position_embeddings": 512}

# Nor does it have defaults for these four.
FULL_YARN = YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.7}

SPECFORGE: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "norm_output+fc_norm": {"norm_output": True, "fc_norm": True},
    "no_final_norm": {"norm_output": False},
    "no_final_norm+fc_norm": {"norm_output": False, "fc_norm": True},
    "wide_target": {"target_hidden_size": 48},
    "wide_target+fc_norm": {"target_hidden_size": 48, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": FULL_YARN},
    "stated_capture": {"aux_layer_ids": [1, 4, 6]},
    "long": LONG,
    "long+llama3": LONG | {"rope_parameters": LLAMA3},
}


SGLANG: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_output": {"norm_output": True},
    "fc_norm+output": {"fc_norm": True, "norm_output": True},
    "before_fc+output": {"norm_before_fc": True, "norm_output": True},
    "fc_bias": {"fc_bias": True},
    "aux2": {"num_aux": 2},
    "aux4+fc_norm": {"num_aux": 4, "fc_norm": True},
    "wide_target": {"target_hidden_size": 48, "fc_norm": True},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "three_layers+output": {"num_layers": 3, "norm_output": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "far": FAR,
    "far+llama3": FAR | {"rope_parameters": LLAMA3},
}


MODELOPT: dict[str, dict[str, Any]] = {
    "plain": {},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "head_dim=D_by_N": {"head_dim": 8},
    "aux1": {"num_aux": 1, "aux_layer_ids": [4]},
    "aux4": {"num_aux": 4, "aux_layer_ids": [0, 2, 3, 5]},
    "whole_vocabulary": {"draft_vocab_size": 96},
    "head_of_the_target": {"draft_vocab_size": 96, "has_lm_head": False},
    "added_yarn": {"export_rope_scaling": None},  # in its file, not in its training
    "bfloat16": {"dtype": "bfloat16"},
    "large_eps": {"rms_norm_eps": 1e-2},
    "two_layers": {"num_layers": 2},
    "attention_bias": {"attention_bias": True},
    "mlp_bias+two_layers": {"mlp_bias": True, "num_layers": 2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": {"rope_parameters": LINEAR},
    "llama3": {"rope_parameters": LLAMA3},
    "yarn": {"rope_parameters": YARN},
    "far": FAR,
    "far+llama3": FAR | {"rope_parameters": LLAMA3},
}

DRAFTS = {
    "speculators": SPECULATORS,
    "specforge": SPECFORGE,
    "sglang": SGLANG,
    "modelopt": MODELOPT,
}
BESIDE: dict[str, dict[str, Any]] = {
    "speculators": {},
    "specforge": {"fc_norm": None, "norm_output": None, "aux_layer_ids": None},
    "sglang": {},
    "modelopt": {
        "aux_layer_ids": [1, 3, 5],
        "has_lm_head": True,
        "export_rope_scaling": {},  # its default is refused beside another scaling
    },
}


# The same drafts under other conditions; nobody reads or writes their files.
PADDED: dict[str, Any] = {"lengths": [COLUMNS, 9, 5]}
HALF: dict[str, Any] = {"dtype": "bfloat16"}
WINDOW: dict[str, Any] = {"sliding_window": 5}
_ROTATIONS: dict[str, dict[str, Any]] = {
    "default": PLAIN["rope_parameters"],
    "linear": LINEAR,
    "llama3": LLAMA3,
    "yarn": YARN,
}


def _rotated(rotations: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each rotation at positions 0..64 and at 20000..20064, which are within its reach."""
    near, far = {"columns": 65}, FAR | {"columns": 65}
    cases = {}
    for kind, rotation in rotations.items():
        wide = rotation | ({"original_max_position_embeddings": 8192} if kind == "yarn" else {})
        cases[f"near:{kind}"] = near | {"rope_parameters": rotation}
        cases[f"afar:{kind}"] = far | {"rope_parameters": wide}
    return cases


CONDITIONS: dict[str, dict[str, dict[str, Any]]] = {
    "speculators": {
        "padded": PADDED,
        "padded+two_layers": PADDED | {"num_layers": 2, "norm_output": True},
        "bfloat16": HALF,
        "bfloat16+norms": HALF
        | {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
        "bfloat16+two_layers": HALF | {"num_layers": 2, "fc_norm": True},
        "bfloat16+far": HALF | FAR,
        "window": WINDOW,
    }
    | _rotated(_ROTATIONS | {"longrope": longrope(12)}),
    "specforge": {
        "padded": PADDED,
        "bfloat16": HALF,
        "bfloat16+fc_norm": HALF | {"fc_norm": True},
        "bfloat16+far": HALF | FAR,
    }
    | _rotated(_ROTATIONS | {"yarn": FULL_YARN}),
    "sglang": {
        "padded": PADDED,
        "padded+two_layers": PADDED | {"num_layers": 2, "norm_output": True},
        "bfloat16": HALF,
        "bfloat16+norms": HALF | {"norm_before_fc": True, "norm_output": True},
        "bfloat16+two_layers": HALF | {"num_layers": 2, "fc_norm": True},
        "bfloat16+far": HALF | FAR,
    }
    | _rotated(_ROTATIONS),
    "modelopt": {
        "padded": PADDED,
        "padded+two_layers": PADDED | {"num_layers": 2},
        "bfloat16+two_layers": HALF | {"num_layers": 2},
        "bfloat16+far": HALF | FAR,
    }
    | _rotated(_ROTATIONS),
}


def knobs_of(framework: str, name: str) -> dict[str, Any]:
    """A case's knobs, all of them."""
    cases = DRAFTS[framework] | CONDITIONS[framework]
    return PLAIN | BESIDE[framework] | cases[name]


NEAR, FAR_POSITIONS = list(range(65)), list(range(20000, 20065))
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "linear": {"rope_parameters": LINEAR},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "llama3": {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 8192}},
    "yarn": {"rope_parameters": YARN},
    "yarn_mscale": {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}},
    "yarn_attention_factor": {"rope_parameters": YARN | {"attention_factor": 1.3}},
    "yarn_betas": {
        "rope_parameters": YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}
    },
    "longrope": {"rope_parameters": longrope(16)},
    "longrope_attention_factor": {
        "rope_parameters": longrope(16) | {"attention_factor": 1.2, "factor": 8.0}
    },
    "partial_default": {
        "rotary": "phi",
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.25,
        },
    },
    "partial_linear": {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5}},
    "partial_yarn": {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}},
    "partiallongrope": {"rope_parameters": longrope(8) | {"partial_rotary_factor": 0.5}},
}

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_biased": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama_mqa": ("llama", {"num_key_value_heads": 1, "rope_parameters": YARN}),
    "qwen2": ("qwen2", {"num_key_value_heads": 4}),
    "qwen2_window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3_biased": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "mistral_window": ("mistral", {"sliding_window": 5}),
}
NEW_TOKENS = 12

LAYERS: dict[str, dict[str, Any]] = {
    "layer": {},
    "layer_head_dim": {"head_dim": 12, "num_key_value_heads": 1, "rope_parameters": LLAMA3},
    "layer_biased": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4},
}
NORMS: dict[str, tuple[type, float]] = {
    "norm_float32": (np.float32, 1e-5),
    "norm_large_eps": (np.float32, 1e-1),
    "norm_bfloat16": (ml_dtypes.bfloat16, 1e-6),
}

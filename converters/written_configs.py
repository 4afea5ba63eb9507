"""`DraftConfig` -> the config.json of a dialect.

Every knob is written out, since readers' defaults disagree.
"""

from typing import Any, NamedTuple

from converters.captures import write_ids
from converters.config_keys import LAYER, NESTED, SPECULATORS
from converters.dialects.base import Dialect
from converters.ropes import write_rope
from eagle3_jax.config import AttentionConfig, DraftConfig, LatentAttentionConfig

_LAYER_KEYS = (  # of speculators: what stands in transformer_layer_config
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "hidden_act",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "attention_bias",
    "mlp_bias",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
)


class Surroundings(NamedTuple):
    """What a config.json says beside the draft's own knobs.

    Attributes:
        max_positions: the longest context.
        dtype: the weights' type, as torch names it.
        target_name: where the target is found, `None` where nobody said.
    """

    max_positions: int
    dtype: str
    target_name: str | None = None


def write_config(
    c: DraftConfig, dialect: Dialect, boundaries: tuple[int, ...] | None, around: Surroundings
) -> dict[str, Any]:
    """A config.json.

    Args:
        c: the draft's dimensions and knobs, all of which the dialect has a place for.
        dialect: who is to read it.
        boundaries: the capture, `None` where nobody knows it.
        around: what the draft itself does not say.
    """
    ids = write_ids(boundaries, dialect)
    keys: dict[str, Any] = {
        "architectures": [_architecture(c, dialect)],
        "model_type": _model_type(c, dialect),
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        **_attention(c),
        "vocab_size": c.vocab_size,
        # null makes a server take the target's head; a number, the file's.
        "draft_vocab_size": None if c.head == "target" else c.draft_vocab_size,
        "max_position_embeddings": around.max_positions,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": "silu",
        **write_rope(c.rope, spelled=dialect.spelled_yarn),
        "bias": c.fc_bias,
        "attention_bias": _attention_bias(c, dialect),
        "mlp_bias": c.mlp_bias,
        "num_aux_hidden_states": c.num_aux,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.final_norm if dialect.norm_output_is_final_norm else c.norm_output,
        "tie_word_embeddings": c.head == "tied",
        dialect.dtype_key: around.dtype,
        **_window(c),
    }
    if dialect.rope_parameters:
        keys["rope_parameters"] = {"rope_type": "default", "rope_theta": c.rope.theta}
    if c.target_hidden_size != c.hidden_size or dialect.target_width_key:
        # Its mere presence makes SafeAILab's loader look for embeddings in the draft's file.
        keys["target_hidden_size"] = c.target_hidden_size
    if dialect.nested_config:
        return _speculators(keys, c, ids, dialect, around)
    if dialect.ids == "top":
        keys |= ids
        ids = {}
    if dialect.eagle_config is not None:
        keys[NESTED] = {"use_aux_hidden_state": c.num_aux > 0} | ids
        keys[NESTED] |= {"norm_before_fc": c.norm_before_fc}
        if dialect.feedback_key is not None:
            keys[NESTED][dialect.feedback_key] = c.norm_output
        keys[NESTED] |= dialect.eagle_config
    return keys


def _architecture(c: DraftConfig, dialect: Dialect) -> str:
    if isinstance(c.attention, LatentAttentionConfig):
        assert dialect.latent_architecture is not None, "refused before"
        return dialect.latent_architecture
    if c.attention.qk_norm and dialect.qk_norm_architecture is not None:
        return dialect.qk_norm_architecture
    return dialect.architecture


def _model_type(c: DraftConfig, dialect: Dialect) -> str:
    if isinstance(c.attention, LatentAttentionConfig):
        return dialect.latent_model_type
    return "qwen3" if c.attention.qk_norm else "llama"


def _attention(c: DraftConfig) -> dict[str, Any]:
    a = c.attention
    keys: dict[str, Any] = {
        "num_attention_heads": a.num_heads,
        "num_key_value_heads": a.num_kv_heads,
    }
    if isinstance(a, AttentionConfig):
        return keys | {"head_dim": a.head_dim}
    return keys | {
        "q_lora_rank": a.q_lora_rank,
        "kv_lora_rank": a.kv_lora_rank,
        "qk_nope_head_dim": a.qk_nope_head_dim,
        "qk_rope_head_dim": a.qk_rope_head_dim,
        "v_head_dim": a.v_head_dim,
    }


def _attention_bias(c: DraftConfig, dialect: Dialect) -> bool:
    if not isinstance(c.attention, AttentionConfig):
        return False
    return c.attention.output_bias if dialect.biases == "o" else c.attention.bias


def _window(c: DraftConfig) -> dict[str, Any]:
    if not isinstance(c.attention, AttentionConfig) or c.attention.sliding_window is None:
        return {}
    return {
        "sliding_window": c.attention.sliding_window,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * c.num_layers,
    }


def _speculators(
    keys: dict[str, Any],
    c: DraftConfig,
    ids: dict[str, Any],
    dialect: Dialect,
    around: Surroundings,
) -> dict[str, Any]:
    """The layer apart, and the words by which a server knows how to speculate."""
    layer = {name: keys[name] for name in _LAYER_KEYS if name in keys}
    if layer["model_type"] == "qwen3":
        layer.pop("mlp_bias")  # Qwen3's MLP has none
    return {
        "architectures": keys["architectures"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": c.draft_vocab_size,
        "norm_before_residual": c.norm_before_residual,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.norm_output,
        "target_hidden_size": (
            c.target_hidden_size if c.target_hidden_size != c.hidden_size else None
        ),
        **ids,
        "tie_word_embeddings": False,
        dialect.dtype_key: around.dtype,
        LAYER: layer,
        SPECULATORS: {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 5,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": around.target_name, "architectures": []},
        },
    }

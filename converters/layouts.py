"""How frameworks write a draft, as data: tensor names, config keys and what they cannot express.

A key that a checkpoint's config holds is handled, ignored by name, or refused. One `Layout` a
framework; nothing else in `converters` names one.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from eagle3_jax.capture import Numbering
from eagle3_jax.config import DraftConfig, DynamicScaling, LongRopeScaling, YarnScaling

# Canonical names are `layers.{i}.*`, `fc.weight`, `norm.weight`, ... without a prefix.
_RENAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(?=\d+\.)"), "layers."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
# Other kinds of draft, told by a tensor that only they have.
FOREIGN_TENSORS = (
    (re.compile(r"\.(kv_a_proj_with_mqa|q_a_proj|kv_b_proj)\."), "multi-head latent attention"),
    (re.compile(r"^mask_hidden$"), "parallel drafting (P-EAGLE)"),
    (re.compile(r"^parallel_draft_heads\."), "parallel draft heads"),
)


class Layout(NamedTuple):
    """How one framework reads a draft.

    Attributes:
        name: as users say it.
        architecture: the `architectures` string that its loader registers.
        first_layer: prefix of layer 0.
        later_norm: what it calls the input norm of layers after the first.
        numbering: what its layer ids mean.
        handled: keys of config.json that decide something.
        nested: keys of `eagle_config` that decide something.
        ignored: keys of config.json that decide nothing.
        foreign: keys that mark something else when they are set, and what they mark.
        refuses: what it has no place for: what the user is told, and the test for it, which is
            given the draft's config and the longest context.
    """

    name: str
    architecture: str
    first_layer: str
    later_norm: str
    numbering: Numbering
    handled: frozenset[str]
    nested: frozenset[str]
    ignored: frozenset[str]
    foreign: Mapping[str, str]
    refuses: tuple[tuple[str, Callable[[DraftConfig, int], bool]], ...]


def _scaling_sets(kind: type, name: str) -> Callable[[DraftConfig, int], bool]:
    def holds(config: DraftConfig, _: int) -> bool:
        scaling = config.rope.scaling
        return isinstance(scaling, kind) and getattr(scaling, name) is not None

    return holds


def _stretches_otherwise(config: DraftConfig, max_positions: int) -> bool:
    scaling = config.rope.scaling
    return (
        isinstance(scaling, LongRopeScaling)
        and scaling.factor != max_positions / scaling.original_max_positions
    )


# SGLang 0.5.23, srt/models/llama_eagle3.py: qkv bias is hard False, names it does not know are
# dropped without a word, the residual is always raw, fc is skipped where its input is as wide as
# an embedding, and the target's embeddings replace the draft's unless the widths differ.
# srt/layers/rotary_embedding/factory.py: dynamic scaling stretches short texts too, LongRoPE's
# factor is max_position_embeddings over the original length, no attention_factor is read.
SGLANG = Layout(
    name="sglang",
    architecture="LlamaForCausalLMEagle3",
    first_layer="midlayer.",
    later_norm="hidden_norm",
    numbering="output",
    handled=frozenset(
        {
            "attention_bias",
            "bias",
            "draft_vocab_size",
            "eagle_config",
            "fc_norm",
            "head_dim",
            "hidden_act",
            "hidden_size",
            "intermediate_size",
            "max_position_embeddings",
            "mlp_bias",
            "norm_before_fc",
            "norm_before_residual",
            "norm_output",
            "num_attention_heads",
            "num_aux_hidden_states",
            "num_hidden_layers",
            "num_key_value_heads",
            "original_max_position_embeddings",
            "partial_rotary_factor",
            "rms_norm_eps",
            "rope_parameters",
            "rope_scaling",
            "rope_theta",
            "sliding_window",
            "target_hidden_size",
            "tie_word_embeddings",
            "use_aux_norm",
            "use_sliding_window",
            "vocab_size",
        }
    ),
    nested=frozenset(
        {"eagle_aux_hidden_state_layer_ids", "norm_before_fc", "use_aux_hidden_state"}
    ),
    ignored=frozenset(
        {
            "_name_or_path",
            "architectures",
            "attention_dropout",
            "auto_map",
            "bos_token_id",
            "dtype",
            "eos_token_id",
            "initializer_range",
            "max_window_layers",
            "model_type",
            "pad_token_id",
            "pretraining_tp",
            "torch_dtype",
            "transformers_version",
            "use_cache",
        }
    ),
    foreign={
        "speculators_config": "a speculators draft",
        "quantization_config": "quantised weights",
        "kv_lora_rank": "multi-head latent attention",
        "parallel_drafting": "parallel drafting (P-EAGLE)",
    },
    refuses=(
        ("norm_before_residual", lambda c, _: c.norm_before_residual),
        ("double_norm", lambda c, _: c.double_norm),
        ("a missing final norm", lambda c, _: not c.final_norm),
        ("attention biases", lambda c, _: c.attention.bias or c.attention.output_bias),
        ("mlp_bias", lambda c, _: c.mlp_bias),
        ("q/k norms", lambda c, _: c.attention.qk_norm),
        ("a sliding window", lambda c, _: c.attention.sliding_window is not None),
        ("a draft without fc", lambda c, _: c.num_aux == 0),
        (
            "an fc that reads as many columns as it has rows",
            lambda c, _: c.aux_width == c.hidden_size,
        ),
        ("dynamic RoPE scaling", lambda c, _: isinstance(c.rope.scaling, DynamicScaling)),
        ("YaRN's attention_factor", _scaling_sets(YarnScaling, "attention_factor")),
        ("LongRoPE's attention_factor", _scaling_sets(LongRopeScaling, "attention_factor")),
        ("a LongRoPE factor other than max_positions / original length", _stretches_otherwise),
    ),
)


def canonical_name(name: str) -> str:
    """The name of a tensor without the framework's prefixes."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def written_name(name: str, layout: Layout) -> str:
    """A canonical name as a framework writes it."""
    if name.startswith("layers.0."):
        return layout.first_layer + name.removeprefix("layers.0.")
    if name.endswith(".input_layernorm.weight") and name.startswith("layers."):
        return name.replace("input_layernorm", layout.later_norm)
    return name

"""How frameworks write a draft, as data: tensor names, config keys and what they cannot express.

A key that a checkpoint's config holds is handled, ignored by name, or refused.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from eagle3_jax.capture import Numbering
from eagle3_jax.config import DraftConfig

# Canonical names are `layers.{i}.*`, `fc.weight`, `norm.weight`, ... without a prefix.
_RENAMES = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(?=\d+\.)"), "layers."),
    (re.compile(r"^midlayer\."), "layers.0."),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)

HANDLED_KEYS = frozenset(
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
        "model_type",
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
        "target_hidden_size",
        "tie_word_embeddings",
        "use_aux_norm",
        "vocab_size",
    }
)
EAGLE_CONFIG_KEYS = frozenset(
    {"eagle_aux_hidden_state_layer_ids", "norm_before_fc", "use_aux_hidden_state"}
)
IGNORED_KEYS = frozenset(
    {
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "max_window_layers",
        "pad_token_id",
        "pretraining_tp",
        "sliding_window",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "use_sliding_window",
    }
)


class Layout(NamedTuple):
    """How one framework reads a draft.

    Attributes:
        name: as users say it.
        architecture: the `architectures` string that its loader registers.
        first_layer: prefix of layer 0.
        numbering: what its layer ids mean.
        refuses: what it has no place for: what is told to the user, and the test for it.
    """

    name: str
    architecture: str
    first_layer: str
    numbering: Numbering
    refuses: tuple[tuple[str, Callable[[DraftConfig], bool]], ...]


# SGLang 0.5.23, srt/models/llama_eagle3.py: qkv bias is hard False, names it does not know are
# dropped without a word, the residual is always raw.
SGLANG = Layout(
    name="sglang",
    architecture="LlamaForCausalLMEagle3",
    first_layer="midlayer.",
    numbering="output",
    refuses=(
        ("norm_before_residual", lambda c: c.norm_before_residual),
        ("double_norm", lambda c: c.double_norm),
        ("a missing final norm", lambda c: not c.final_norm),
        ("attention biases", lambda c: c.attention.bias or c.attention.output_bias),
        ("mlp_bias", lambda c: c.mlp_bias),
        ("q/k norms", lambda c: c.attention.qk_norm),
        ("a sliding window", lambda c: c.attention.sliding_window is not None),
        ("a draft without fc", lambda c: c.num_aux == 0),
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
        # SGLang norms the input of layers after the first by hidden_norm.
        return name.replace("input_layernorm", "hidden_norm")
    return name

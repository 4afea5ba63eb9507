"""A Llama-family target out of a Hugging Face directory, one file or sharded."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.files import read_checkpoint, read_json, require_directory
from converters.keys import read_flag, read_integer, read_number
from converters.ropes import read_rope
from converters.trees import require_shapes, to_tree
from eagle3_jax.config import AttentionConfig, TargetConfig
from eagle3_jax.errors import InputError

# model_type -> (q/k/v bias, output bias, q/k norm); None means `attention_bias` decides.
_FAMILIES: dict[str, tuple[bool | None, bool | None, bool]] = {
    "llama": (None, None, False),
    "mistral": (False, False, False),
    "qwen2": (True, False, False),
    "qwen3": (None, None, True),
}
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_COMPUTED = ".rotary_emb.inv_freq"  # older files store what the config already says
_WINDOW, _FULL_LAYERS = 4096, 28  # sliding_window and max_window_layers where they are absent


class LoadedTarget(NamedTuple):
    """A target in memory: its config and its parameter tree (NumPy arrays, dtypes as on disk)."""

    config: TargetConfig
    params: dict[str, Any]


def load_target(directory: Path) -> LoadedTarget:
    """Read a whole target.

    Args:
        directory: holds config.json and safetensors.

    Raises:
        InputError: for another model family, missing files, or tensors that do not fit.
    """
    require_directory(directory, "a target")
    config_file = directory / "config.json"
    raw = read_json(config_file)
    tensors, origins = _canonical(read_checkpoint(directory), directory)
    config = read_target_config(raw, str(config_file), has_head=_HEAD in tensors)
    if config.tie_embeddings:
        tensors.pop(_HEAD, None)  # transformers overwrites it with the embeddings
    require_shapes(tensors, _shapes(config), str(directory), origins)
    embedding = tensors.pop(_EMBEDDING)
    return LoadedTarget(config, to_tree(tensors) | {"embed_tokens": embedding})


def read_target_config(raw: dict[str, Any], where: str, *, has_head: bool) -> TargetConfig:
    """The target that a config.json describes.

    Args:
        raw: the JSON object.
        where: the file, for messages.
        has_head: whether the checkpoint holds `lm_head`; decides where the config is silent.

    Raises:
        InputError: for another model family or a missing key.
    """
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise InputError(
            f"{where}: model_type is {family!r}, expected one of {', '.join(_FAMILIES)}"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{where}: hidden_act is {raw['hidden_act']!r}, expected 'silu'")
    if raw.get("quantization_config"):
        raise InputError(f"{where}: quantization_config marks quantised weights, expected floats")
    bias, output_bias, qk_norm = _FAMILIES[family]
    configured = read_flag(raw, "attention_bias", where)
    heads = read_integer(raw, "num_attention_heads", where)
    width = read_integer(raw, "hidden_size", where)
    layers = read_integer(raw, "num_hidden_layers", where)
    try:
        return TargetConfig(
            hidden_size=width,
            intermediate_size=read_integer(raw, "intermediate_size", where),
            vocab_size=read_integer(raw, "vocab_size", where),
            num_layers=layers,
            attention=AttentionConfig(
                num_heads=heads,
                num_kv_heads=read_integer(raw, "num_key_value_heads", where, default=heads),
                head_dim=read_integer(raw, "head_dim", where, default=width // heads),
                bias=configured if bias is None else bias,
                output_bias=configured if output_bias is None else output_bias,
                qk_norm=qk_norm,
            ),
            rope=read_rope(raw, where),
            rms_norm_eps=read_number(raw, "rms_norm_eps", where, default=1e-6),
            mlp_bias=read_flag(raw, "mlp_bias", where) and family == "llama",
            tie_embeddings=read_flag(raw, "tie_word_embeddings", where, default=not has_head),
            windows=_windows(raw, family, layers, where),
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _windows(raw: dict[str, Any], family: str, layers: int, where: str) -> tuple[int | None, ...]:
    """The window of each layer, as transformers' config classes have it."""
    off = family == "llama" or (
        family != "mistral" and not read_flag(raw, "use_sliding_window", where)
    )
    if off or raw.get("sliding_window", _WINDOW) is None:
        return (None,) * layers
    window = read_integer(raw, "sliding_window", where, default=_WINDOW)
    if family == "mistral":
        return (window,) * layers
    first = 0
    if raw.get("max_window_layers") != 0:
        first = read_integer(raw, "max_window_layers", where, default=_FULL_LAYERS)
    kinds = raw.get("layer_types")
    if kinds is None:
        kinds = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    if not isinstance(kinds, list) or not {*kinds} <= {"sliding_attention", "full_attention"}:
        raise InputError(
            f"{where}: layer_types is {kinds!r}, expected a list of full_attention and "
            "sliding_attention"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _canonical(
    tensors: dict[str, np.ndarray], directory: Path
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors under canonical names, and the name that each has in the file."""
    renamed: dict[str, np.ndarray] = {}
    origins: dict[str, str] = {}
    for name, tensor in tensors.items():
        canonical = name.removeprefix("model.")
        if canonical.endswith(_COMPUTED):
            continue
        if canonical in renamed:
            raise InputError(
                f"{directory}: {origins[canonical]} and {name} are both {canonical}, expected one"
            )
        renamed[canonical], origins[canonical] = tensor, name
    return renamed, origins


def _shapes(c: TargetConfig) -> dict[str, list[int]]:
    """Every tensor, `[out, in]`, under canonical names."""
    a = c.attention
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    linear = {
        "self_attn.q_proj": (queries, c.hidden_size, a.bias),
        "self_attn.k_proj": (keys, c.hidden_size, a.bias),
        "self_attn.v_proj": (keys, c.hidden_size, a.bias),
        "self_attn.o_proj": (c.hidden_size, queries, a.output_bias),
        "mlp.gate_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.up_proj": (c.intermediate_size, c.hidden_size, c.mlp_bias),
        "mlp.down_proj": (c.hidden_size, c.intermediate_size, c.mlp_bias),
    }
    norms = {"input_layernorm": c.hidden_size, "post_attention_layernorm": c.hidden_size}
    if a.qk_norm:
        norms |= {"self_attn.q_norm": a.head_dim, "self_attn.k_norm": a.head_dim}
    shapes: dict[str, list[int]] = {
        _EMBEDDING: [c.vocab_size, c.hidden_size],
        "norm.weight": [c.hidden_size],
    }
    if not c.tie_embeddings:
        shapes[_HEAD] = [c.vocab_size, c.hidden_size]
    for layer in range(c.num_layers):
        for name, (rows, columns, bias) in linear.items():
            shapes[f"layers.{layer}.{name}.weight"] = [rows, columns]
            if bias:
                shapes[f"layers.{layer}.{name}.bias"] = [rows]
        shapes |= {f"layers.{layer}.{name}.weight": [size] for name, size in norms.items()}
    return shapes

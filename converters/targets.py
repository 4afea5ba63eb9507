"""A Llama-family target out of a Hugging Face directory, one file or sharded."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.files import read_json, read_tensors, weight_files
from converters.ropes import read_rope
from converters.trees import to_tree
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
    config_file = directory / "config.json"
    raw = read_json(config_file)
    tensors = {
        name.removeprefix("model."): tensor
        for name, tensor in read_tensors(weight_files(directory)).items()
    }
    config = read_target_config(raw, str(config_file), has_head=_HEAD in tensors)
    embedding = _take(tensors, _EMBEDDING, directory)
    if config.tie_embeddings:
        tensors.pop(_HEAD, None)
    expected = {name: shape for name, shape in _shapes(config).items()}
    for name in sorted(expected.keys() | tensors.keys()):
        found = list(tensors[name].shape) if name in tensors else None
        if found != expected.get(name):
            raise InputError(
                f"{directory}: tensor {name} has shape {found}, expected {expected.get(name)}"
            )
    params = to_tree(tensors)
    params["embed_tokens"] = embedding
    return LoadedTarget(config, params)


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
    bias, output_bias, qk_norm = _FAMILIES[family]
    configured = bool(raw.get("attention_bias"))
    heads = _integer(raw, "num_attention_heads", where)
    width = _integer(raw, "hidden_size", where)
    layers = _integer(raw, "num_hidden_layers", where)
    try:
        return TargetConfig(
            hidden_size=width,
            intermediate_size=_integer(raw, "intermediate_size", where),
            vocab_size=_integer(raw, "vocab_size", where),
            num_layers=layers,
            attention=AttentionConfig(
                num_heads=heads,
                num_kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(raw.get("head_dim") or width // heads),
                bias=configured if bias is None else bias,
                output_bias=configured if output_bias is None else output_bias,
                qk_norm=qk_norm,
            ),
            rope=read_rope(raw, where),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            mlp_bias=bool(raw.get("mlp_bias")) and family == "llama",
            tie_embeddings=bool(raw.get("tie_word_embeddings", not has_head)),
            windows=_windows(raw, family, layers),
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def _windows(raw: dict[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = raw.get("sliding_window")
    if family == "llama" or window is None:
        return (None,) * layers
    if family == "mistral":
        return (int(window),) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers") or 0)
        sliding = bool(raw.get("use_sliding_window"))
        kinds = ["sliding_attention" if sliding and i >= first else "" for i in range(layers)]
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _integer(raw: dict[str, Any], key: str, where: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{where}: {key} is {value!r}, expected an integer")
    return value


def _take(tensors: dict[str, np.ndarray], name: str, directory: Path) -> np.ndarray:
    if name not in tensors:
        raise InputError(f"{directory}: found no tensor {name}, expected a causal language model")
    return tensors.pop(name)


def _shapes(c: TargetConfig) -> dict[str, list[int]]:
    """Every tensor but the embedding table, `[out, in]`."""
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
    shapes: dict[str, list[int]] = {"norm.weight": [c.hidden_size]}
    if not c.tie_embeddings:
        shapes[_HEAD] = [c.vocab_size, c.hidden_size]
    for layer in range(c.num_layers):
        for name, (rows, columns, bias) in linear.items():
            shapes[f"layers.{layer}.{name}.weight"] = [rows, columns]
            if bias:
                shapes[f"layers.{layer}.{name}.bias"] = [rows]
        shapes |= {f"layers.{layer}.{name}.weight": [size] for name, size in norms.items()}
    return shapes

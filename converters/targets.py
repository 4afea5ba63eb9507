"""A Llama-family target out of a Hugging Face directory, one file or sharded."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.files import read_json, require_directory
from converters.keys import read_flag, read_integer, read_number, read_object
from converters.ropes import read_rope
from converters.stored import open_checkpoint
from converters.tensors import Stored
from converters.trees import require_shapes, to_tree
from eagle3_jax.config import AttentionConfig, TargetConfig
from eagle3_jax.errors import InputError

# model_type -> (q/k/v bias, output bias, q/k norm); None means `attention_bias` decides.
FAMILIES: dict[str, tuple[bool | None, bool | None, bool]] = {
    "llama": (None, None, False),
    "mistral": (False, False, False),
    "qwen2": (True, False, False),
    "qwen3": (None, None, True),
}
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_COMPUTED = ".rotary_emb.inv_freq"  # older files store what the config already says
# Layers, and parts of a VLM that are not its language model.
_PARTS = re.compile(r"layers\.\d+\.|blocks\.\d+\.|visual|vision|audio|mtp|eagle|talker|code2wav")
_HOLDERS = ("thinker_config", "text_config", "llm_config", "language_config")
_EPSILON = 1e-6  # rms_norm_eps where it is absent
_WINDOW, _FULL_LAYERS = 4096, 28  # sliding_window and max_window_layers where they are absent


class LoadedTarget(NamedTuple):
    """A target in memory: its config and its parameter tree (NumPy arrays, dtypes as on disk)."""

    config: TargetConfig
    params: dict[str, Any]


class OpenTarget(NamedTuple):
    """What a draft may want of a target, unread; of any family.

    Attributes:
        directory: where from.
        vocab_size: V.
        hidden_size: Dt.
        num_layers: L.
        max_positions: its longest context, where the config says.
        rms_norm_eps: of its final norm.
        embeddings: `[V,Dt]`.
        head: `[V,Dt]`; the embeddings where the two are tied.
        norm: `[Dt]`, the final norm's weight.
    """

    directory: Path
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_positions: int | None
    rms_norm_eps: float
    embeddings: Stored
    head: Stored
    norm: Stored


def open_target(directory: Path) -> OpenTarget:
    """Find token embeddings, head and final norm of a target, also of one nested in a VLM.

    Args:
        directory: holds config.json and weights, one file or sharded.

    Raises:
        InputError: when one of them is missing, found twice, or does not fit the config.
    """
    require_directory(directory, "a target")
    where = str(directory / "config.json")
    raw = read_json(directory / "config.json")
    text = _text_config(raw, where)
    tensors = open_checkpoint(directory).tensors
    embeddings = _find(tensors, _EMBEDDING, directory)
    assert embeddings is not None, "needed"
    if len(embeddings.shape) != 2 or not all(embeddings.shape):
        raise InputError(
            f"{directory}: tensor {embeddings.name} has shape {list(embeddings.shape)}, expected "
            "rows and columns"
        )
    beside = embeddings.name.removesuffix(_EMBEDDING) + "norm.weight"
    if beside not in tensors:
        raise InputError(f"{directory}: found no tensor {beside}, expected the final norm there")
    norm = tensors[beside]
    head = _find(tensors, _HEAD, directory, needed=False)
    silent = text.get("tie_word_embeddings") is None
    tied = read_flag(text, "tie_word_embeddings", where) or read_flag(
        raw, "tie_word_embeddings", where, default=silent and head is None
    )
    if head is None and not tied:
        raise InputError(
            f"{directory}: found no {_HEAD}, expected one: its embeddings are not tied"
        )
    vocab_size, width = embeddings.shape
    chosen = embeddings if tied or head is None else head
    for tensor, shape in ((chosen, (vocab_size, width)), (norm, (width,))):
        if tensor.shape != shape:
            raise InputError(
                f"{directory}: tensor {tensor.name} has shape {list(tensor.shape)}, expected "
                f"{list(shape)}"
            )
    longest = None
    if text.get("max_position_embeddings") is not None:
        longest = read_integer(text, "max_position_embeddings", where)
    layers = read_integer(text, "num_hidden_layers", where)
    epsilon = read_number(text, "rms_norm_eps", where, default=_EPSILON)
    return OpenTarget(
        directory, vocab_size, width, layers, longest, epsilon, embeddings, chosen, norm
    )


def _text_config(raw: dict[str, Any], where: str) -> dict[str, Any]:
    """The part of a config that describes the language model, however deep it is nested."""
    for holder in _HOLDERS:
        inner = read_object(raw, holder, where)
        if inner:
            return _text_config(inner, where)
    return raw


def _find(
    tensors: dict[str, Stored], plain: str, directory: Path, *, needed: bool = True
) -> Stored | None:
    """The one tensor of a language model that is called so, behind whatever prefixes."""
    depth = {
        name: name.removesuffix(plain)
        for name in tensors
        if name == plain or name.endswith(f".{plain}")
    }
    own = {name: tensors[name] for name, prefix in depth.items() if not _PARTS.search(prefix)}
    if len(own) > 1:
        raise InputError(f"{directory}: {' and '.join(sorted(own))} are both {plain}, expected one")
    if not own and needed:
        raise InputError(f"{directory}: found no tensor {plain}, expected one of that name")
    return next(iter(own.values()), None)


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
    tensors, origins = _canonical(_read_whole(directory), directory)
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
    if family not in FAMILIES:
        raise InputError(
            f"{where}: model_type is {family!r}, expected one of {', '.join(FAMILIES)}"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{where}: hidden_act is {raw['hidden_act']!r}, expected 'silu'")
    if raw.get("quantization_config"):
        raise InputError(f"{where}: quantization_config marks quantised weights, expected floats")
    bias, output_bias, qk_norm = FAMILIES[family]
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
            rms_norm_eps=read_number(raw, "rms_norm_eps", where, default=_EPSILON),
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


def _read_whole(directory: Path) -> dict[str, np.ndarray]:
    return {name: tensor.read() for name, tensor in open_checkpoint(directory).tensors.items()}


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

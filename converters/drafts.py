"""A draft on disk <-> one canonical form: (config, parameter tree, vocabulary).

Shapes win over the config, and every correction is told; no tensor is dropped in silence.
"""

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from converters.files import (
    SINGLE,
    read_json,
    read_tensors,
    weight_files,
    whole_directory,
    write_json,
    write_tensors,
)
from converters.layouts import (
    EAGLE_CONFIG_KEYS,
    HANDLED_KEYS,
    IGNORED_KEYS,
    SGLANG,
    canonical_name,
    written_name,
)
from converters.ropes import read_rope, write_rope
from converters.trees import to_tensors, to_tree
from eagle3_jax.capture import from_ids, to_ids
from eagle3_jax.config import AttentionConfig, DraftConfig, HeadSource
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap

_EMBEDDING = "embed_tokens.weight"
_LAYER = "layers.0."
_FLOATS = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32)))


class LoadedDraft(NamedTuple):
    """A draft in memory.

    Attributes:
        config: dimensions and knobs.
        params: the tree that `Drafter(config)` applies, NumPy arrays of the types on disk.
        vocab: the draft vocabulary.
        embeddings: `[V,D]` where the file holds a table, else `None`: the target's are due.
        boundaries: the capture that the file states, else `None`.
        notes: what was corrected, rebuilt or assumed, a sentence each.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    embeddings: np.ndarray | None
    boundaries: tuple[int, ...] | None
    notes: tuple[str, ...]


def load_draft(directory: Path) -> LoadedDraft:
    """Read a draft in SGLang's style: SafeAILab, SpecForge, SGLang and their kin.

    Args:
        directory: holds config.json and safetensors.

    Raises:
        InputError: when it holds no EAGLE-3 draft, or tensors and config do not fit together.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory, expected a draft (config.json, weights)")
    where = str(directory / "config.json")
    raw = read_json(directory / "config.json")
    tensors = _canonical(read_tensors(weight_files(directory)), directory)
    _require_draft(raw, tensors, directory)
    _require_known_keys(raw, where)
    notes: list[str] = []
    embeddings = tensors.pop(_EMBEDDING, None)
    offsets, mask = tensors.pop("d2t", None), tensors.pop("t2d", None)
    try:
        config = _config(raw, tensors, embeddings, mask, where, notes)
        vocab = _vocab(config, offsets, mask, where, notes)
        boundaries = _boundaries(raw, config)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    _require_shapes(config, tensors, directory)
    return LoadedDraft(config, to_tree(tensors), vocab, embeddings, boundaries, tuple(notes))


def save_draft(
    directory: Path,
    draft: LoadedDraft,
    *,
    max_positions: int,
    overwrite: bool = False,
) -> None:
    """Write a draft as SGLang and SpecForge read it, whole or not at all.

    Args:
        directory: where to.
        draft: what to write; its `notes` are not written.
        max_positions: the longest context, which the format states.
        overwrite: replace an existing directory.

    Raises:
        InputError: when the format has no place for one of the draft's knobs, or the directory
            exists.
    """
    config = draft.config
    for what, holds in SGLANG.refuses:
        if holds(config):
            raise InputError(f"{directory}: {SGLANG.name} has no place for {what}")
    tensors = {written_name(n, SGLANG): t for n, t in to_tensors(draft.params).items()}
    if draft.embeddings is not None:
        tensors[_EMBEDDING] = draft.embeddings
    ids = draft.vocab.target_ids.astype(np.int64)
    tensors["d2t"] = ids - np.arange(len(ids))
    tensors["t2d"] = draft.vocab.in_draft
    with whole_directory(directory, overwrite=overwrite) as building:
        write_tensors(building / SINGLE, tensors, {"format": "pt"})
        dtype = str(tensors["norm.weight"].dtype)
        written = _written_config(config, draft.boundaries, max_positions, dtype)
        write_json(building / "config.json", written)


def _canonical(tensors: dict[str, np.ndarray], directory: Path) -> dict[str, np.ndarray]:
    renamed: dict[str, np.ndarray] = {}
    origin: dict[str, str] = {}
    for name, tensor in tensors.items():
        canonical = canonical_name(name)
        if canonical in renamed:
            raise InputError(f"{directory}: {origin[canonical]} and {name} are both {canonical}")
        if canonical not in ("d2t", "t2d") and tensor.dtype not in _FLOATS:
            raise InputError(
                f"{directory}: tensor {name} has type {tensor.dtype}, expected bfloat16, float16 "
                "or float32 (quantised drafts are not read)"
            )
        renamed[canonical], origin[canonical] = tensor, name
    # Layers after the first: one norm, which frameworks name in two ways.
    for name in list(renamed):
        if name.endswith(".hidden_norm.weight") and not name.startswith(_LAYER):
            twin = name.replace("hidden_norm", "input_layernorm")
            if twin in renamed:
                raise InputError(f"{directory}: holds both {name} and {twin}, expected one")
            renamed[twin] = renamed.pop(name)
    return renamed


def _require_draft(raw: dict[str, Any], tensors: dict[str, np.ndarray], directory: Path) -> None:
    needed = [_LAYER + "hidden_norm.weight", _LAYER + "self_attn.q_proj.weight"]
    missing = [name for name in needed if name not in tensors]
    if missing:
        found = raw.get("architectures") or [raw.get("model_type")]
        raise InputError(
            f"{directory}: not an EAGLE-3 draft: found {found[0]!r} without "
            f"{' or '.join(missing)}, expected a midlayer that reads [embedding, hidden]"
        )


def _require_known_keys(raw: dict[str, Any], where: str) -> None:
    if "speculators_config" in raw:
        raise InputError(f"{where}: found a speculators config, expected SGLang's or SpecForge's")
    unknown = sorted(raw.keys() - HANDLED_KEYS - IGNORED_KEYS)
    if unknown:
        raise InputError(f"{where}: unknown keys {', '.join(unknown)}, expected none")
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise InputError(f"{where}: eagle_config is {nested!r}, expected an object")
    unknown = sorted(nested.keys() - EAGLE_CONFIG_KEYS)
    if unknown:
        raise InputError(f"{where}: eagle_config has unknown keys {', '.join(unknown)}")
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{where}: hidden_act is {raw['hidden_act']!r}, expected 'silu'")


def _config(
    raw: dict[str, Any],
    tensors: dict[str, np.ndarray],
    embeddings: np.ndarray | None,
    mask: np.ndarray | None,
    where: str,
    notes: list[str],
) -> DraftConfig:
    """Dimensions from shapes, knobs from keys; what disagrees is told."""

    def settle(key: str, found: int) -> int:
        stated = raw.get(key)
        if stated is not None and stated != found:
            notes.append(f"{key} is {stated} in the config, {found} by the tensors' shapes")
        return found

    query = tensors[_LAYER + "self_attn.q_proj.weight"]
    width = settle("hidden_size", len(tensors[_LAYER + "hidden_norm.weight"]))
    layers = settle("num_hidden_layers", _layer_count(tensors))
    attention = _attention(raw, tensors, query, width, where, settle)
    head, draft_size = _head(raw, tensors, where, notes)
    vocab_size = _vocab_size(raw, embeddings, mask, where, notes)
    target_width, num_aux = _fused(raw, tensors, width, where, notes)
    nested = raw.get("eagle_config") or {}
    norm_before_fc = _flag(raw, "norm_before_fc", where) or _flag(nested, "norm_before_fc", where)
    fc_norm = _flag(raw, "fc_norm", where) or _flag(raw, "use_aux_norm", where)
    for flag, key, tensor in (
        (norm_before_fc, "norm_before_fc", "input_norm.weight"),
        (fc_norm, "fc_norm", "fc_norm.0.weight"),
    ):
        if flag != (tensor in tensors):
            raise InputError(
                f"{where}: {key} is {'on' if flag else 'off'}, but the file holds "
                f"{'no ' if flag else ''}{tensor}: one of them is wrong, and acceptance hangs on it"
            )
    return DraftConfig(
        hidden_size=width,
        target_hidden_size=target_width,
        intermediate_size=settle(
            "intermediate_size", _tensor(tensors, _LAYER + "mlp.gate_proj.weight", where).shape[0]
        ),
        vocab_size=vocab_size,
        draft_vocab_size=settle("draft_vocab_size", draft_size or vocab_size),
        attention=attention,
        rope=read_rope(raw, where),
        num_aux=num_aux,
        num_layers=layers,
        rms_norm_eps=_epsilon(raw, where),
        norm_before_residual=_flag(raw, "norm_before_residual", where),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=_flag(raw, "norm_output", where),
        final_norm="norm.weight" in tensors,
        fc_bias="fc.bias" in tensors,
        mlp_bias=_LAYER + "mlp.down_proj.bias" in tensors,
        head=head,
    )


def _attention(
    raw: dict[str, Any],
    tensors: dict[str, np.ndarray],
    query: np.ndarray,
    width: int,
    where: str,
    settle: Any,
) -> AttentionConfig:
    stated_heads = raw.get("num_attention_heads")
    if not isinstance(stated_heads, int):
        raise InputError(f"{where}: num_attention_heads is {stated_heads!r}, expected an integer")
    key = _tensor(tensors, _LAYER + "self_attn.k_proj.weight", where)
    if query.shape[0] % stated_heads:
        raise InputError(
            f"{where}: {stated_heads} heads do not divide the {query.shape[0]} rows of q_proj"
        )
    head_dim = settle("head_dim", query.shape[0] // stated_heads)
    return AttentionConfig(
        num_heads=stated_heads,
        num_kv_heads=settle("num_key_value_heads", key.shape[0] // head_dim),
        head_dim=head_dim,
        bias=_LAYER + "self_attn.q_proj.bias" in tensors,
        output_bias=_LAYER + "self_attn.o_proj.bias" in tensors,
        qk_norm=_LAYER + "self_attn.q_norm.weight" in tensors,
    )


def _head(
    raw: dict[str, Any], tensors: dict[str, np.ndarray], where: str, notes: list[str]
) -> tuple[HeadSource, int | None]:
    """Whose head, and its rows; `None` where the target's vocabulary says."""
    tied = _flag(raw, "tie_word_embeddings", where)
    if "lm_head.weight" in tensors:
        if tied:
            notes.append("tie_word_embeddings is true beside an own lm_head: the own one is used")
        return "own", tensors["lm_head.weight"].shape[0]
    return ("tied" if tied else "target"), None


def _vocab_size(
    raw: dict[str, Any],
    embeddings: np.ndarray | None,
    mask: np.ndarray | None,
    where: str,
    notes: list[str],
) -> int:
    stated = raw.get("vocab_size")
    shapes = {
        "embed_tokens": None if embeddings is None else len(embeddings),
        "t2d": None if mask is None else len(mask),
    }
    found = {name: size for name, size in shapes.items() if size is not None}
    if len(set(found.values())) > 1:
        raise InputError(f"{where}: embed_tokens and t2d disagree on the vocabulary: {found}")
    size = next(iter(found.values()), stated)
    if not isinstance(size, int):
        raise InputError(f"{where}: vocab_size is {stated!r}, expected an integer")
    if stated is not None and stated != size:
        notes.append(f"vocab_size is {stated} in the config, {size} by the tensors' shapes")
    return size


def _fused(
    raw: dict[str, Any],
    tensors: dict[str, np.ndarray],
    width: int,
    where: str,
    notes: list[str],
) -> tuple[int, int]:
    """Dt and A, from fc's columns and the config's counts."""
    stated = raw.get("target_hidden_size")
    target_width = int(width if stated is None else stated)
    if "fc.weight" not in tensors:
        notes.append("no fc: the draft reads the target's last state alone")
        return target_width, 0
    columns = tensors["fc.weight"].shape[1]
    ids = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    counts = {
        "num_aux_hidden_states": raw.get("num_aux_hidden_states"),
        "eagle_aux_hidden_state_layer_ids": None if ids is None else len(ids),
    }
    for name, number in counts.items():
        if number is not None and number * target_width != columns:
            raise InputError(
                f"{where}: {name} means {number} states of width {target_width}, but fc reads "
                f"{columns} columns"
            )
    if columns % target_width:
        raise InputError(
            f"{where}: fc reads {columns} columns, expected a multiple of the target's width "
            f"{target_width}"
        )
    return target_width, columns // target_width


def _vocab(
    config: DraftConfig,
    offsets: np.ndarray | None,
    mask: np.ndarray | None,
    where: str,
    notes: list[str],
) -> VocabMap:
    """The draft vocabulary of d2t (offsets) and t2d (mask), each checked by the other."""
    size, vocab_size = config.draft_vocab_size, config.vocab_size
    if offsets is None and mask is None:
        if size != vocab_size:
            raise InputError(
                f"{where}: a draft vocabulary of {size} of {vocab_size} ids has neither d2t nor "
                "t2d, expected one of them"
            )
        return VocabMap.identity(vocab_size)
    if offsets is None:
        assert mask is not None
        notes.append("no d2t: rebuilt from t2d")
        ids = np.flatnonzero(mask)
    else:
        ids = offsets.astype(np.int64) + np.arange(len(offsets))
        if mask is None:
            notes.append("no t2d: rebuilt from d2t")
        elif not np.array_equal(np.flatnonzero(mask), np.sort(ids)):
            raise InputError(
                f"{where}: d2t (offsets) means {len(ids)} ids that are not the "
                f"{int(np.count_nonzero(mask))} that t2d marks"
            )
    if len(ids) != size:
        raise InputError(f"{where}: the vocabulary map has {len(ids)} ids, the head {size} rows")
    if size < vocab_size and np.array_equal(ids, np.arange(size)):
        notes.append(f"d2t means the first {size} ids, almost surely a lost mapping")
    return VocabMap.from_ids(ids, vocab_size)


def _boundaries(raw: dict[str, Any], config: DraftConfig) -> tuple[int, ...] | None:
    ids = (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if ids is None or config.num_aux == 0:
        return None
    return from_ids(ids, SGLANG.numbering, None)


def _layer_count(tensors: dict[str, np.ndarray]) -> int:
    return 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("layers."))


def _flag(raw: dict[str, Any], key: str, where: str) -> bool:
    value = raw.get(key)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{where}: {key} is {value!r}, expected true or false")
    return bool(value)


def _epsilon(raw: dict[str, Any], where: str) -> float:
    value = raw.get("rms_norm_eps")
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise InputError(f"{where}: rms_norm_eps is {value!r}, expected a number")
    return float(value)


def _tensor(tensors: dict[str, np.ndarray], name: str, where: str) -> np.ndarray:
    if name not in tensors:
        raise InputError(f"{where}: found no tensor {name}, expected it beside the others")
    return tensors[name]


def _require_shapes(c: DraftConfig, tensors: dict[str, np.ndarray], directory: Path) -> None:
    expected = expected_shapes(c)
    for name in sorted(expected.keys() | tensors.keys()):
        found = list(tensors[name].shape) if name in tensors else None
        if found != expected.get(name):
            raise InputError(
                f"{directory}: tensor {name} has shape {found}, expected {expected.get(name)}"
            )


def expected_shapes(c: DraftConfig) -> dict[str, list[int]]:
    """Every tensor that a draft of this config holds, `[out, in]`, under canonical names."""
    a, d = c.attention, c.hidden_size
    queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    shapes: dict[str, list[int]] = {}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = [rows, columns]
        if bias:
            shapes[f"{name}.bias"] = [rows]

    if c.num_aux:
        linear("fc", d, c.aux_width, c.fc_bias)
    if c.norm_before_fc:
        shapes["input_norm.weight"] = [c.aux_width]
    if c.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": [c.target_hidden_size] for i in range(c.num_aux)}
    for index in range(c.num_layers):
        layer = f"layers.{index}"
        width = 2 * d if index == 0 else d
        linear(f"{layer}.self_attn.q_proj", queries, width, a.bias)
        linear(f"{layer}.self_attn.k_proj", keys, width, a.bias)
        linear(f"{layer}.self_attn.v_proj", keys, width, a.bias)
        linear(f"{layer}.self_attn.o_proj", d, queries, a.output_bias)
        if a.qk_norm:
            shapes |= {f"{layer}.self_attn.{x}_norm.weight": [a.head_dim] for x in "qk"}
        linear(f"{layer}.mlp.gate_proj", c.intermediate_size, d, c.mlp_bias)
        linear(f"{layer}.mlp.up_proj", c.intermediate_size, d, c.mlp_bias)
        linear(f"{layer}.mlp.down_proj", d, c.intermediate_size, c.mlp_bias)
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["hidden_norm"] if index == 0 else []
        shapes |= {f"{layer}.{norm}.weight": [d] for norm in norms}
    if c.final_norm:
        shapes["norm.weight"] = [d]
    if c.head == "own":
        shapes["lm_head.weight"] = [c.draft_vocab_size, d]
    return shapes


def _written_config(
    c: DraftConfig, boundaries: tuple[int, ...] | None, max_positions: int, dtype: str
) -> dict[str, Any]:
    """Every knob written out, since readers' defaults disagree."""
    nested: dict[str, Any] = {"use_aux_hidden_state": True, "norm_before_fc": c.norm_before_fc}
    if boundaries is not None:
        nested["eagle_aux_hidden_state_layer_ids"] = to_ids(boundaries, SGLANG.numbering)
    return {
        "architectures": [SGLANG.architecture],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "target_hidden_size": c.target_hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.attention.num_heads,
        "num_key_value_heads": c.attention.num_kv_heads,
        "head_dim": c.attention.head_dim,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": c.rms_norm_eps,
        "hidden_act": "silu",
        **write_rope(c.rope),
        "bias": c.fc_bias,
        "attention_bias": False,
        "mlp_bias": False,
        "num_aux_hidden_states": c.num_aux,
        "norm_before_residual": False,
        "norm_before_fc": c.norm_before_fc,
        "fc_norm": c.fc_norm,
        "norm_output": c.norm_output,
        "tie_word_embeddings": c.head == "tied",
        "torch_dtype": dtype,
        "eagle_config": nested,
    }

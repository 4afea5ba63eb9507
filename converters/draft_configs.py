"""config.json and tensor shapes <-> `DraftConfig`.

Dimensions come from shapes and knobs from keys; where the config states a dimension too and is
wrong, the shape wins and a note tells.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from converters.keys import read_flag, read_integer, read_number, read_object
from converters.layouts import Layout
from converters.ropes import read_rope, write_rope
from eagle3_jax.capture import from_ids, to_ids
from eagle3_jax.config import AttentionConfig, DraftConfig, HeadSource
from eagle3_jax.errors import InputError

_LAYER = "layers.0."
_IDS = "eagle_aux_hidden_state_layer_ids"


class Evidence(NamedTuple):
    """What there is to tell a config from.

    Attributes:
        raw: config.json.
        tensors: the draft's parameters under canonical names.
        vocab_sizes: V by each tensor that shows it.
        where: config.json's path, for messages.
        notes: takes what was corrected.
    """

    raw: dict[str, Any]
    tensors: Mapping[str, np.ndarray]
    vocab_sizes: Mapping[str, int]
    where: str
    notes: list[str]

    def settle(self, key: str, found: int) -> int:
        """The number by the tensors' shapes; a note where the config states another."""
        stated = self.raw.get(key)
        if stated is not None and stated != found:
            self.notes.append(f"{key} is {stated} in the config, {found} by the tensors' shapes")
        return found

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a matrix that every draft has."""
        if name not in self.tensors:
            raise InputError(f"{self.where}: found no tensor {name}, expected it beside the others")
        shape = self.tensors[name].shape
        if len(shape) != 2 or not all(shape):
            raise InputError(
                f"{self.where}: tensor {name} has shape {list(shape)}, expected rows and columns"
            )
        return shape

    def has(self, name: str, key: str) -> bool:
        """Whether a tensor is there; a note where the config's flag says otherwise."""
        stated, found = self.raw.get(key), name in self.tensors
        if stated is not None and stated != found:
            held = "holds" if found else "holds no"
            self.notes.append(f"{key} is {stated} in the config, but the file {held} {name}")
        return found


def require_known_keys(raw: dict[str, Any], layout: Layout, where: str) -> None:
    """Refuse keys that nobody here knows: each could change the numbers.

    Raises:
        InputError: for an unknown key, or one that marks another kind of draft.
    """
    for key, kind in layout.foreign.items():
        if raw.get(key):
            raise InputError(f"{where}: {key} marks {kind}, expected a draft in SGLang's style")
    unknown = sorted(raw.keys() - layout.handled - layout.ignored - layout.foreign.keys())
    if unknown:
        raise InputError(f"{where}: unknown keys {', '.join(unknown)}, expected none")
    unknown = sorted(read_object(raw, "eagle_config", where).keys() - layout.nested)
    if unknown:
        raise InputError(
            f"{where}: eagle_config has unknown keys {', '.join(unknown)}, expected none"
        )
    if raw.get("hidden_act", "silu") != "silu":
        raise InputError(f"{where}: hidden_act is {raw['hidden_act']!r}, expected 'silu'")


def read_config(evidence: Evidence) -> DraftConfig:
    """Every dimension and knob of a draft.

    Raises:
        InputError: when config and tensors contradict each other where no shape can decide.
        ValueError: when they agree on what no draft can be.
    """
    raw, tensors, _, where, _ = evidence
    width = len(tensors[_LAYER + "hidden_norm.weight"].ravel())
    intermediate_size, _ = evidence.shape(_LAYER + "mlp.gate_proj.weight")
    head, draft_size = _head(evidence)
    vocab_size = _vocab_size(evidence)
    target_width, num_aux = _fused(evidence, width)
    nested = read_object(raw, "eagle_config", where)
    norm_before_fc = read_flag(raw, "norm_before_fc", where) or read_flag(
        nested, "norm_before_fc", where
    )
    fc_norm = read_flag(raw, "fc_norm", where) or read_flag(raw, "use_aux_norm", where)
    for flag, key, tensor in (
        (norm_before_fc, "norm_before_fc", "input_norm.weight"),
        (fc_norm, "fc_norm", "fc_norm.0.weight"),
    ):
        if flag != (tensor in tensors):
            raise InputError(
                f"{where}: {key} is {'on' if flag else 'off'}, but the file holds "
                f"{'no ' if flag else ''}{tensor}: one of them is wrong, and acceptance hangs on it"
            )
    if raw.get("sliding_window") is not None and raw.get("use_sliding_window") is not False:
        evidence.notes.append(
            f"sliding_window is {raw['sliding_window']} in the config: no draft in this style "
            "attends through a window, so it is ignored"
        )
    return DraftConfig(
        hidden_size=evidence.settle("hidden_size", width),
        target_hidden_size=target_width,
        intermediate_size=evidence.settle("intermediate_size", intermediate_size),
        vocab_size=vocab_size,
        draft_vocab_size=evidence.settle(
            "draft_vocab_size", vocab_size if draft_size is None else draft_size
        ),
        attention=_attention(evidence),
        rope=read_rope(raw, where),
        num_aux=num_aux,
        num_layers=evidence.settle("num_hidden_layers", _layer_count(tensors)),
        rms_norm_eps=read_number(raw, "rms_norm_eps", where),
        norm_before_residual=read_flag(raw, "norm_before_residual", where),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=read_flag(raw, "norm_output", where),
        final_norm="norm.weight" in tensors,
        fc_bias=evidence.has("fc.bias", "bias"),
        mlp_bias=evidence.has(_LAYER + "mlp.down_proj.bias", "mlp_bias"),
        head=head,
    )


def read_boundaries(raw: dict[str, Any], layout: Layout, where: str) -> tuple[int, ...] | None:
    """The capture that the config states, or `None`.

    Raises:
        InputError: when it is no list of integers.
        ValueError: when the ids are out of range or do not ascend.
    """
    ids = _layer_ids(raw, where)
    return None if ids is None else from_ids(ids, layout.numbering, None)


def write_config(
    c: DraftConfig,
    layout: Layout,
    boundaries: tuple[int, ...] | None,
    max_positions: int,
    dtype: str,
) -> dict[str, Any]:
    """A config.json with every knob written out, since readers' defaults disagree.

    Args:
        c: the draft's dimensions and knobs, all of which the layout has a place for.
        layout: who is to read it.
        boundaries: the capture, `None` where nobody knows it.
        max_positions: the longest context.
        dtype: the weights' type, as torch names it.
    """
    nested: dict[str, Any] = {"use_aux_hidden_state": True, "norm_before_fc": c.norm_before_fc}
    if boundaries is not None:
        nested[_IDS] = to_ids(boundaries, layout.numbering)
    keys: dict[str, Any] = {
        "architectures": [layout.architecture],
        "model_type": "llama",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.attention.num_heads,
        "num_key_value_heads": c.attention.num_kv_heads,
        "head_dim": c.attention.head_dim,
        "vocab_size": c.vocab_size,
        # null makes the server take the target's head; a number, the file's.
        "draft_vocab_size": None if c.head == "target" else c.draft_vocab_size,
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
    if c.target_hidden_size != c.hidden_size:
        # Its mere presence makes SafeAILab's loader look for embeddings in the draft's file.
        keys["target_hidden_size"] = c.target_hidden_size
    return keys


def _attention(evidence: Evidence) -> AttentionConfig:
    heads = read_integer(evidence.raw, "num_attention_heads", evidence.where)
    queries, _ = evidence.shape(_LAYER + "self_attn.q_proj.weight")
    keys, _ = evidence.shape(_LAYER + "self_attn.k_proj.weight")
    if queries % heads:
        raise InputError(
            f"{evidence.where}: num_attention_heads is {heads}, expected a divisor of "
            f"{queries}, the rows of q_proj"
        )
    head_dim = evidence.settle("head_dim", queries // heads)
    if keys % head_dim:
        raise InputError(
            f"{evidence.where}: k_proj has {keys} rows, expected a multiple of the head_dim "
            f"{head_dim} that q_proj's {queries} rows make with num_attention_heads {heads}"
        )
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=evidence.settle("num_key_value_heads", keys // head_dim),
        head_dim=head_dim,
        bias=evidence.has(_LAYER + "self_attn.q_proj.bias", "attention_bias"),
        output_bias=_LAYER + "self_attn.o_proj.bias" in evidence.tensors,
        qk_norm=_LAYER + "self_attn.q_norm.weight" in evidence.tensors,
    )


def _head(evidence: Evidence) -> tuple[HeadSource, int | None]:
    """Whose head, and its rows; `None` where the target's vocabulary says."""
    tied = read_flag(evidence.raw, "tie_word_embeddings", evidence.where)
    if "lm_head.weight" in evidence.tensors:
        if tied:
            evidence.notes.append(
                "tie_word_embeddings is true beside an own lm_head: the own one is used"
            )
        return "own", evidence.shape("lm_head.weight")[0]
    return ("tied" if tied else "target"), None


def _vocab_size(evidence: Evidence) -> int:
    found = set(evidence.vocab_sizes.values())
    if len(found) > 1:
        told = ", ".join(f"{size} by {name}" for name, size in evidence.vocab_sizes.items())
        raise InputError(f"{evidence.where}: the vocabulary is {told}, expected one size")
    if not found:
        return read_integer(evidence.raw, "vocab_size", evidence.where)
    return evidence.settle("vocab_size", found.pop())


def _fused(evidence: Evidence, width: int) -> tuple[int, int]:
    """Dt and A, from fc's columns and the config's counts."""
    raw, _, _, where, notes = evidence
    target_width = read_integer(raw, "target_hidden_size", where, default=width)
    nested = read_object(raw, "eagle_config", where)
    fused = "fc.weight" in evidence.tensors
    if read_flag(nested, "use_aux_hidden_state", where, default=fused) != fused:
        held = "holds" if fused else "holds no"
        notes.append(f"use_aux_hidden_state is {not fused}, but the file {held} fc.weight")
    if not fused:
        notes.append("no fc: the draft reads the target's last state alone")
        return target_width, 0
    _, columns = evidence.shape("fc.weight")
    ids = _layer_ids(raw, where)
    counts = {} if ids is None else {_IDS: len(ids)}
    if raw.get("num_aux_hidden_states") is not None:
        counts["num_aux_hidden_states"] = read_integer(raw, "num_aux_hidden_states", where)
    for name, number in counts.items():
        if number * target_width != columns:
            raise InputError(
                f"{where}: {name} means {number} states of width {target_width}, but fc reads "
                f"{columns} columns, expected {number * target_width}"
            )
    if columns % target_width:
        raise InputError(
            f"{where}: fc reads {columns} columns, expected a multiple of the target's width "
            f"{target_width}"
        )
    return target_width, columns // target_width


def _layer_ids(raw: dict[str, Any], where: str) -> list[int] | None:
    ids = read_object(raw, "eagle_config", where).get(_IDS)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(layer_id) is int for layer_id in ids):
        raise InputError(f"{where}: {_IDS} is {ids!r}, expected a list of integers")
    return ids


def _layer_count(tensors: Mapping[str, np.ndarray]) -> int:
    numbers = [name.split(".")[1] for name in tensors if name.startswith("layers.")]
    return 1 + max(int(number) for number in numbers if number.isdecimal())

"""A draft on disk <-> one canonical form: (config, parameter tree, vocabulary).

Shapes win over the config, and every correction is told; no tensor is dropped in silence.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.draft_configs import (
    Evidence,
    read_boundaries,
    read_config,
    require_known_keys,
    write_config,
)
from converters.files import (
    SINGLE,
    read_checkpoint,
    read_json,
    require_directory,
    whole_directory,
    write_json,
    write_tensors,
)
from converters.layouts import FOREIGN_TENSORS, SGLANG, canonical_name, written_name
from converters.trees import FLOATS, require_shapes, to_tensors, to_tree
from converters.vocabs import read_maps, read_vocab, write_vocab
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap

_EMBEDDING = "embed_tokens.weight"
_FIRST = "layers.0."


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
    require_directory(directory, "a draft")
    where = str(directory / "config.json")
    raw = read_json(directory / "config.json")
    tensors, origins = _canonical(read_checkpoint(directory), directory)
    _require_draft(raw, tensors, directory)
    require_known_keys(raw, SGLANG, where)
    embeddings = tensors.pop(_EMBEDDING, None)
    maps = read_maps(tensors.pop("d2t", None), tensors.pop("t2d", None), str(directory))
    notes: list[str] = []
    shown = {"embed_tokens": embeddings, "t2d": maps.mask}
    vocab_sizes = {name: len(tensor) for name, tensor in shown.items() if tensor is not None}
    try:
        config = read_config(Evidence(raw, tensors, vocab_sizes, where, notes))
        vocab = read_vocab(maps, config.draft_vocab_size, config.vocab_size, str(directory), notes)
        boundaries = read_boundaries(raw, SGLANG, where) if config.num_aux else None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    _require_all(config, tensors, embeddings, str(directory), origins)
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
        InputError: when the format has no place for one of the draft's knobs, the parts of the
            draft do not fit together, or the directory exists.
    """
    config, layout = draft.config, SGLANG
    for what, holds in layout.refuses:
        if holds(config, max_positions):
            raise InputError(f"{directory}: {layout.name} has no place for {what}")
    parameters = to_tensors(draft.params)
    _require_consistent(draft, parameters, str(directory))
    tensors = {written_name(n, layout): t for n, t in parameters.items()}
    if draft.embeddings is not None:
        tensors[_EMBEDDING] = draft.embeddings
    tensors |= write_vocab(draft.vocab)
    written = write_config(config, layout, draft.boundaries, max_positions, _dtype(parameters))
    with whole_directory(directory, overwrite=overwrite) as building:
        write_tensors(building / SINGLE, tensors, {"format": "pt"})
        write_json(building / "config.json", written)


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


def _canonical(
    tensors: dict[str, np.ndarray], directory: Path
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors under canonical names, and the name that each has in the file."""
    renamed: dict[str, np.ndarray] = {}
    origins: dict[str, str] = {}
    for name, tensor in tensors.items():
        canonical = canonical_name(name)
        if canonical.endswith(".hidden_norm.weight") and not canonical.startswith(_FIRST):
            # Layers after the first: one norm, which frameworks name in two ways.
            canonical = canonical.replace("hidden_norm", "input_layernorm")
        if canonical in renamed:
            raise InputError(
                f"{directory}: {origins[canonical]} and {name} are both {canonical}, expected one"
            )
        renamed[canonical], origins[canonical] = tensor, name
    return renamed, origins


def _require_draft(raw: dict[str, Any], tensors: dict[str, np.ndarray], directory: Path) -> None:
    for pattern, kind in FOREIGN_TENSORS:
        for name in filter(pattern.search, sorted(tensors)):
            raise InputError(
                f"{directory}: tensor {name} belongs to {kind}, expected an EAGLE-3 draft with "
                "grouped-query attention that drafts one token after another"
            )
    needed = [_FIRST + "hidden_norm.weight", _FIRST + "self_attn.q_proj.weight"]
    missing = [name for name in needed if name not in tensors]
    if missing:
        named = raw.get("architectures")
        found = named[0] if isinstance(named, list) and named else raw.get("model_type")
        raise InputError(
            f"{directory}: not an EAGLE-3 draft: found {found!r} without "
            f"{' or '.join(missing)}, expected a midlayer that reads [embedding, hidden]"
        )


def _require_all(
    config: DraftConfig,
    tensors: dict[str, np.ndarray],
    embeddings: np.ndarray | None,
    where: str,
    origins: dict[str, str] | None = None,
) -> None:
    expected = expected_shapes(config)
    if embeddings is not None:
        tensors = tensors | {_EMBEDDING: embeddings}
        expected[_EMBEDDING] = [config.vocab_size, config.hidden_size]
    require_shapes(tensors, expected, where, origins)


def _require_consistent(draft: LoadedDraft, tensors: dict[str, np.ndarray], where: str) -> None:
    """Refuse a draft whose parts contradict each other, before it is on disk."""
    config, vocab = draft.config, draft.vocab
    _require_all(config, tensors, draft.embeddings, where)
    found = (len(vocab.target_ids), len(vocab.in_draft))
    expected = (config.draft_vocab_size, config.vocab_size)
    if found != expected:
        raise InputError(
            f"{where}: the vocabulary map has {found[0]} of {found[1]} ids, expected "
            f"{expected[0]} of {expected[1]}"
        )
    if draft.boundaries is not None and len(draft.boundaries) != config.num_aux:
        raise InputError(
            f"{where}: boundaries are {draft.boundaries}, expected {config.num_aux} of them"
        )
    if draft.embeddings is None and config.target_hidden_size != config.hidden_size:
        raise InputError(
            f"{where}: found no token embeddings, expected the draft's own: the target's have "
            f"width {config.target_hidden_size}, the draft {config.hidden_size}"
        )


def _dtype(tensors: dict[str, np.ndarray]) -> str:
    """The type of most weights, since norms may be of a wider one."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[FLOATS[tensor.dtype]] += tensor.size
    return sizes.most_common(1)[0][0]

"""A draft on disk, opened: one canonical form whoever wrote it, its tensors still unread.

Shapes win over the config, and every correction is told; no tensor is dropped in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.captures import read_boundaries
from converters.config_keys import SPECULATORS, Keys, read_keys
from converters.detect import CAPTURE, MARK, Clues, detect
from converters.dialects import dialect_of
from converters.dialects.base import Dialect
from converters.draft_checks import require_draft, require_known
from converters.draft_configs import read_config
from converters.evidence import Evidence
from converters.files import read_json, require_directory
from converters.keys import read_integer
from converters.ledger import Ledger, Setting
from converters.names import EMBEDDING, Names, canonical_names
from converters.shapes import expected_shapes
from converters.stored import open_checkpoint
from converters.tensors import Stored, Tensor
from converters.trees import require_shapes, to_tree
from converters.vocabs import Maps, read_maps, read_vocab
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap


@dataclass(frozen=True)
class Reading:
    """How a draft is to be read, where its files do not say or say it wrongly.

    Attributes:
        dialect: whose rules hold; by default the files tell.
        settings: values that win over the files (`--set`).
        boundaries: the capture.
        target_layers: L, for the default capture and the range of layer ids.
        mapping: the draft vocabulary.
        allowed: unknown config keys and tensors that are to be passed over.
    """

    dialect: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    boundaries: tuple[int, ...] | None = None
    target_layers: int | None = None
    mapping: Maps | None = None
    allowed: frozenset[str] = frozenset()


class OpenDraft(NamedTuple):
    """A draft by its headers.

    Attributes:
        config: dimensions and knobs.
        tensors: its parameters under canonical names, `[out, in]`, unread.
        vocab: the draft vocabulary.
        embeddings: `[V,D]` where the file holds a table, else `None`: the target's are due.
        boundaries: the capture, else `None`.
        dialect: whose it is.
        evidence: what tells so.
        sources: where each resolved value came from.
        notes: what was corrected, rebuilt or assumed, a sentence each.
        unread: tensors of the file that the draft goes without, with the reasons.
        maps: d2t and t2d as the file has them.
        max_positions: the longest context, where the config says.
        target_name: the target's name, where the config says.
    """

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    vocab: VocabMap
    embeddings: Tensor | None
    boundaries: tuple[int, ...] | None
    dialect: Dialect
    evidence: tuple[str, ...] = ()
    sources: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    unread: tuple[tuple[Tensor, str], ...] = ()
    maps: Mapping[str, Tensor] = {}
    max_positions: int | None = None
    target_name: str | None = None


class LoadedDraft(NamedTuple):
    """A draft in memory.

    Attributes:
        config: dimensions and knobs.
        params: the tree that `Drafter(config)` applies, NumPy arrays of the types on disk.
        vocab: the draft vocabulary.
        embeddings: `[V,D]` where the file holds a table, else `None`: the target's are due.
        boundaries: the capture, else `None`.
        notes: what was corrected, rebuilt or assumed, a sentence each.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    embeddings: np.ndarray | None
    boundaries: tuple[int, ...] | None
    notes: tuple[str, ...]


def load_draft(directory: Path, reading: Reading | None = None) -> LoadedDraft:
    """Read a draft of any dialect into memory.

    Args:
        directory: holds config.json and weights.
        reading: where the files do not say how they are meant.

    Raises:
        InputError: when it holds no EAGLE-3 draft, or tensors and config do not fit together.
    """
    return read_whole(open_draft(directory, reading))


def read_whole(draft: OpenDraft) -> LoadedDraft:
    """An open draft, in memory."""
    tensors = {name: in_memory(tensor) for name, tensor in draft.tensors.items()}
    embeddings = None if draft.embeddings is None else in_memory(draft.embeddings)
    return LoadedDraft(
        draft.config, to_tree(tensors), draft.vocab, embeddings, draft.boundaries, draft.notes
    )


def in_memory(tensor: Tensor) -> np.ndarray:
    """A tensor, read if it is on disk."""
    return tensor.read() if isinstance(tensor, Stored) else tensor


def open_draft(directory: Path, reading: Reading | None = None) -> OpenDraft:
    """Read a draft's config and headers, and of its tensors only what decides something.

    Args:
        directory: holds config.json and weights.
        reading: where the files do not say how they are meant.

    Raises:
        InputError: when it holds no EAGLE-3 draft, or tensors and config do not fit together.
    """
    reading = reading or Reading()
    require_directory(directory, "a draft")
    where = str(directory / "config.json")
    raw = read_json(directory / "config.json")
    checkpoint = open_checkpoint(directory)
    clues = Clues(raw, frozenset(checkpoint.tensors), checkpoint.metadata)
    dialect, evidence = _dialect(clues, reading, where)
    names = canonical_names(checkpoint.tensors, dialect, str(directory))
    require_draft(raw, names, directory)
    keys = read_keys(raw, where, reading.allowed)
    require_known(reading.allowed, keys, names, where)
    ledger = Ledger(reading.settings, notes=list(checkpoint.notes))
    tensors: dict[str, Tensor] = {
        canonical: checkpoint.tensors[name] for canonical, name in names.origins.items()
    }
    stored_maps: dict[str, Tensor] = {}
    for name in ("d2t", "t2d"):
        if name in tensors:
            stored_maps[name] = tensors.pop(name)
    maps = _maps(stored_maps, reading, str(directory))
    if reading.mapping is not None and stored_maps:
        ledger.notes.append(f"{' and '.join(stored_maps)} of the file make way for {maps.source}")
    embeddings = tensors.pop(EMBEDDING, None)
    shown = {"embed_tokens": embeddings, "t2d": maps.mask}
    vocab_sizes = {name: t.shape[0] for name, t in shown.items() if t is not None and t.shape}
    try:
        config = read_config(
            Evidence(keys, tensors, vocab_sizes, dialect, ledger, reading.boundaries)
        )
        vocab = read_vocab(maps, config.draft_vocab_size, config.vocab_size, str(directory), ledger)
        boundaries = None
        if config.num_aux:
            boundaries = read_boundaries(
                keys,
                dialect,
                ledger,
                reading.boundaries,
                clues.metadata.get(CAPTURE),
                reading.target_layers,
            )
        max_positions = None
        if keys.values.get("max_position_embeddings") is not None:
            max_positions = read_integer(keys.values, "max_position_embeddings", where)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    dropped = names.useless | _unused(tensors, config, names, reading)
    ledger.notes += [f"{name} is left out: {why}" for name, why in sorted(dropped.items())]
    parameters = {
        name: tensor for name, tensor in tensors.items() if names.origins[name] not in dropped
    }
    _require_shapes(config, parameters, embeddings, str(directory), names.origins)
    return OpenDraft(
        config,
        parameters,
        vocab,
        embeddings,
        boundaries,
        dialect,
        evidence,
        ledger.sources,
        tuple(ledger.notes),
        tuple((checkpoint.tensors[name], reason) for name, reason in sorted(dropped.items())),
        stored_maps,
        max_positions,
        _target_name(keys),
    )


def require_fitting(draft: OpenDraft, where: str) -> None:
    """Refuse a draft whose parts contradict each other, before it is on disk.

    Raises:
        InputError: at the first part that does not fit.
    """
    config, vocab = draft.config, draft.vocab
    _require_shapes(config, draft.tensors, draft.embeddings, where)
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


def _dialect(clues: Clues, reading: Reading, where: str) -> tuple[Dialect, tuple[str, ...]]:
    """Whose rules hold, and why."""
    if reading.dialect is not None:
        return dialect_of(reading.dialect), ("--from",)
    found = detect(clues)
    stated = clues.raw.get("norm_output")
    told = MARK in clues.metadata or "norm_output" in reading.settings
    if found.dialect.name == "specforge" and stated is not None and not told:
        raise InputError(
            f"{where}: norm_output is {stated!r} in a SpecForge draft, and its meaning changed: "
            "--from specforge-0.2 (up to 0.2.0: whether the head reads a normed state; the raw "
            "one is fed back) or --from specforge (later: whether the normed one is fed back)"
        )
    return found.dialect, found.evidence


def _maps(stored: Mapping[str, Tensor], reading: Reading, where: str) -> Maps:
    """What the vocabulary tensors say; what the user gives wins."""
    if reading.mapping is not None:
        return reading.mapping
    read = {name: in_memory(tensor) for name, tensor in stored.items()}
    return read_maps(read.get("d2t"), read.get("t2d"), where)


def _unused(
    tensors: Mapping[str, Tensor], config: DraftConfig, names: Names, reading: Reading
) -> dict[str, str]:
    """Tensors that the user's settings, or the dialect's flags, leave without a reader."""
    expected = expected_shapes(config)
    reasons: dict[str, str] = {}
    for name in tensors.keys() - expected.keys():
        origin = names.origins[name]
        if origin in reading.allowed:
            reasons[origin] = "--allow names it"
        elif name.startswith("fc_norm.") and not config.fc_norm:
            reasons[origin] = "fc_norm is off (--set)"
        elif name == "input_norm.weight":
            reasons[origin] = "norm_before_fc is off (--set)"
        elif name == "norm.weight":
            asked = "--set" if "final_norm" in reading.settings else "norm_output"
            reasons[origin] = f"the head reads the raw state, says {asked}"
    return reasons


def _require_shapes(
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    embeddings: Tensor | None,
    where: str,
    origins: Mapping[str, str] | None = None,
) -> None:
    expected = expected_shapes(config)
    if embeddings is not None:
        tensors = {**tensors, EMBEDDING: embeddings}
        expected[EMBEDDING] = [config.vocab_size, config.hidden_size]
    require_shapes(tensors, expected, where, origins)


def _target_name(keys: Keys) -> str | None:
    """The target that a speculators config names."""
    speculators = keys.values.get(SPECULATORS)
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) else None

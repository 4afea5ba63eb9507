"""A draft on disk, opened: one canonical form whoever wrote it, its tensors still unread.

Shapes win over the config, and every correction is told; no tensor is dropped in silence.
"""

from collections.abc import Mapping
from pathlib import Path

from converters.captures import read_boundaries
from converters.config_keys import SPECULATORS, Keys, read_keys
from converters.detect import CAPTURE, MARK, Clues, detect
from converters.dialects import dialect_of
from converters.dialects.base import Dialect
from converters.dialects.native import NATIVE
from converters.draft_checks import require_draft, require_known
from converters.draft_configs import read_config
from converters.draft_forms import (
    LoadedDraft,
    OpenDraft,
    Reading,
    in_memory,
    read_whole,
    require_draft_shapes,
    require_fitting,
)
from converters.evidence import Evidence
from converters.files import read_json, require_directory
from converters.keys import read_integer
from converters.ledger import Ledger
from converters.names import EMBEDDING, Names, canonical_names
from converters.native_drafts import open_native
from converters.shapes import expected_shapes
from converters.stored import open_checkpoint
from converters.tensors import Tensor
from converters.vocabs import Maps, read_maps, read_vocab
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.native import CONFIG

__all__ = [
    "LoadedDraft",
    "OpenDraft",
    "Reading",
    "in_memory",
    "load_draft",
    "open_draft",
    "read_whole",
    "require_fitting",
]


def load_draft(directory: Path | str, reading: Reading | None = None) -> LoadedDraft:
    """Read a draft of any dialect, the native one included, into memory.

    Args:
        directory: holds config.json and weights, or a native checkpoint.
        reading: where the files do not say how they are meant.

    Raises:
        InputError: when it holds no EAGLE-3 draft, or tensors and config do not fit together.
    """
    return read_whole(open_draft(directory, reading))


def open_draft(directory: Path | str, reading: Reading | None = None) -> OpenDraft:
    """Read a draft's config and headers, and of its tensors only what decides something.

    Args:
        directory: holds config.json and weights, or a native checkpoint, which is read whole.
        reading: where the files do not say how they are meant.

    Raises:
        InputError: when it holds no EAGLE-3 draft, or tensors and config do not fit together.
    """
    directory, reading = Path(directory), reading or Reading()
    if reading.dialect == NATIVE.name or (directory / CONFIG).exists():
        return open_native(directory, reading)
    return _open_foreign(directory, reading)


def _open_foreign(directory: Path, reading: Reading) -> OpenDraft:
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
    require_draft_shapes(config, parameters, embeddings, str(directory), names.origins)
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
        directory,
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


def _target_name(keys: Keys) -> str | None:
    """The target that a speculators config names."""
    speculators = keys.values.get(SPECULATORS)
    verifier = speculators.get("verifier") if isinstance(speculators, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) else None

"""A draft as this project itself keeps it: an Orbax checkpoint and a JSON file beside it.

    draft.json   format, config (every field by its name), boundaries, max_positions, target_name
    state/       Orbax: params, target_ids and, where the draft has its own, embeddings

Nothing is encoded: the tree is the one that `Drafter(config)` applies, arrays in their own types.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from eagle3_jax import config as parts
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap

CONFIG, STATE = "draft.json", "state"
_FORMAT = "eagle3-jax draft 1"
_TYPES = {
    name: kind
    for name, kind in vars(parts).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


class Checkpoint(NamedTuple):
    """A draft out of a native checkpoint, or for one.

    Attributes:
        config: dimensions and knobs.
        params: the parameter tree, NumPy or JAX arrays.
        vocab: the draft vocabulary.
        embeddings: `[V,D]`, `None` where the target's are due.
        boundaries: the capture, `None` where nobody knows it.
        max_positions: the longest context, `None` where nobody says.
        target_name: where the target is found, `None` where nobody says.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    embeddings: Any | None
    boundaries: tuple[int, ...] | None
    max_positions: int | None = None
    target_name: str | None = None


def write_checkpoint(directory: Path, checkpoint: Checkpoint) -> None:
    """Write into an existing directory.

    Args:
        directory: empty; a caller that wants it whole or not at all renames it afterwards.
        checkpoint: what to keep.
    """
    state = {"params": checkpoint.params, "target_ids": checkpoint.vocab.target_ids}
    if checkpoint.embeddings is not None:
        state["embeddings"] = checkpoint.embeddings
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute() / STATE, state)
    told = {
        "format": _FORMAT,
        "config": _encoded(checkpoint.config),
        "boundaries": checkpoint.boundaries,
        "max_positions": checkpoint.max_positions,
        "target_name": checkpoint.target_name,
    }
    (directory / CONFIG).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read a draft.

    Args:
        directory: as `write_checkpoint` left it.

    Returns:
        The draft, its arrays in NumPy.

    Raises:
        InputError: when a part is missing or is not what this format holds.
    """
    path = directory / CONFIG
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a native draft") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if not isinstance(told, dict) or told.get("format") != _FORMAT:
        found = told.get("format") if isinstance(told, dict) else told
        raise InputError(f"{path}: format is {found!r}, expected {_FORMAT!r}")
    try:
        config = _decoded(told["config"])
        boundaries = None if told["boundaries"] is None else tuple(told["boundaries"])
        state = _restored(directory / STATE)
        vocab = VocabMap.from_ids(state["target_ids"], config.vocab_size)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: found no draft ({error}), expected one of {_FORMAT}") from None
    return Checkpoint(
        config,
        state["params"],
        vocab,
        state.get("embeddings"),
        boundaries,
        told.get("max_positions"),
        told.get("target_name"),
    )


def _restored(directory: Path) -> dict[str, Any]:
    """Every array, in NumPy and of its own type."""
    if not (directory / "_METADATA").exists():
        raise InputError(f"{directory}: found no Orbax checkpoint, expected one beside {CONFIG}")
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(directory.absolute()).item_metadata.tree
        wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        return checkpointer.restore(directory.absolute(), restore_args=wanted)


def _encoded(value: Any) -> Any:
    """A config as JSON: its fields by name, and which of several types a part is."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **named}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        given = {name: _decoded(part) for name, part in value.items() if name != "type"}
        return _TYPES[value["type"]](**given)
    return tuple(value) if isinstance(value, list) else value

"""A draft as this project itself keeps it, read without JAX.

Orbax wrote the arrays; TensorStore, which Orbax reads them with, reads them here.
"""

import json
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from converters.captures import require_boundaries
from converters.dialects.native import NATIVE
from converters.draft_forms import OpenDraft, Reading, require_fitting
from converters.trees import to_tensors
from eagle3_jax import config as parts
from eagle3_jax.errors import InputError
from eagle3_jax.native import CONFIG, FORMAT, STATE, decode
from eagle3_jax.vocab import VocabMap

_TYPES = {
    name: kind
    for name, kind in vars(parts).items()
    if isinstance(kind, type) and is_dataclass(kind)
}


def open_native(directory: Path, reading: Reading) -> OpenDraft:
    """Read a native draft; it says everything, so that little is left to say of it.

    Args:
        directory: as `eagle3_jax.checkpoints.write_checkpoint` left it.
        reading: may say another capture, and the target's depth.

    Raises:
        InputError: when a part is missing or is not what this format holds, or the reading says
            what the draft says itself.
    """
    _require_silent(directory, reading)
    path = directory / CONFIG
    told = _read_told(path)
    try:
        config = decode(told["config"], _TYPES)
        boundaries = None if told["boundaries"] is None else tuple(told["boundaries"])
        state = _read_arrays(directory / STATE)
        vocab = VocabMap.from_ids(state["target_ids"], config.vocab_size)
        tensors = to_tensors(state["params"])
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: found no draft ({error}), expected one of {FORMAT}") from None
    if reading.boundaries is not None:
        boundaries = reading.boundaries
    if boundaries is not None:
        require_boundaries(boundaries, reading.target_layers)
    draft = OpenDraft(
        config,
        tensors,
        vocab,
        state.get("embeddings"),
        boundaries,
        NATIVE,
        evidence=(f"holds {CONFIG}",),
        sources={"boundaries": "--boundaries" if reading.boundaries else CONFIG},
        max_positions=told.get("max_positions"),
        target_name=told.get("target_name"),
        path=directory,
    )
    require_fitting(draft, str(directory))
    return draft


def _require_silent(directory: Path, reading: Reading) -> None:
    if reading.dialect not in (None, NATIVE.name):
        raise InputError(
            f"{directory}: holds {CONFIG}, so it is a native draft, expected no --from"
        )
    if reading.settings or reading.mapping is not None:
        raise InputError(
            f"{directory}: a native draft says everything, expected no --set and no --vocab-mapping"
        )


def _read_told(path: Path) -> dict[str, Any]:
    """What stands beside the arrays."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a native draft") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        found = told.get("format") if isinstance(told, dict) else told
        raise InputError(f"{path}: format is {found!r}, expected {FORMAT!r}")
    return told


def _read_arrays(directory: Path) -> dict[str, Any]:
    """The tree of arrays, each of its own type."""
    if not (directory / "_METADATA").exists():
        raise InputError(f"{directory}: found no Orbax checkpoint, expected one beside {CONFIG}")
    store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{directory.absolute()}/"}}
    tree: dict[str, Any] = {}
    for key in tensorstore.KvStore.open(store).result().list().result():
        name, _, part = key.decode().rpartition("/")
        if part != ".zarray":
            continue
        *folders, leaf = name.split(".")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        array = {"driver": "zarr", "kvstore": store | {"path": f"{name}/"}}
        node[leaf] = np.asarray(tensorstore.open(array).result().read().result())
    return tree

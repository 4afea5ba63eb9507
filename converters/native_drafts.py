"""A draft as this project itself keeps it, read without JAX.

Orbax wrote the arrays; TensorStore, which Orbax reads them with, reads them here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from converters.captures import require_boundaries
from converters.dialects.native import NATIVE
from converters.draft_forms import OpenDraft, Reading, require_fitting
from converters.features import LOSSES
from converters.files import read_json
from converters.trees import to_tensors
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.native import CONFIG, FORMAT, STATE, decode_fields
from eagle3_jax.vocab import VocabMap

_INDEXES = ("_METADATA", "manifest.ocdbt")  # Orbax's own, and the key-value store's
_PARAMS, _IDS, _EMBEDDINGS = "params", "target_ids", "embeddings"


@dataclass(frozen=True)
class _Told:
    """What stands beside the arrays, after the format's name."""

    config: DraftConfig
    boundaries: tuple[int, ...] | None
    max_positions: int | None
    target_name: str | None


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
    told = _read_told(directory / CONFIG)
    state = _read_state(directory / STATE)
    try:
        vocab = VocabMap.from_ids(state[_IDS], told.config.vocab_size)
    except ValueError as error:
        raise InputError(f"{directory / STATE}: {error}") from None
    boundaries = told.boundaries if reading.boundaries is None else reading.boundaries
    if boundaries is not None:
        try:
            require_boundaries(boundaries, reading.target_layers)
        except InputError as error:
            raise InputError(f"{directory}: {error}") from None
    draft = OpenDraft(
        told.config,
        to_tensors(state[_PARAMS]),
        vocab,
        state.get(_EMBEDDINGS),
        boundaries,
        NATIVE,
        evidence=(f"holds {CONFIG}",),
        sources={"boundaries": "--boundaries" if reading.boundaries else CONFIG},
        max_positions=told.max_positions,
        target_name=told.target_name,
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
    for name in sorted(reading.allowed - LOSSES):
        raise InputError(
            f"{directory}: --allow {name} means nothing for a native draft, expected one of "
            f"{', '.join(sorted(LOSSES))}"
        )


def _read_told(path: Path) -> _Told:
    if not path.exists():
        raise InputError(f"{path}: no such file, expected a native draft")
    given = read_json(path)
    found = given.pop("format", None)
    if found != FORMAT:
        raise InputError(f"{path}: format is {found!r}, expected {FORMAT!r}")
    try:
        return decode_fields(given, _Told)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None


def _read_state(directory: Path) -> dict[str, Any]:
    """The arrays by what they are: a tree of parameters, ids and, where there is one, a table."""
    for name in _INDEXES:
        if not (directory / name).exists():
            raise InputError(f"{directory}: found no {name}, expected an Orbax checkpoint")
    try:
        state = _read_arrays(directory)
    except (ValueError, IndexError, NotImplementedError) as error:  # as TensorStore raises them
        first = str(error).split(" [", maxsplit=1)[0]
        raise InputError(
            f"{directory}: found arrays that cannot be read ({first}), expected those that were "
            "written"
        ) from None
    due = {_PARAMS, _IDS}
    if not due <= state.keys() <= due | {_EMBEDDINGS}:
        raise InputError(
            f"{directory}: holds {', '.join(sorted(state)) or 'nothing'}, expected {_PARAMS}, "
            f"{_IDS} and at most {_EMBEDDINGS}"
        )
    ids = state[_IDS]
    if not (isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu"):
        raise InputError(f"{directory}: {_IDS} is {_kind(ids)}, expected a row of integers")
    if not isinstance(state[_PARAMS], dict):
        raise InputError(f"{directory}: {_PARAMS} is {_kind(state[_PARAMS])}, expected a tree")
    return state


def _kind(node: Any) -> str:
    return "a tree" if isinstance(node, dict) else f"{node.dtype} {list(node.shape)}"


def _read_arrays(directory: Path) -> dict[str, Any]:
    """The tree of arrays, each of its own type."""
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

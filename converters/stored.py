"""A checkpoint as tensors that are read only when asked for, from safetensors or torch files.

Where there is an index, it alone says which files count, as servers have it. Whatever is left out,
renamed or guessed is told in a note.
"""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from converters.files import SINGLE, open_tensors, read_json, require_directory
from converters.listing import listed
from converters.pickles import read_pickle
from converters.tensors import DTYPES, Stored
from eagle3_jax.errors import InputError

_INDEX = ".index.json"
_PICKLED = "pytorch_model.bin"
_SAFETENSORS, _PICKLES = ".safetensors", (".bin", ".pt", ".pth")
_WEIGHTS = (
    *(f"{kind}{end}" for kind in (_SAFETENSORS, ".bin") for end in ("", _INDEX)),
    ".pt",
    ".pth",
    ".gguf",
)
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "draft_state_dict")
_PREFIXES = ("module.", "draft_model.", "_orig_mod.", "eagle_module.")
_LISTED = 8  # names in one note


class Checkpoint(NamedTuple):
    """The tensors of a checkpoint, unread.

    Attributes:
        tensors: by name, without the prefixes that a training framework put before all of them.
        metadata: the text that safetensors headers hold beside the tensors.
        files: those that count.
        notes: what was left out, renamed or guessed, a sentence each.
    """

    tensors: dict[str, Stored]
    metadata: dict[str, str]
    files: tuple[Path, ...]
    notes: tuple[str, ...]


def open_checkpoint(directory: Path) -> Checkpoint:
    """Open a checkpoint directory by its headers alone.

    The files that count are those that `model.safetensors.index.json` names, else
    `model.safetensors`, else the only other safetensors file; where there is none of them the same
    holds for `pytorch_model.bin` and torch files.

    Args:
        directory: holds the weights, single or sharded with an index.

    Raises:
        InputError: when there is no checkpoint or several, files and index do not agree, or a
            tensor is of a type that NumPy has not.
    """
    require_directory(directory, "a checkpoint")
    notes: list[str] = []
    index, files = _choose(directory, notes)
    tensors: dict[str, Stored] = {}
    metadata: dict[str, str] = {}
    for file in files:
        part = _open_file(file)
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise InputError(
                    f"{file}: tensor {name} stands in {tensors[name].file.name} too, expected it "
                    "once"
                )
            tensors[name] = tensor
        for key, text in part.metadata.items():
            if metadata.setdefault(key, text) != text:
                notes.append(f"{file}: {key} is {text!r}, {metadata[key]!r} in an earlier file")
        notes += part.notes
    if index is not None:
        _require_listed(index, tensors, notes)
    return _without_prefixes(Checkpoint(tensors, metadata, tuple(files), tuple(notes)), directory)


def open_tensors_file(path: Path) -> Checkpoint:
    """Open one file of weights, safetensors or torch's, by its header alone.

    Args:
        path: told apart by its suffix.

    Raises:
        InputError: when it is missing, truncated or something else, holds code, several state
            dicts or none, or a tensor of a type that NumPy has not.
    """
    return _without_prefixes(_open_file(path), path)


def _choose(directory: Path, notes: list[str]) -> tuple[Path | None, list[Path]]:
    """The index, where there is one, and the files that count."""
    names = sorted(
        file.name
        for file in directory.iterdir()
        if file.name.endswith(_WEIGHTS) and not file.name.startswith(".")
    )
    for single, suffixes in ((SINGLE, (_SAFETENSORS,)), (_PICKLED, _PICKLES)):
        index = directory / f"{single}{_INDEX}"
        kind = [name for name in names if name.endswith(suffixes)]
        if index.name in names:
            files = sorted(set(_weight_map(index).values()))
            for name in files:
                if name not in names and not (directory / name).exists():
                    raise InputError(f"{index}: names {name}, which is not in {directory}")
            why = f"{index.name} alone says which files count"
        elif single in names or len(kind) == 1:
            files = [single] if single in names else kind
            if files[0] != single:
                notes.append(f"{directory}: {files[0]} is read, for want of {single}")
            why = f"{files[0]} is there"
        elif kind:
            break
        else:
            continue
        used = {*files, index.name}
        left = [name for name in names if name not in used]
        if left:
            notes.append(f"{directory}: {listed(left, _LISTED)} not read: {why}")
        return (index if index.name in names else None), [directory / name for name in files]
    raise InputError(
        f"{directory}: found {', '.join(names) or 'no weights'}, expected {SINGLE}, or "
        f"{SINGLE}{_INDEX} with the files that it names"
    )


def _weight_map(index: Path) -> dict[str, str]:
    indexed = read_json(index).get("weight_map")
    if not isinstance(indexed, dict) or not indexed:
        raise InputError(f"{index}: found no object 'weight_map', expected tensor -> file")
    for name, file in indexed.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".."):
            raise InputError(
                f"{index}: tensor {name} is in {file!r}, expected the name of a file beside it"
            )
    return indexed


def _require_listed(index: Path, tensors: dict[str, Stored], notes: list[str]) -> None:
    indexed = _weight_map(index)
    for name, file in sorted(indexed.items()):
        if name not in tensors or tensors[name].file.name != file:
            raise InputError(f"{index}: lists tensor {name} in {file}, which does not hold it")
    unlisted = sorted(tensors.keys() - indexed.keys())
    if unlisted:
        notes.append(f"{index}: does not list {listed(unlisted, _LISTED)}, read nevertheless")


def _open_file(path: Path) -> Checkpoint:
    if path.suffix in _PICKLES:
        notes: list[str] = []
        return Checkpoint(_state_dict(path, read_pickle(path), notes), {}, (path,), tuple(notes))
    with open_tensors(path):  # checks header and size
        pass
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    metadata = header.pop("__metadata__", None) or {}
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in DTYPES:
            raise InputError(
                f"{path}: tensor {name} has type {entry['dtype']}, expected BF16, F16 or F32 "
                "(quantised weights are not read)"
            )
        offset = 8 + length + entry["data_offsets"][0]
        dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
        tensors[name] = Stored(path, name, dtype, shape, offset)
    return Checkpoint(tensors, metadata, (path,), ())


def _state_dict(path: Path, value: Any, notes: list[str]) -> dict[str, Stored]:
    """The tensors of a torch file, out of the dicts that training frameworks put around them."""
    while True:
        if not isinstance(value, dict) or not _holds_tensors(value):
            found = f"a {type(value).__name__}"
            if isinstance(value, dict):
                found += f" with {listed(sorted(map(str, value)), _LISTED) or 'nothing'}"
            raise InputError(f"{path}: found {found}, expected a state dict of tensors")
        wrappers = [key for key in _WRAPPERS if _holds_tensors(value.get(key))]
        if len(wrappers) > 1:
            raise InputError(
                f"{path}: found state dicts {' and '.join(wrappers)}, expected one of them"
            )
        kept = wrappers or [
            key for key, item in value.items() if isinstance(key, str) and isinstance(item, Stored)
        ]
        if wrappers:
            notes.append(f"{path}: the weights are in {wrappers[0]}")
        left = sorted(str(key) for key in value.keys() - set(kept))
        if left:
            notes.append(f"{path}: {listed(left, _LISTED)} not read, beside the weights")
        if not wrappers:
            return {key: replace(value[key], name=key) for key in kept}
        value = value[wrappers[0]]


def _holds_tensors(value: Any, depth: int = 3) -> bool:
    """Whether this is a state dict, or wrapped around one at most `depth` times."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(item, Stored) for item in value.values()) or (
        depth > 0 and any(_holds_tensors(value.get(key), depth - 1) for key in _WRAPPERS)
    )


def _without_prefixes(checkpoint: Checkpoint, where: Path) -> Checkpoint:
    tensors, notes = checkpoint.tensors, list(checkpoint.notes)
    while True:
        for prefix in _PREFIXES:
            if tensors and all(name.startswith(prefix) for name in tensors):
                break
        else:
            return checkpoint._replace(tensors=tensors, notes=tuple(notes))
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        notes.append(f"{where}: all names begin with {prefix}, which is left out")

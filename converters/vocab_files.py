"""A draft vocabulary that the user gives: d2t, t2d or the ids themselves, in a file of its own."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from converters.pickles import read_pickle
from converters.stored import open_tensors_file
from converters.tensors import Stored
from converters.vocabs import Maps, read_maps
from eagle3_jax.errors import InputError

_IDS = ("target_ids", "ids")  # JSON's names for the ids themselves
_EXPECTED = "expected d2t (int64 offsets), t2d (a bool mask) or both"


def read_mapping(path: Path) -> Maps:
    """What a mapping file says.

    `.pt`: SpecForge's and AngelSlim's {d2t, t2d}, or ModelOpt's bare d2t; `.npy`: speculators'
    d2t.npy or t2d.npy; `.safetensors`: tensors d2t and t2d; `.json`: a list of target ids, or an
    object with target_ids, d2t or t2d.

    Raises:
        InputError: when the file is missing, of another kind, or holds something else.
    """
    if path.is_dir():
        raise InputError(f"{path}: found a directory, expected a vocabulary mapping file")
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a vocabulary mapping")
    match path.suffix.lower():
        case ".npy":
            found = _named(_read_npy(path))
        case ".json":
            found = _read_json(path)
        case ".safetensors":
            found = {name: t.read() for name, t in open_tensors_file(path).tensors.items()}
        case ".pt" | ".pth" | ".bin":
            found = _read_torch(path)
        case other:
            raise InputError(
                f"{path}: found a file {other or 'without suffix'}, expected .pt, .npy, "
                ".safetensors or .json"
            )
    spoken = [name for name in (*_IDS, "d2t") if name in found]
    if len(spoken) > 1:
        raise InputError(f"{path}: found {' and '.join(spoken)}, expected one of them")
    ids = next((found[name] for name in _IDS if name in found), None)
    unknown = sorted(found.keys() - {"d2t", "t2d", *_IDS})
    if unknown or not found:
        raise InputError(f"{path}: found {', '.join(unknown) or 'nothing'}, {_EXPECTED}")
    if ids is not None:
        maps = read_maps(ids, found.get("t2d"), str(path))._replace(absolute=True)
    else:
        maps = read_maps(found.get("d2t"), found.get("t2d"), str(path))
    return maps._replace(source=f"--vocab-mapping {path}")


def _named(array: np.ndarray) -> dict[str, np.ndarray]:
    """A lone array, told by its type: a mask is t2d, numbers are d2t."""
    return {"t2d" if array.dtype in (np.bool_, np.uint8) else "d2t": array}


def _read_npy(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: found no NumPy array ({error}), {_EXPECTED}") from None
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path}: found an archive of arrays (.npz), {_EXPECTED}")
    return found


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    value = read_pickle(path)
    if isinstance(value, Stored):
        return _named(value.read())
    if not isinstance(value, dict) or not all(isinstance(t, Stored) for t in value.values()):
        raise InputError(f"{path}: found no dict of tensors, {_EXPECTED}")
    return {str(name): tensor.read() for name, tensor in value.items()}


def _read_json(path: Path) -> dict[str, np.ndarray]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: numbers of thousands of digits
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if isinstance(value, list):
        value = {"target_ids": value}
    if not isinstance(value, dict):
        raise InputError(f"{path}: found a JSON {type(value).__name__}, expected a list of ids")
    return {name: _array(numbers, name, path) for name, numbers in value.items()}


def _array(numbers: Any, name: str, path: Path) -> np.ndarray:
    kind = bool if name == "t2d" else int
    if not isinstance(numbers, list) or not all(type(number) is kind for number in numbers):
        raise InputError(f"{path}: {name} is no list of {kind.__name__}s, expected one")
    try:
        return np.array(numbers, np.bool_ if kind is bool else np.int64)
    except OverflowError:
        raise InputError(f"{path}: {name} holds a number past 64 bits, expected ids") from None

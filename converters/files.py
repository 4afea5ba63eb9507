"""Tensors and JSON on disk: read whole or by header, written whole or not at all.

What is written gets the permissions that any new file of the user's gets, and takes its final
name only when it is complete.
"""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # registers bfloat16 with NumPy before safetensors asks for it
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from eagle3_jax.errors import InputError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_UNREADABLE = re.compile("F4$|F6_|F8_")  # NumPy has none of these
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def require_directory(path: Path, what: str) -> None:
    """Refuse a path that is no directory.

    Args:
        path: where something should be.
        what: what should be there, with its article.

    Raises:
        InputError: when nothing or a file is there.
    """
    if not path.exists():
        raise InputError(f"{path}: no such directory, expected {what} (config.json, weights)")
    if not path.is_dir():
        raise InputError(f"{path}: found a file, expected the directory of {what}")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InputError: when the file is missing, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a JSON file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        _refuse_pointer(path, "JSON")
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: found a JSON {type(value).__name__}, expected an object")
    return value


def read_checkpoint(directory: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint directory, single or sharded with an index.

    Where there is an index, it alone says which files count, as servers have it: a file that it
    does not name is a leftover.

    Raises:
        InputError: when there is no checkpoint, or files and index do not agree.
    """
    tensors = read_tensors(weight_files(directory))
    index = directory / INDEX
    if index.exists():
        for name, file in sorted(_weight_map(index).items()):
            if name not in tensors:
                raise InputError(f"{index}: lists tensor {name} in {file}, which does not hold it")
    return tensors


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory, single or sharded with an index.

    Raises:
        InputError: when there are none, or the index names a missing file.
    """
    index = directory / INDEX
    if index.exists():
        files = [directory / name for name in sorted(set(_weight_map(index).values()))]
        for file in files:
            if not file.exists():
                raise InputError(f"{index}: names {file.name}, which is not in {directory}")
        return files
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    others = sorted(file.name for file in directory.iterdir() if file.suffix in _WEIGHT_SUFFIXES)
    raise InputError(
        f"{directory}: found {', '.join(others) or 'no weights'}, expected {SINGLE}, or {INDEX} "
        "with the files that it names"
    )


def _weight_map(index: Path) -> dict[str, str]:
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise InputError(f"{index}: found no object 'weight_map', expected tensor -> file")
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(
                f"{index}: tensor {name} is in {file!r}, expected the name of a file beside it"
            )
    return listed


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file for lazy reading.

    Raises:
        InputError: when it is missing, empty, truncated or something else.
    """
    try:
        handle = safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a safetensors file") from None
    except (SafetensorError, OSError) as error:
        if path.is_dir():
            raise InputError(f"{path}: found a directory, expected a safetensors file") from None
        _refuse_pointer(path, "safetensors")
        raise InputError(
            f"{path}: found {path.stat().st_size} bytes that are not whole safetensors ({error})"
        ) from None
    with handle:
        yield handle


def read_tensors(files: list[Path]) -> dict[str, np.ndarray]:
    """Read every tensor of some safetensors files.

    Raises:
        InputError: when a name stands in two files, or a type is one that NumPy has not.
    """
    tensors: dict[str, np.ndarray] = {}
    origin: dict[str, Path] = {}
    for file in files:
        with open_tensors(file) as handle:
            for name in handle.keys():  # noqa: SIM118  # the handle itself cannot be iterated
                if name in tensors:
                    raise InputError(
                        f"{file}: tensor {name} stands in {origin[name].name} too, expected it once"
                    )
                dtype = handle.get_slice(name).get_dtype()
                if _UNREADABLE.match(dtype):
                    raise InputError(
                        f"{file}: tensor {name} has type {dtype}, expected BF16, F16 or F32 "
                        "(quantised weights are not read)"
                    )
                tensors[name], origin[name] = handle.get_tensor(name), file
    return tensors


def _refuse_pointer(path: Path, expected: str) -> None:
    with path.open("rb") as file:
        start = file.read(len(_LFS_POINTER))
    if start == _LFS_POINTER:
        raise InputError(
            f"{path}: found a Git LFS pointer, expected {expected}: the content was never "
            "downloaded (git lfs pull)"
        )


@contextmanager
def whole_directory(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary directory beside `destination` that takes its place when all went well.

    What stood there before is removed last, so that a failure at any moment leaves either it or
    the new one.

    Raises:
        InputError: when the destination exists and `overwrite` is false, or it is a file.
    """
    if destination.exists() and not overwrite:
        raise InputError(f"{destination}: exists already, expected a new path or overwrite")
    if destination.exists() and not destination.is_dir():
        raise InputError(f"{destination}: found a file, expected a directory to replace")
    place = destination.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    temporary.mkdir()
    try:
        yield temporary
        _put(temporary, place)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def _put(temporary: Path, place: Path) -> None:
    if not place.exists():
        temporary.rename(place)
        return
    aside = temporary.with_name(f"{temporary.name}.old")
    place.rename(aside)
    try:
        temporary.rename(place)
    finally:
        if place.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(place)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object, keys in the order given, whole or not at all."""
    with _whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_tensors(
    path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, whole or not at all; dtypes and bytes as given."""
    contiguous = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    with _whole_file(path) as temporary:
        save_file(contiguous, temporary, metadata=metadata)


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # as the umask has it; safetensors writes 0600
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

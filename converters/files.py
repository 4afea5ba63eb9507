"""Tensors and JSON on disk: read whole or by header, written whole or not at all."""

import json
import os
import shutil
import tempfile
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
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: found a JSON {type(value).__name__}, expected an object")
    return value


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint directory, single or sharded with an index.

    Raises:
        InputError: when there are none, or the index names a missing file.
    """
    index = directory / INDEX
    if index.exists():
        listed = read_json(index).get("weight_map")
        if not isinstance(listed, dict):
            raise InputError(f"{index}: found no object 'weight_map', expected tensor -> file")
        files = [directory / name for name in sorted(set(listed.values()))]
        for file in files:
            if not file.exists():
                raise InputError(f"{index}: names {file.name}, which is not in {directory}")
        return files
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    raise InputError(
        f"{directory}: found no {SINGLE} and no {INDEX}, expected a checkpoint in safetensors"
    )


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
        size = path.stat().st_size if path.exists() else 0
        raise InputError(
            f"{path}: found {size} bytes that are not whole safetensors ({error})"
        ) from None
    with handle:
        yield handle


def read_tensors(files: list[Path]) -> dict[str, np.ndarray]:
    """Read every tensor of some safetensors files.

    Raises:
        InputError: when a name stands in two files.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        with open_tensors(file) as handle:
            for name in handle.keys():  # noqa: SIM118  # the handle itself cannot be iterated
                if name in tensors:
                    raise InputError(f"{file}: tensor {name} stands in another file too")
                tensors[name] = handle.get_tensor(name)
    return tensors


@contextmanager
def whole_directory(destination: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary directory beside `destination` that takes its place when all went well.

    Raises:
        InputError: when the destination exists and `overwrite` is false.
    """
    if destination.exists() and not overwrite:
        raise InputError(f"{destination}: exists already, expected a new path or overwrite")
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(
        tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent.resolve())
    )
    try:
        yield temporary
        temporary.chmod(0o755)
        if destination.exists():
            shutil.rmtree(destination)
        temporary.rename(destination)
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


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
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)

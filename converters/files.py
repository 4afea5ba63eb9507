"""Tensors and JSON on disk: opened or refused by name, written whole or not at all.

What is written gets the permissions that any new file of the user's gets, and takes its final
name only when it is complete.
"""

import errno
import json
import os
import secrets
import shutil
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from converters.tensors import DTYPES, Tensor, Tick, write_tensor
from eagle3_jax.errors import InputError

SINGLE = "model.safetensors"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_ALIGNMENT = 8  # of the first tensor's first byte, which spaces after the header bring about


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
    except IsADirectoryError:
        raise InputError(f"{path}: found a directory, expected a JSON file") from None
    except RecursionError:
        raise InputError(f"{path}: found JSON nested too deep, expected an object") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        refuse_pointer(path, "JSON")
        raise InputError(f"{path}: found text that is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: found a JSON {type(value).__name__}, expected an object")
    return value


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
        refuse_pointer(path, "safetensors")
        raise InputError(
            f"{path}: found {path.stat().st_size} bytes that are not whole safetensors ({error})"
        ) from None
    with handle:
        yield handle


def refuse_pointer(path: Path, expected: str) -> None:
    """Refuse a file that Git left in the place of the content.

    Args:
        path: a file that did not read as it should.
        expected: what it should hold.

    Raises:
        InputError: when it is a Git LFS pointer.
    """
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
        _sync_directory(temporary)
        _put(temporary, place)
        _sync_directory(place.parent)
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
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    tick: Tick | None = None,
) -> None:
    """Write a safetensors file, whole or not at all; dtypes and bytes as given.

    Laid out as the safetensors library does it, so that equal input gives equal files. Tensors on
    disk are copied in pieces.

    Args:
        path: where to; what stood there is replaced.
        tensors: in memory, or on disk and unread.
        metadata: text beside the tensors.
        tick: is told after each piece how many bytes it had, for a progress bar.

    Raises:
        InputError: when the format has no such type, or a file to copy from changed meanwhile.
    """
    kinds = {dtype: kind for kind, dtype in DTYPES.items()}
    for name, tensor in tensors.items():
        if tensor.dtype not in kinds:
            raise InputError(
                f"{path}: tensor {name} has type {tensor.dtype}, expected one of "
                f"{', '.join(map(str, kinds))}"
            )
    widest_first = list(reversed(kinds))
    names = sorted(tensors, key=lambda name: (widest_first.index(tensors[name].dtype), name))
    header: dict[str, Any] = {}
    if metadata is not None:
        header["__metadata__"] = dict(sorted(metadata.items()))
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with _whole_file(path) as temporary, temporary.open("wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            write_tensor(file.fileno(), tensors[name], tick)


@contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Have the names in a directory on the disk, as `fsync` has a file's content."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some network file systems
            raise
    finally:
        os.close(descriptor)

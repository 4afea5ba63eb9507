"""A tensor on disk, unread: where its bytes lie, and how to read or copy just those.

    file ──┬── other bytes ──┬── offset: element [0, ..., 0] ... ──┬──
    element [i, j] lies at offset + (i * strides[0] + j * strides[1]) * itemsize

Copies go through the kernel in pieces, so that no tensor has to fit into memory.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np

from eagle3_jax.errors import InputError

CHUNK = 16 << 20  # bytes in memory at a time, and between two ticks of a progress bar
# Under safetensors' names and in its order, which decides how a file is laid out.
DTYPES: dict[str, np.dtype] = {
    name: np.dtype(kind)
    for name, kind in (
        ("BOOL", np.bool_),
        ("U8", np.uint8),
        ("I8", np.int8),
        ("I16", np.int16),
        ("U16", np.uint16),
        ("F16", np.float16),
        ("BF16", ml_dtypes.bfloat16),
        ("I32", np.int32),
        ("U32", np.uint32),
        ("F32", np.float32),
        ("C64", np.complex64),
        ("F64", np.float64),
        ("I64", np.int64),
        ("U64", np.uint64),
    )
}
# The kernel or the file system cannot copy between these two files.
_NO_RANGES = (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)
Tick = Callable[[int], None]


@dataclass(frozen=True)
class Stored:
    """A tensor on disk, unread.

    Attributes:
        file: holds its bytes.
        name: what the file calls it.
        dtype: NumPy's or ml_dtypes' type, little-endian.
        shape: as in the file.
        offset: of its first element, in bytes from the file's start.
        strides: in elements; `None` where the tensor is row-major without gaps.
    """

    file: Path
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes that its elements fill, gaps not counted."""
        return self.size * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """The tensor in memory of its own, row-major.

        Raises:
            InputError: when the file is gone or ends too early: it changed since it was opened.
        """
        if self.strides is None:
            return self._read(self.size).reshape(self.shape)
        flat = self._read(extent(self.shape, self.strides))
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        view = np.lib.stride_tricks.as_strided(flat, self.shape, strides, writeable=False)
        return view.copy(order="C")

    def copy_to(self, target: int, tick: Tick | None = None) -> None:
        """Write a tensor without gaps where a file descriptor stands; see `write_tensor`."""
        with self._open() as source:
            position, end = self.offset, self.offset + self.nbytes
            while position < end:
                count = _copy_range(source.fileno(), target, position, min(end - position, CHUNK))
                if not count:
                    raise self._cut_short(position)
                position += count
                if tick is not None:
                    tick(count)

    def _read(self, count: int) -> np.ndarray:
        flat = np.empty(count, self.dtype)
        rest = flat.view(np.uint8).data
        with self._open() as source:
            source.seek(self.offset)
            while rest:
                got = source.readinto(rest)  # type: ignore[attr-defined]  # raw files have it
                if not got:
                    raise self._cut_short(source.tell())
                rest = rest[got:]
        return flat

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        try:
            source = self.file.open("rb", buffering=0)
        except FileNotFoundError:
            raise InputError(
                f"{self.file}: no such file any more, expected it to hold tensor {self.name}"
            ) from None
        with source:
            yield source

    def _cut_short(self, position: int) -> InputError:
        return InputError(
            f"{self.file}: ends at byte {position}, inside tensor {self.name}, expected the whole "
            "tensor: the file changed after it was opened"
        )


Tensor = Stored | np.ndarray


def extent(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements from a view's first to its last, gaps counted."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def write_tensor(target: int, tensor: Tensor, tick: Tick | None = None) -> None:
    """Write a tensor's bytes, row-major, where a file descriptor stands.

    Args:
        target: open for writing.
        tensor: in memory, or on disk; with strides it is read, without it goes piece by piece.
        tick: is told after each piece how many bytes it had.

    Raises:
        InputError: when a file to copy from is gone or ends too early: it changed meanwhile.
    """
    if isinstance(tensor, Stored):
        if tensor.strides is None:
            tensor.copy_to(target, tick)
            return
        tensor = tensor.read()
    rest = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data
    while rest:
        count = os.write(target, rest[:CHUNK])
        rest = rest[count:]
        if tick is not None:
            tick(count)


def _copy_range(source: int, target: int, position: int, count: int) -> int:
    """Copy at most `count` bytes, within the kernel where it can; 0 at the file's end."""
    if hasattr(os, "copy_file_range"):  # Linux only
        try:
            copied = os.copy_file_range(source, target, count, position)
        except OSError as error:
            if error.errno not in _NO_RANGES:
                raise
        else:
            if copied:  # some file systems say 0 anywhere
                return copied
    return os.write(target, os.pread(source, count, position))

"""A torch file as a zip archive: which bytes of the file belong to which entry.

name/data.pkl    what `converters.pickles` reads
name/byteorder   little (absent in older files)
name/data/0      the bytes of storage 0, not compressed
"""

import gzip
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from converters.files import refuse_pointer
from eagle3_jax.errors import InputError

EXPECTED = "expected a torch file (torch.save, 1.6 or later)"
_BEFORE_1_6 = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_GZIP, _PICKLE, _ZIP = b"\x1f\x8b", b"\x80", b"PK"
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field
_ENCRYPTED = 1  # the bit in a zip entry's flags
_BROKEN = (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, ValueError)


@contextmanager
def open_archive(path: Path) -> Iterator["Entries"]:
    """Open a torch file's archive.

    Raises:
        InputError: when it is missing, truncated or something else, a program, or big-endian.
    """
    _require_torch(path)
    try:
        archive = zipfile.ZipFile(path)
    except _BROKEN as error:
        size = path.stat().st_size
        raise InputError(
            f"{path}: found {size} bytes that are not a whole zip archive ({error}), {EXPECTED}"
        ) from None
    with archive, path.open("rb") as raw:
        yield Entries(path, archive, raw)


@contextmanager
def decompressed(path: Path) -> Iterator[Path]:
    """The file itself or, where it is in gzip, its content in a temporary file.

    Raises:
        InputError: when the gzip stream is broken.
    """
    if not path.is_file() or _start(path) != _GZIP:
        yield path
        return
    with tempfile.NamedTemporaryFile(prefix=f"{path.name}.") as plain:
        try:
            with gzip.open(path) as packed:
                shutil.copyfileobj(packed, plain)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"{path}: found broken gzip ({error}), expected a whole file"
            ) from None
        plain.flush()
        yield Path(plain.name)


def _start(path: Path, count: int = len(_GZIP)) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _require_torch(path: Path) -> None:
    try:
        start = _start(path, len(_BEFORE_1_6))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, {EXPECTED}") from None
    except IsADirectoryError:
        raise InputError(f"{path}: found a directory, {EXPECTED}") from None
    if start.startswith(_ZIP):
        return
    refuse_pointer(path, "a torch file")
    found = f"{path.stat().st_size} bytes of something else"
    if start.startswith(_GZIP):
        found = "gzip"
    elif start == _BEFORE_1_6:
        found = "torch's format from before 1.6"
    elif start.startswith(_PICKLE):
        found = "a bare pickle"
    raise InputError(f"{path}: found {found}, {EXPECTED}")


class Entries:
    """The entries of a torch archive, by their names inside its one folder."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, raw: BinaryIO) -> None:
        """Find the folder; refuse programs and big-endian tensors.

        Args:
            path: for messages.
            archive: the same file, opened as a zip archive.
            raw: the same file, opened for reading.
        """
        self._path, self._archive, self._raw = path, archive, raw
        self._names = frozenset(archive.namelist())
        folders = [
            name.removesuffix("data.pkl")
            for name in sorted(self._names)
            if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(folders) != 1:
            raise InputError(
                f"{path}: found a zip archive with {len(folders)} data.pkl, {EXPECTED}"
            )
        self._folder = folders[0]
        if self._folder + "constants.pkl" in self._names:
            raise InputError(f"{path}: found TorchScript, a program, {EXPECTED}")
        if self._folder + "byteorder" in self._names and self.content("byteorder") != b"little":
            raise InputError(f"{path}: found big-endian tensors, expected little-endian ones")

    def content(self, name: str) -> bytes:
        """A whole entry, its checksum checked."""
        entry = self._entry(name)
        try:
            return self._archive.read(entry)
        except _BROKEN as error:
            raise InputError(
                f"{self._path}: found {entry.filename} broken ({error}), {EXPECTED}"
            ) from None

    def place(self, name: str) -> tuple[int, int]:
        """Where an entry's bytes start in the file, and how many there are."""
        entry = self._entry(name)
        self._raw.seek(max(entry.header_offset, 0))
        header = self._raw.read(_LOCAL_HEADER.size)
        start = entry.header_offset + _LOCAL_HEADER.size
        if len(header) == _LOCAL_HEADER.size:
            signature, name_length, extra_length = _LOCAL_HEADER.unpack(header)
            start += name_length + extra_length
            if signature == b"PK\3\4" and start + entry.file_size <= self._path.stat().st_size:
                return start, entry.file_size
        raise InputError(
            f"{self._path}: found no {entry.file_size} bytes of {entry.filename} where the "
            f"archive's directory says, {EXPECTED}"
        )

    def _entry(self, name: str) -> zipfile.ZipInfo:
        if self._folder + name not in self._names:
            raise InputError(
                f"{self._path}: found no entry {self._folder}{name} in the archive, {EXPECTED}"
            )
        entry = self._archive.getinfo(self._folder + name)
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & _ENCRYPTED:
            raise InputError(
                f"{self._path}: found {entry.filename} compressed or encrypted in the archive, "
                "expected it as it is, as torch writes it"
            )
        return entry

"""Paths -> shard files by their headers -> documents, one at a time."""

import glob
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from converters.archives import decompressed
from converters.pickles import read_pickle
from converters.shards.arrays import read_document
from converters.shards.base import (
    Content,
    Hints,
    LayoutError,
    Shape,
    ShardFile,
    ShardInfo,
    ShardSet,
)
from converters.shards.registry import check_layout, describe, find_layout, layout_named
from converters.stored import open_tensors_file
from converters.tensors import Stored
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_TORCH = (".ckpt", ".pt", ".pth")
_ENDINGS = (".safetensors", *_TORCH)
_GZIP = ".gz"
_SUFFIXES = (*_ENDINGS, *(f"{ending}{_GZIP}" for ending in _ENDINGS))
_EXPECTED = f"files that end in {', '.join(_ENDINGS)}, or those with {_GZIP}"
# What frameworks write beside their shards.
_NO_SHARDS = frozenset({"vocab_mapping.pt", "token_freq.pt", "target_embeddings.safetensors"})
_ZIP, _ZSTD = b"PK\x03\x04", b"\x28\xb5\x2f\xfd"


def shard_files(paths: Iterable[Path | str]) -> list[Path]:
    """The shard files that some paths mean, each once.

    Args:
        paths: files as they are; directories by what they and theirs hold; patterns (`*`, `?`,
            `[...]`, `**`) by what they match.

    Raises:
        InputError: when a path is missing, or a directory or pattern gives no shard.
    """
    return [file for files in _groups(map(Path, paths)).values() for file in files]


def _groups(paths: Iterable[Path]) -> dict[Path, tuple[Path, ...]]:
    """The files that each path means; one that two of them mean is with the first."""
    groups: dict[Path, tuple[Path, ...]] = {}
    known: set[Path] = set()
    for path in dict.fromkeys(paths):
        fresh = []
        for file in _meant(path):
            if file.resolve() not in known:
                known.add(file.resolve())
                fresh.append(file)
        groups[path] = tuple(fresh)
    return groups


def _meant(path: Path) -> list[Path]:
    if path.is_dir():
        found, expected = _inside(path), f"found no shard, expected {_EXPECTED}"
    elif path.exists():
        return [path]
    elif glob.has_magic(str(path)):
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        found = [
            file for match in matches for file in (_inside(match) if match.is_dir() else [match])
        ]
        found = [file for file in found if _is_shard(file)]
        expected = f"matches no shard, expected {_EXPECTED}"
    else:
        raise InputError(f"{path}: no such file or directory, expected shards")
    if not found:
        raise InputError(f"{path}: {expected}")
    return found


def _inside(directory: Path) -> list[Path]:
    return sorted(
        file
        for file in directory.rglob("*")
        # A dot marks what is still being written, or a download tool's cache.
        if _is_shard(file)
        and not any(part.startswith(".") for part in file.relative_to(directory).parts)
    )


def _is_shard(file: Path) -> bool:
    named = file.name.endswith(_SUFFIXES) and file.name not in _NO_SHARDS
    # A link to nothing is a shard that was never downloaded, to be missed when it is opened.
    return named and (file.is_file() or not file.exists())


def open_shards(
    paths: Path | str | Iterable[Path | str],
    *,
    layout: str | None = None,
    num_aux: int | None = None,
    target_width: int | None = None,
    strict: bool = True,
) -> ShardSet:
    """Find shards and read their headers.

    A file in gzip has to be unpacked for its header. So only the first of them is: the others are
    taken to be like it until they are read, and refused then if they are not.

    Args:
        paths: one or more files, directories or patterns.
        layout: the layout's name where the user says it; else files tell it.
        num_aux: A, the aux states that the draft reads, to tell layouts apart.
        target_width: Dt, the width of each of them, which all states must have.
        strict: a broken file is an error; else it is left out, as long as another one is whole.

    Raises:
        InputError: when a path is missing, a file broken, the layout cannot be told, or files
            differ in layout or capture.
    """
    hints = Hints(num_aux, target_width)
    groups = _groups(map(Path, [paths] if isinstance(paths, Path | str) else paths))
    files: list[ShardFile] = []
    broken: list[str] = []
    packed: ShardFile | None = None
    for path in (path for group in groups.values() for path in group):
        if packed is not None and path.name.endswith(_GZIP):
            files.append(packed._replace(path=path))
            continue
        try:
            file = _open_file(path, layout, hints)
        except LayoutError:
            raise
        except InputError as error:
            if strict:
                raise
            broken.append(str(error))
            continue
        if files:
            _require_alike(file, files[0])
        files.append(file)
        if path.name.endswith(_GZIP) and file.documents == 1:
            packed = file
    if broken and not files:
        more = f"; and {len(broken) - 1} more files, all broken" if len(broken) > 1 else ""
        raise InputError(f"{broken[0]}{more}")
    if not files:
        raise InputError("found no path of shards, expected files or directories of them")
    return ShardSet(tuple(files), files[0].info, groups, tuple(broken))


def read_info(path: Path | str) -> ShardInfo:
    """What the states of a shard are, from its header alone.

    Raises:
        InputError: when it is no shard, broken, or its layout cannot be told.
    """
    return open_shards(path).info


def read_documents(shards: ShardSet | ShardFile | Path | str) -> Iterator[Document]:
    """The documents of shards, in order; one at a time is in memory.

    The loss mask marks tokens: `answer[t]` is true when `ids[t]` is a token of the answer,
    whichever columns the framework that wrote it trains on. A layout without a loss mask marks
    every token, and its notes say so.

    Args:
        shards: from `open_shards`, one file of them, or a path whose keys tell its layout.

    Raises:
        InputError: when its content is broken, or is not what its header was.
    """
    if isinstance(shards, Path | str):
        shards = open_shards(shards)
    for file in shards.files if isinstance(shards, ShardSet) else (shards,):
        yield from _read_file(file)


def _read_file(file: ShardFile) -> Iterator[Document]:
    expected = Shape(*file[2:7])
    hints = Hints(target_width=file.width)
    layout = layout_named(file.layout)
    with _opened(file.path) as content:
        found = check_layout(content, layout, hints)
        if found != expected:
            raise InputError(
                f"{file.path}: stores {_told(found)}, expected {_told(expected)}: it changed, or "
                "differs from the file in gzip that was opened for all"
            )
        for sample in layout.reading.samples(content, hints):
            yield read_document(content, sample)


def _open_file(path: Path, name: str | None, hints: Hints) -> ShardFile:
    with _opened(path) as content:
        if name is None:
            layout, shape = find_layout(content, hints)
        else:
            layout = layout_named(name)
            shape = check_layout(content, layout, hints)
        return ShardFile(path, layout.name, *shape, describe(content, layout))


def _require_alike(file: ShardFile, first: ShardFile) -> None:
    """One layout and one capture for all: slots are places in the stored order."""
    if file.layout != first.layout:
        raise InputError(
            f"{file.path}: found layout {file.layout}, expected {first.layout} as in {first.path}"
        )
    if _capture(file) != _capture(first):
        raise InputError(
            f"{file.path}: stores {_capture(file)}, expected {_capture(first)} as in {first.path}"
        )


def _capture(file: ShardFile) -> str:
    info = file.info
    what = f"{file.states} states"
    if info.boundaries is not None:
        what = f"boundaries {', '.join(map(str, info.boundaries))}"
    return f"{what} of width {file.width} ({info.last_state or 'last state unsaid'}, {file.dtype})"


def _told(shape: Shape) -> str:
    return f"{shape.documents} documents of {shape.states} x {shape.width} ({shape.dtype})"


@contextmanager
def _opened(path: Path) -> Iterator[Content]:
    if not path.exists():
        raise InputError(f"{path}: no such file or directory, expected shards")
    with decompressed(path) as file:
        try:
            values, metadata = _parsed(file, path.name.removesuffix(_GZIP))
        except InputError as error:
            # A user knows nothing of the temporary file that a file in gzip is unpacked into.
            raise InputError(str(error).replace(str(file), str(path))) from None
        except OSError as error:
            raise InputError(
                f"{path}: {error.strerror or error}, expected a shard to read"
            ) from None
        yield Content(path, values, metadata)


def _parsed(file: Path, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys of a file, told apart by its first bytes, else by its name."""
    start = b""
    if file.is_file():
        with file.open("rb") as stream:
            start = stream.read(len(_ZIP))
    if start == _ZSTD:
        raise InputError(f"{file}: found zstd, expected the file unpacked (zstd -d)")
    if start != _ZIP and not name.endswith(_TORCH):
        opened = open_tensors_file(file)
        return dict(opened.tensors), opened.metadata
    value = read_pickle(file)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InputError(
            f"{file}: found a {'tensor' if isinstance(value, Stored) else type(value).__name__}, "
            "expected a dict: states without their tokens (input_ids) are no shard"
        )
    return value, {}

"""Shards that one capture writes into a directory of its own, one after the other: resumable.

    00000.safetensors  00001.safetensors  ...     each whole or not there at all

Every shard's notes carry what it was made with and a digest of that and of its texts. So a second
run tells which shards are done, and nobody mixes two captures by accident.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.shards import ShardInfo, read_info
from eagle3_jax.errors import InputError

_NOTE = "capture"
_NAME = re.compile(r"\d{5,}\.safetensors")
Settings = dict[str, Any]


class Made(NamedTuple):
    """What a shard is made of.

    Attributes:
        settings: by name, JSON-able: the target, the boundaries, and whatever else counts.
        digest: of the settings and of the shard's texts.
    """

    settings: Settings
    digest: str

    def notes(self) -> dict[str, object]:
        """What the shard remembers of it, for `ShardInfo`."""
        return {_NOTE: {**self.settings, "digest": self.digest}}


def made_of(settings: Settings, texts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Made:
    """What a shard is made of, from its settings and its texts' ids and masks."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for ids, answer in texts:
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(np.asarray(ids, "<i4").tobytes())
        digest.update(np.asarray(answer, np.bool_).tobytes())
    return Made(settings, digest.hexdigest())


def digest_of(tensors: dict[str, np.ndarray], besides: str = "") -> str:
    """A digest of tensors, their names, types, shapes and bytes, and of what else counts."""
    digest = hashlib.sha256(besides.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).view(np.uint8).data)
    return digest.hexdigest()


def shard_path(directory: Path, index: int) -> Path:
    """Where a shard of a series stands."""
    return directory / f"{index:05d}.safetensors"


def finished(directory: Path, series: list[Made], *, overwrite: bool = False) -> set[int]:
    """Which shards of a series are there already.

    Args:
        directory: the series' own; it need not exist.
        series: what each shard is to be made of, in order.
        overwrite: remove shards of other captures, which are refused otherwise. What no capture
            wrote is never removed.

    Raises:
        InputError: when the directory is a file, or holds shards that are not of this series.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: found a file, expected a directory for the shards")
    done: set[int] = set()
    stale: list[Path] = []
    for file in sorted(directory.glob("**/*.safetensors")):
        if any(part.startswith(".") for part in file.relative_to(directory).parts):
            continue  # still being written, or left by a run that was killed
        found = _settings(file, directory)
        index = int(file.stem)
        expected = series[index] if index < len(series) else None
        if expected is not None and found["digest"] == expected.digest:
            done.add(index)
        elif overwrite:
            stale.append(file)
        else:
            raise InputError(
                f"{file}: {_difference(found, expected)}; --overwrite removes such shards"
            )
    for file in stale:
        file.unlink()
    return done


def _settings(file: Path, directory: Path) -> Settings:
    """What the notes of a shard say that it was made of."""
    found: object = None
    if file.parent == directory and _NAME.fullmatch(file.name):
        info: ShardInfo = read_info(file)
        found = info.notes.get(_NOTE)
    if not isinstance(found, dict) or "digest" not in found:
        raise InputError(f"{file}: not written by capture, expected its shards alone here")
    return found


def _difference(found: Settings, expected: Made | None) -> str:
    if expected is None:
        return "found a shard too many, expected no more than these texts fill"
    for name, value in expected.settings.items():
        if found.get(name) != value:
            return f"was made with {name} {found.get(name)}, expected {value}"
    return "was made from other texts, expected those given"

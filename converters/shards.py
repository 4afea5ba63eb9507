"""Training shards: documents of tokens with the target's states at each of them.

The project's own layout is one safetensors file of documents laid end to end, which says in its
metadata what every stored state is, so that nobody has to guess:

    input_ids         [T]         int32
    loss_mask         [T]         bool, true on the answer's tokens
    hidden_states     [T,A+1,Dt]  the aux states, ascending, then the last state
    embeddings        [T,Dt]      boundary 0, the embedding of each token (optional)
    document_lengths  [n]         int32, sums to T
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from converters.files import open_tensors, write_tensors
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_FORMAT = "eagle3-jax shard 1"
_REQUIRED = ("input_ids", "loss_mask", "hidden_states", "document_lengths")
_METADATA = ("boundaries", "last_state", "target", "notes")
LastState = Literal["pre_norm", "post_norm"]


class ShardInfo(NamedTuple):
    """What a shard's stored states are.

    Attributes:
        boundaries: the boundary of each stored state, the last one L.
        last_state: whether the last stored state is before or after the target's final norm.
        target: the target's name.
        notes: whatever else the writer wants to remember, JSON-able.
    """

    boundaries: tuple[int, ...]
    last_state: LastState
    target: str
    notes: dict[str, object]


def write_shard(path: Path, documents: list[Document], info: ShardInfo) -> None:
    """Write documents as one shard, whole or not at all.

    Args:
        path: where to; what stood there is replaced.
        documents: all with embeddings, or all without.
        info: what their states are.

    Raises:
        InputError: when there is no document, or a document's arrays differ in length.
    """
    if not documents:
        raise InputError(f"{path}: found no document to write, expected one or more")
    embeddings = [d.embeddings for d in documents if d.embeddings is not None]
    if len(embeddings) not in (0, len(documents)):
        raise InputError(
            f"{path}: {len(embeddings)} of {len(documents)} documents have embeddings, expected "
            "all or none"
        )
    for number, document in enumerate(documents):
        lengths = [len(array) for array in document if array is not None]
        if len(set(lengths)) > 1:
            raise InputError(
                f"{path}: document {number} has arrays of {lengths} rows, expected one length"
            )
    tensors = {
        "input_ids": np.concatenate([d.ids for d in documents]).astype(np.int32),
        "loss_mask": np.concatenate([d.answer for d in documents]).astype(np.bool_),
        "hidden_states": np.concatenate([d.states for d in documents]),
        "document_lengths": np.asarray([len(d.ids) for d in documents], np.int32),
    }
    if embeddings:
        tensors["embeddings"] = np.concatenate(embeddings)
    metadata = {
        "format": _FORMAT,
        "boundaries": json.dumps(info.boundaries),
        "last_state": info.last_state,
        "target": info.target,
        "notes": json.dumps(info.notes),
    }
    write_tensors(path, tensors, metadata)


def shard_files(paths: list[Path]) -> list[Path]:
    """The shard files that some paths mean: files as they are, directories by what they hold.

    Raises:
        InputError: when a path is missing or a directory holds no shard.
    """
    files = []
    for path in paths:
        if path.is_dir():
            inside = sorted(
                file
                for file in path.rglob("*.safetensors")
                # A dot marks what is still being written, or a download tool's cache.
                if not any(part.startswith(".") for part in file.relative_to(path).parts)
            )
            if not inside:
                raise InputError(f"{path}: found no .safetensors file, expected shards")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"{path}: no such file or directory, expected shards")
    return files


def read_info(path: Path) -> ShardInfo:
    """What a shard says of itself, read from its header alone.

    Raises:
        InputError: when it is no shard of this layout, or its header is broken.
    """
    with open_tensors(path) as handle:
        metadata = handle.metadata() or {}
        found = sorted(handle.keys())
    missing = [name for name in _REQUIRED if name not in found]
    if metadata.get("format") != _FORMAT or missing:
        raise InputError(
            f"{path}: found format {metadata.get('format')!r} with tensors {', '.join(found)}; "
            f"expected {_FORMAT!r} with {', '.join(_REQUIRED)}"
        )
    silent = [key for key in _METADATA if key not in metadata]
    if silent:
        raise InputError(f"{path}: the header lacks {', '.join(silent)}, expected them")
    last_state = metadata["last_state"]
    if last_state not in ("pre_norm", "post_norm"):
        raise InputError(f"{path}: last_state is {last_state!r}, expected pre_norm or post_norm")
    boundaries, notes = (_json(metadata, key, path) for key in ("boundaries", "notes"))
    if not isinstance(boundaries, list) or not all(type(b) is int for b in boundaries):
        raise InputError(f"{path}: boundaries are {boundaries!r}, expected a list of integers")
    if not isinstance(notes, dict):
        raise InputError(f"{path}: notes are {notes!r}, expected an object")
    return ShardInfo(tuple(boundaries), last_state, metadata["target"], notes)


def _json(metadata: dict[str, str], key: str, path: Path) -> Any:
    try:
        return json.loads(metadata[key])
    except json.JSONDecodeError:
        raise InputError(f"{path}: {key} is {metadata[key]!r}, expected JSON") from None


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a shard, in order.

    Raises:
        InputError: when lengths do not agree; before the first document.
    """
    read_info(path)
    with open_tensors(path) as handle:
        ids = handle.get_tensor("input_ids")
        answer = handle.get_tensor("loss_mask")
        states = handle.get_tensor("hidden_states")
        lengths = handle.get_tensor("document_lengths")
        has_embeddings = "embeddings" in handle.keys()  # noqa: SIM118  # a handle, not a dict
        embeddings = handle.get_tensor("embeddings") if has_embeddings else None
    if lengths.ndim != 1 or lengths.dtype != np.int32 or lengths.min(initial=0) < 0:
        raise InputError(
            f"{path}: document_lengths has type {lengths.dtype}, shape {list(lengths.shape)} and "
            f"lowest value {lengths.min(initial=0)}, expected int32, one axis, none negative"
        )
    total = int(lengths.sum())
    for name, tensor in (
        ("input_ids", ids),
        ("loss_mask", answer),
        ("hidden_states", states),
        ("embeddings", embeddings),
    ):
        if tensor is not None and len(tensor) != total:
            raise InputError(
                f"{path}: {name} has {len(tensor)} rows, expected {total}, "
                "the sum of document_lengths"
            )
    start = 0
    for length in lengths.tolist():
        span = slice(start, start + length)
        yield Document(
            ids[span],
            answer[span].astype(np.bool_),
            states[span],
            None if embeddings is None else embeddings[span],
        )
        start += length

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
from typing import Literal, NamedTuple

import numpy as np

from converters.files import open_tensors, write_tensors
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_FORMAT = "eagle3-jax shard 1"
_REQUIRED = ("input_ids", "loss_mask", "hidden_states", "document_lengths")
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
    """Write documents as one shard, whole or not at all."""
    tensors = {
        "input_ids": np.concatenate([d.ids for d in documents]).astype(np.int32),
        "loss_mask": np.concatenate([d.answer for d in documents]).astype(np.bool_),
        "hidden_states": np.concatenate([d.states for d in documents]),
        "document_lengths": np.asarray([len(d.ids) for d in documents], np.int32),
    }
    embeddings = [d.embeddings for d in documents if d.embeddings is not None]
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
            inside = sorted(path.rglob("*.safetensors"))
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
        InputError: when it is no shard of this layout.
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
    last_state = metadata["last_state"]
    if last_state not in ("pre_norm", "post_norm"):
        raise InputError(f"{path}: last_state is {last_state!r}, expected pre_norm or post_norm")
    return ShardInfo(
        tuple(json.loads(metadata["boundaries"])),
        last_state,  # type: ignore[arg-type]  # checked above
        metadata["target"],
        json.loads(metadata["notes"]),
    )


def read_documents(path: Path) -> Iterator[Document]:
    """The documents of a shard, in order.

    Raises:
        InputError: when lengths do not agree.
    """
    read_info(path)
    with open_tensors(path) as handle:
        ids = handle.get_tensor("input_ids")
        answer = handle.get_tensor("loss_mask")
        states = handle.get_tensor("hidden_states")
        lengths = handle.get_tensor("document_lengths")
        has_embeddings = "embeddings" in handle.keys()  # noqa: SIM118  # a handle, not a dict
        embeddings = handle.get_tensor("embeddings") if has_embeddings else None
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

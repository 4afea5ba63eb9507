"""The project's own layout: one safetensors file of documents laid end to end.

It says in its metadata what every stored state is, so that nobody has to guess:

    input_ids         [T]         int32
    loss_mask         [T]         bool, true on the answer's tokens
    hidden_states     [T,A+1,Dt]  the aux states, ascending, then the last state
    embeddings        [T,Dt]      boundary 0, the embedding of each token (optional)
    document_lengths  [n]         int32, sums to T
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from converters.files import write_tensors
from converters.shards.arrays import rows, shape_of, tensor
from converters.shards.base import Content, Hints, LastState, Sample, Shape, ShardInfo
from converters.shards.readings import require_width
from converters.tensors import Stored
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_FORMAT = "eagle3-jax shard 1"
_IDS, _MASK, _STATES, _LENGTHS = "input_ids", "loss_mask", "hidden_states", "document_lengths"
_EMBEDDINGS = "embeddings"
KEYS = (_IDS, _MASK, _STATES, _LENGTHS)
_METADATA = ("boundaries", "last_state", "target", "notes")
_LAST_STATES = ("pre_norm", "post_norm")


def write_shard(path: Path, documents: list[Document], info: ShardInfo) -> None:
    """Write documents as one shard, whole or not at all.

    Args:
        path: where to; what stood there is replaced.
        documents: all with embeddings, or all without.
        info: what their states are.

    Raises:
        InputError: when there is no document, a document's arrays differ in length, or `info`
            leaves open what the states are.
    """
    if not documents:
        raise InputError(f"{path}: found no document to write, expected one or more")
    if info.boundaries is None or info.last_state not in _LAST_STATES or info.target is None:
        raise InputError(
            f"{path}: boundaries {info.boundaries}, last state {info.last_state}, target "
            f"{info.target}: expected all three known, the last state {' or '.join(_LAST_STATES)}"
        )
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
        _IDS: np.concatenate([d.ids for d in documents]).astype(np.int32),
        _MASK: np.concatenate([d.answer for d in documents]).astype(np.bool_),
        _STATES: np.concatenate([d.states for d in documents]),
        _LENGTHS: np.asarray([len(d.ids) for d in documents], np.int32),
    }
    if embeddings:
        tensors[_EMBEDDINGS] = np.concatenate(embeddings)
    metadata = {
        "format": _FORMAT,
        "boundaries": json.dumps(info.boundaries),
        "last_state": info.last_state,
        "target": info.target,
        "notes": json.dumps(info.notes),
    }
    write_tensors(path, tensors, metadata)


def header_info(content: Content, _: ShardInfo) -> ShardInfo:
    """What a shard says of itself.

    Raises:
        InputError: when its header is of another version, or broken.
    """
    path, metadata = content.path, content.metadata
    if metadata.get("format") != _FORMAT:
        raise InputError(
            f"{path}: found format {metadata.get('format')!r} with tensors "
            f"{', '.join(sorted(content.values))}; expected {_FORMAT!r} with {', '.join(KEYS)}"
        )
    silent = [key for key in _METADATA if key not in metadata]
    if silent:
        raise InputError(f"{path}: the header lacks {', '.join(silent)}, expected them")
    last_state = metadata["last_state"]
    if last_state not in _LAST_STATES:
        raise InputError(
            f"{path}: last_state is {last_state!r}, expected {' or '.join(_LAST_STATES)}"
        )
    boundaries, notes = (_json(metadata, key, path) for key in ("boundaries", "notes"))
    if not isinstance(boundaries, list) or not all(type(b) is int for b in boundaries):
        raise InputError(f"{path}: boundaries are {boundaries!r}, expected a list of integers")
    if not isinstance(notes, dict):
        raise InputError(f"{path}: notes are {notes!r}, expected an object")
    shape = list(tensor(content, _STATES).shape)
    if len(shape) != 3 or shape[1] != len(boundaries):
        told = ", ".join(map(str, boundaries))
        raise InputError(
            f"{path}: {_STATES} has shape {shape}, expected [tokens, {len(boundaries)}, width], a "
            f"state for each of the boundaries {told}"
        )
    return ShardInfo(tuple(boundaries), cast(LastState, last_state), metadata["target"], notes)


def _json(metadata: dict[str, str], key: str, path: Path) -> Any:
    try:
        return json.loads(metadata[key])
    except json.JSONDecodeError:
        raise InputError(f"{path}: {key} is {metadata[key]!r}, expected JSON") from None


@dataclass(frozen=True)
class Native:
    """Documents laid end to end."""

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`."""
        lengths = self._lengths(content)
        states = tensor(content, _STATES)
        if len(states.shape) != 3:
            raise InputError(
                f"{content.path}: {_STATES} has shape {list(states.shape)}, expected "
                "[tokens, states, width]"
            )
        total = int(lengths.sum())
        for key in (*KEYS[:3], _EMBEDDINGS):
            if key in content.values and tensor(content, key).shape[0] != total:
                raise InputError(
                    f"{content.path}: {key} has {tensor(content, key).shape[0]} rows, expected "
                    f"{total}, the sum of {_LENGTHS}"
                )
        shape = shape_of(content, self._whole(content))
        require_width(content, _STATES, shape.width, hints)
        return shape._replace(documents=len(lengths))

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`: the rows of one document after the other."""
        whole = self._whole(content)
        start = 0
        for length in self._lengths(content).tolist():
            end = start + length
            yield Sample(*(_rows(array, start, end) for array in whole))
            start = end

    def _whole(self, content: Content) -> Sample:
        embeddings = tensor(content, _EMBEDDINGS) if _EMBEDDINGS in content.values else None
        ids, answer, states = (tensor(content, key) for key in KEYS[:3])
        return Sample(ids, answer, (states,), embeddings)

    def _lengths(self, content: Content) -> np.ndarray:
        lengths = tensor(content, _LENGTHS).read()
        if lengths.ndim != 1 or lengths.dtype != np.int32 or lengths.min(initial=0) < 0:
            raise InputError(
                f"{content.path}: {_LENGTHS} has type {lengths.dtype}, shape "
                f"{list(lengths.shape)} and lowest value {lengths.min(initial=0)}, expected int32, "
                "one axis, none negative"
            )
        return lengths


def _rows(array: Any, start: int, stop: int) -> Any:
    if isinstance(array, tuple):
        return tuple(rows(part, start, stop) for part in array)
    return rows(array, start, stop) if isinstance(array, Stored) else None

"""NeMo AutoModel's cache, whose tokens are shifted and padded, and which has no last state.

    shard-000000.safetensors        of n documents, padded on the right to S
        input_ids          [n,S]    y[t] = x[t+1]
        loss_mask          [n,S]    shifted the same way
        attention_mask     [n,S]    not shifted: T ones, then zeros
        aux_hidden_states  [n,S,A*Dt]  not shifted: the states at x[t]
        target_probs, or target_probs_values and _indices, position_mask: not read
    target_embeddings.safetensors   weight [V,D]
    manifest.json                   what was captured of which target

The columns are put where other layouts have them, so that a column pairs the same state with the
same token:

    column             0    1    2   ...  T-1
    aux states         h0   h1   h2  ...  h[T-1]
    stored y           x1   x2   x3  ...  padding
    ids as given here  0    x1   x2  ...  x[T-1]

x[0] is not in the cache. No draft ever reads it: column t is fed the tokens after t.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.files import read_json
from converters.shards.arrays import require_integers, row, rows, shape_of, split, tensor
from converters.shards.base import Content, Hints, Sample, Shape, ShardInfo
from converters.shards.readings import require_width
from converters.stored import open_tensors_file
from converters.tensors import Stored
from eagle3_jax.capture import from_ids
from eagle3_jax.errors import InputError

_IDS, _MASK, _ATTENTION, _AUX = "input_ids", "loss_mask", "attention_mask", "aux_hidden_states"
KEYS = (_IDS, _MASK, _ATTENTION, _AUX, "position_mask")
_MANIFEST, _EMBEDDINGS = "manifest.json", "target_embeddings.safetensors"
_VERSION = 2
_AUX_IDS = "aux_layer_ids"


def manifest_info(content: Content, info: ShardInfo) -> ShardInfo:
    """What the manifest beside a shard says of its states.

    Raises:
        InputError: when it is of another version or does not say it.
    """
    manifest = _manifest(content.path)
    if manifest is None:
        return info
    path = content.path.with_name(_MANIFEST)
    boundaries = output_boundaries(path, _AUX_IDS, manifest[_AUX_IDS])
    return info._replace(boundaries=boundaries, target=manifest.get("target_model"))


def output_boundaries(path: Path, key: str, ids: list[int]) -> tuple[int, ...]:
    """The boundaries of states whose layers are numbered by output.

    Raises:
        InputError: when the ids do not ascend.
    """
    try:
        return from_ids(ids, "output", None)
    except ValueError as error:
        raise InputError(f"{path}: {key} is {ids}: {error}") from None


def _manifest(shard: Path) -> dict[str, Any] | None:
    path = shard.with_name(_MANIFEST)
    if not path.exists():
        return None
    manifest = read_json(path)
    version, ids = manifest.get("format_version"), manifest.get(_AUX_IDS)
    if version != _VERSION:
        raise InputError(f"{path}: format_version is {version!r}, expected {_VERSION}")
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise InputError(f"{path}: {_AUX_IDS} is {ids!r}, expected a list of integers")
    return manifest


@dataclass(frozen=True)
class Cache:
    """Shifted documents padded to one length."""

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`."""
        ids = tensor(content, _IDS)
        require_integers(content, ids)
        for key in (_IDS, _MASK, _ATTENTION, _AUX):
            shape = tensor(content, key).shape
            if len(shape) != (3 if key == _AUX else 2) or shape[:2] != ids.shape:
                raise InputError(
                    f"{content.path}: {key} has shape {list(shape)}, {_IDS} {list(ids.shape)}, "
                    "expected [documents, padded length], and one axis more for states"
                )
        table = _embeddings(content.path)
        width = self._width(content, hints)
        found = shape_of(content, self._padded(content, 0, width)) if ids.shape[0] else None
        count, across = tensor(content, _AUX).shape[0], tensor(content, _AUX).shape[2] // width
        dtype = tensor(content, _AUX).dtype if found is None else found.dtype
        return Shape(count, across, width, dtype, None if table is None else table.shape[1])

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`."""
        width, table = self._width(content, hints), _embeddings(content.path)
        for index in range(tensor(content, _IDS).shape[0]):
            attended = row(tensor(content, _ATTENTION), index).read() != 0
            length = int(attended.sum())
            if not attended[:length].all():
                raise InputError(
                    f"{content.path}: {_ATTENTION} of document {index} has gaps, expected "
                    "documents one by one, padded on the right"
                )
            padded = self._padded(content, index, width)
            ids, answer = (
                _unshifted(row(tensor(content, key), index).read()[:length])
                for key in (_IDS, _MASK)
            )
            states = tuple(rows(part, 0, length) for part in padded.states)
            yield Sample(ids, answer, states, None if table is None else _look_up(table, ids))

    def _padded(self, content: Content, index: int, width: int) -> Sample:
        """A document as it is stored, its padding included."""
        ids, answer, aux = (row(tensor(content, key), index) for key in (_IDS, _MASK, _AUX))
        return Sample(ids, answer, (split(aux, width),))

    def _width(self, content: Content, hints: Hints) -> int:
        """Dt: no last state tells it, but the manifest or the draft does."""
        manifest = _manifest(content.path)
        across = tensor(content, _AUX).shape[-1]
        if manifest is not None:
            count, told = len(manifest[_AUX_IDS]), f"{_AUX_IDS} in {_MANIFEST}"
        elif hints.target_width:
            count, told = across // hints.target_width, "the width of the draft's target"
        elif hints.num_aux:
            count, told = hints.num_aux, "the aux states of the draft"
        else:
            raise InputError(
                f"{content.path}: {_AUX} has width {across}, and no {_MANIFEST} beside it says of "
                "how many states, expected one"
            )
        if not count or not across or across % count:
            raise InputError(
                f"{content.path}: {_AUX} has width {across}, expected a multiple of {count or 1}, "
                f"by {told}"
            )
        require_width(content, _AUX, across // count, hints)
        return across // count


def _unshifted(shifted: np.ndarray) -> np.ndarray:
    """y[0], y[1], ... -> 0, y[0], ...: as many, the last is padding."""
    return np.concatenate([np.zeros_like(shifted[:1]), shifted[:-1]])


def _embeddings(shard: Path) -> Stored | None:
    path = shard.with_name(_EMBEDDINGS)
    if not path.exists():
        return None
    table = open_tensors_file(path).tensors.get("weight")
    if table is None or len(table.shape) != 2:
        raise InputError(f"{path}: found no matrix 'weight', expected the token embeddings")
    return table


def _look_up(table: Stored, ids: np.ndarray) -> np.ndarray:
    """The rows of some ids, read alone."""
    if ids.size and not 0 <= ids.min() <= ids.max() < table.shape[0]:
        raise InputError(
            f"{table.file}: holds embeddings of ids 0 to {table.shape[0] - 1}, expected of "
            f"{ids.min()} to {ids.max()}, which a shard beside it has"
        )
    return np.array(np.memmap(table.file, table.dtype, "r", table.offset, table.shape)[ids])

"""States that were captured inside a server, however they were saved.

A file in one of the layouts of shards is read as such. Else it is a dict of a text's ids and one
array of states, told by their shapes, as T and Dt are known:

    input_ids, token_ids or ids       [T], [1,T], a list
    states, under any name            [T,n,Dt], [n,T,Dt], [T,n*Dt], each also after a batch axis of
                                      one, or a list of n states [T,Dt]
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from converters.archives import decompressed
from converters.pickles import read_pickle
from converters.shards import open_shards, read_documents, shard_files
from converters.shards.arrays import (
    drop_axis,
    one_state,
    read_document,
    sequence,
    shape_of,
    split,
    tokens_first,
)
from converters.shards.base import Content, Sample
from converters.stored import open_tensors_file
from converters.tensors import Stored, Tensor
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_IDS = ("input_ids", "token_ids", "ids")
_SAFETENSORS = ".safetensors"


def read_dumps(path: Path, *, width: int) -> Iterator[Document]:
    """The texts and states that a server dumped, one at a time; every token counts.

    Args:
        path: a file, a directory of them or a pattern: safetensors or torch files.
        width: Dt, of a stored state.

    Raises:
        InputError: when a file is missing, broken, or neither a shard nor a dump.
    """
    for file in shard_files([path]):
        try:
            shards = open_shards([file], target_width=width)
        except InputError as refused:
            yield _read_loose(file, width, refused)
        else:
            yield from read_documents(shards.files[0])


def _read_loose(path: Path, width: int, refused: InputError) -> Document:
    with decompressed(path) as plain:
        content = Content(path, _values(plain, path, refused), {})
        sample = _sample(content, width, refused)
        shape_of(content, sample)
        return read_document(content, sample)


def _values(plain: Path, path: Path, refused: InputError) -> dict[str, Any]:
    if path.name.removesuffix(".gz").endswith(_SAFETENSORS):
        return dict(open_tensors_file(plain).tensors)
    value = read_pickle(plain)
    if not isinstance(value, dict):
        raise refused
    return value


def _sample(content: Content, width: int, refused: InputError) -> Sample:
    values = content.values
    named = [key for key in _IDS if key in values]
    if len(named) == 1:
        ids = _ids(content, named[0])
        tokens = ids.shape[0]
        found = {
            key: parts
            for key, value in values.items()
            if (parts := _states(value, tokens, width)) is not None
        }
        if len(found) == 1:
            return Sample(ids, None, next(iter(found.values())))
        what = f"{' and '.join(sorted(found)) or 'nothing'} with states of {tokens} tokens"
    else:
        what = f"{' and '.join(named) or 'nothing'} with ids"
    keys = ", ".join(f"{key} {_told(value)}" for key, value in sorted(values.items()))
    raise InputError(
        f"{content.path}: found {keys}: {what}, expected ids under one of {', '.join(_IDS)} and "
        f"one array [T, states, {width}], [states, T, {width}] or [T, states x {width}], or a list "
        f"of [T, {width}]; nor is it a shard: {str(refused).removeprefix(f'{content.path}: ')}"
    )


def _ids(content: Content, key: str) -> Tensor:
    value = content.values[key]
    if isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return np.asarray(value, np.int64)
    return sequence(content, key)


def _states(value: object, tokens: int, width: int) -> tuple[Stored, ...] | None:
    """The states of each token, where that is what a value is."""
    if isinstance(value, list | tuple):
        parts = [_one(item, tokens, width) for item in value]
        whole = tuple(part for part in parts if part is not None)
        return whole if whole and len(whole) == len(parts) else None
    if not isinstance(value, Stored) or value.dtype.kind in "iub":
        return None
    # [1,T,n*Dt], and [1,T,Dt] either way; but not [T,n,Dt] of one token.
    batch = len(value.shape) == 4 or (len(value.shape) == 3 and value.shape[1] == tokens)
    if batch and value.shape[0] == 1:
        value = drop_axis(value, 0)
    if len(value.shape) == 2 and value.shape[0] == tokens and _is_multiple(value.shape[1], width):
        return (split(value, width),)
    if len(value.shape) == 3 and value.shape[2] == width:
        if value.shape[0] == value.shape[1] == tokens > 1:
            return None  # which of the two axes are the tokens?
        if value.shape[0] == tokens:
            return (value,)
        if value.shape[1] == tokens:
            return (tokens_first(value),)
    return None


def _one(value: object, tokens: int, width: int) -> Stored | None:
    if not isinstance(value, Stored):
        return None
    if len(value.shape) == 3 and value.shape[0] == 1:
        value = drop_axis(value, 0)
    return one_state(value) if value.shape == (tokens, width) else None


def _is_multiple(size: int, width: int) -> bool:
    return size > 0 and size % width == 0


def _told(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Stored) else f"({type(value).__name__})"

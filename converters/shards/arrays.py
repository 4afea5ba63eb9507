"""Tensors on disk -> the arrays of a document, without their batch axes.

    input_ids      [T] or [1,T]          -> [T]
    wide states    [T,n*Dt], [1,T,n*Dt]  -> [T,n,Dt]
    one state      [T,Dt], [1,T,Dt]      -> [T,1,Dt]
    several        [n,T,Dt]              -> [T,n,Dt]

All of it is arithmetic on shapes and strides: nothing is read before `read_document`.
"""

from dataclasses import replace
from itertools import accumulate
from operator import mul

import ml_dtypes
import numpy as np

from converters.shards.base import Content, Sample, Shape
from converters.tensors import Stored, Tensor
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_FLOATS = tuple(map(np.dtype, (ml_dtypes.bfloat16, np.float16, np.float32)))
_INT32 = np.iinfo(np.int32)


def tensor(content: Content, key: str) -> Stored:
    """The tensor of a key.

    Raises:
        InputError: when it is something else.
    """
    value = content.values[key]
    if not isinstance(value, Stored):
        raise InputError(f"{content.path}: {key} is a {type(value).__name__}, expected a tensor")
    return value


def sequence(content: Content, key: str) -> Stored:
    """A tensor `[T]`, out of `[T]` or `[1,T]`.

    Raises:
        InputError: when it has another shape.
    """
    return without_batch(content, tensor(content, key), key, "T")


def without_batch(content: Content, stored: Stored, name: str, *axes: str) -> Stored:
    """A tensor without a batch axis of one.

    Args:
        content: names the file.
        stored: of the given axes, or of those after a batch axis.
        name: what messages call it.
        axes: their names, for messages.

    Raises:
        InputError: when it has other axes, or a batch of several.
    """
    shape = stored.shape
    if len(shape) == len(axes):
        return stored
    if len(shape) == len(axes) + 1 and shape[0] == 1:
        return drop_axis(stored, 0)
    told = ", ".join(axes)
    raise InputError(
        f"{content.path}: {name} has shape {list(shape)}, expected [{told}] or [1, {told}]"
    )


def rows(stored: Stored, start: int, stop: int) -> Stored:
    """Some rows of a tensor."""
    strides = _strides(stored)
    shape = (stop - start, *stored.shape[1:])
    return _view(stored, shape, strides, start * strides[0])


def row(stored: Stored, index: int) -> Stored:
    """One row, without its axis."""
    strides = _strides(stored)
    return _view(stored, stored.shape[1:], strides[1:], index * strides[0])


def split(stored: Stored, width: int) -> Stored:
    """Each row's states side by side: `[T,n*Dt]` -> `[T,n,Dt]`; the width divides."""
    (across, step) = _strides(stored)
    shape = (stored.shape[0], stored.shape[1] // width, width)
    return _view(stored, shape, (across, width * step, step))


def one_state(stored: Stored) -> Stored:
    """`[T,Dt]` -> `[T,1,Dt]`."""
    (tokens, width), (along, step) = stored.shape, _strides(stored)
    return _view(stored, (tokens, 1, width), (along, width * step, step))


def drop_axis(stored: Stored, axis: int) -> Stored:
    """A tensor without an axis of one."""
    shape, strides = list(stored.shape), list(_strides(stored))
    del shape[axis], strides[axis]
    return _view(stored, tuple(shape), tuple(strides))


def tokens_first(stored: Stored) -> Stored:
    """`[n,T,Dt]` -> `[T,n,Dt]`."""
    (states, tokens, width), (across, along, step) = stored.shape, _strides(stored)
    return _view(stored, (tokens, states, width), (along, across, step))


def _strides(stored: Stored) -> tuple[int, ...]:
    return _row_major(stored.shape) if stored.strides is None else stored.strides


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed([*accumulate(reversed(shape[1:]), mul, initial=1)])) if shape else ()


def _view(
    stored: Stored, shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0
) -> Stored:
    gapless = 0 in shape or all(
        length == 1 or stride == plain
        for length, stride, plain in zip(shape, strides, _row_major(shape), strict=True)
    )
    offset = stored.offset + first * stored.dtype.itemsize
    return replace(stored, shape=shape, strides=None if gapless else strides, offset=offset)


def shape_of(content: Content, sample: Sample) -> Shape:
    """Check the arrays of one document by their headers.

    Raises:
        InputError: when lengths, widths or types do not agree.
    """
    marks = () if sample.answer is None else (sample.answer,)
    embeddings = () if sample.embeddings is None else (sample.embeddings,)
    require_integers(content, sample.ids)
    for array in marks:
        if array.dtype.kind not in "biuf":
            raise InputError(
                f"{content.path}: {_name(array)} has type {array.dtype}, expected a mask of 0 and 1"
            )
    lengths = {
        _name(array): array.shape[0] for array in (sample.ids, *marks, *sample.states, *embeddings)
    }
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InputError(f"{content.path}: {found} tokens, expected one length")
    first = sample.states[0]
    width, dtype = first.shape[2], first.dtype
    for part in sample.states:
        if (part.shape[2], part.dtype) != (width, dtype):
            raise InputError(
                f"{content.path}: {part.name} is {part.shape[2]} wide ({part.dtype}), expected "
                f"{width} ({dtype}) as {first.name}"
            )
    if dtype not in _FLOATS or width == 0:
        raise InputError(
            f"{content.path}: {first.name} has type {dtype} and states of width {width}, expected "
            "bfloat16, float16 or float32, and 1 or more"
        )
    count = sum(part.shape[1] for part in sample.states)
    return Shape(1, count, width, dtype, embeddings[0].shape[-1] if embeddings else None)


def require_integers(content: Content, ids: Tensor) -> None:
    """Refuse token ids of another type.

    Raises:
        InputError: when they are no integers.
    """
    if ids.dtype.kind not in "iu":
        raise InputError(f"{content.path}: {_name(ids)} has type {ids.dtype}, expected integers")


def _name(array: Tensor) -> str:
    return array.name if isinstance(array, Stored) else "the data set"


def read_document(content: Content, sample: Sample) -> Document:
    """Read one document; at most one part of its states is in memory twice.

    Raises:
        InputError: when ids do not fit into int32, or a mask holds more than 0 and 1.
    """
    ids = _array(sample.ids)
    if ids.size and not (_INT32.min <= ids.min() and ids.max() <= _INT32.max):
        raise InputError(
            f"{content.path}: token ids are {ids.min()} to {ids.max()}, expected 32-bit integers"
        )
    if sample.answer is None:
        answer = np.ones(len(ids), np.bool_)
    else:
        marks = _array(sample.answer)
        answer = marks != 0
        if not np.array_equal(answer, marks):
            raise InputError(
                f"{content.path}: the loss mask holds {marks[answer != marks][0]}, expected 0 and 1"
            )
    return Document(
        ids.astype(np.int32),
        answer,
        _read_states(sample.states),
        None if sample.embeddings is None else _array(sample.embeddings),
    )


def _read_states(parts: tuple[Stored, ...]) -> np.ndarray:
    if len(parts) == 1:
        return parts[0].read()
    tokens, _, width = parts[0].shape
    states = np.empty((tokens, sum(part.shape[1] for part in parts), width), parts[0].dtype)
    start = 0
    for part in parts:
        states[:, start : start + part.shape[1]] = part.read()
        start += part.shape[1]
    return states


def _array(array: Tensor) -> np.ndarray:
    return array.read() if isinstance(array, Stored) else array

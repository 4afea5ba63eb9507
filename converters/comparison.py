"""Whether two tensors hold the same bytes, without holding either whole."""

from collections.abc import Iterator

import numpy as np

from converters.tensors import CHUNK, Stored, Tensor
from eagle3_jax.errors import InputError


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether type, shape and every bit agree.

    Raises:
        InputError: when a file ends before its tensor does.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return all(mine == theirs for mine, theirs in zip(_pieces(one), _pieces(other), strict=True))


def _pieces(tensor: Tensor) -> Iterator[bytes]:
    if isinstance(tensor, np.ndarray) or tensor.strides is not None:
        array = tensor.read() if isinstance(tensor, Stored) else tensor
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, CHUNK):
            yield flat[start : start + CHUNK].tobytes()
        return
    with tensor.file.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        for start in range(0, tensor.nbytes, CHUNK):
            wanted = min(CHUNK, tensor.nbytes - start)
            piece = file.read(wanted)
            if len(piece) != wanted:
                raise InputError(
                    f"{tensor.file}: ends inside tensor {tensor.name}, expected it whole"
                )
            yield piece

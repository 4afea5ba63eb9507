"""What `torch.save` wrote, read without torch and without running anything that stands in it.

A pickle is a program for a small machine that builds containers and calls functions by name.
`torch.save` needs few names: here they stand for plain data, and all others are refused. A tensor
is (storage, offset, shape, strides), where several may share one storage.
"""

import collections
import io
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

from converters.archives import EXPECTED, Entries, open_archive
from converters.tensors import DTYPES, Stored, extent
from eagle3_jax.errors import InputError

_TYPES = {dtype.name: dtype for dtype in DTYPES.values()}  # torch's names are NumPy's
_STORAGES = {
    "BFloat16Storage": "bfloat16",
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ComplexFloatStorage": "complex64",
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "ShortStorage": "int16",
}
_UNTYPED = "uint8"  # an UntypedStorage counts bytes
_UNREADABLE = re.compile(  # types that NumPy has not, or that mean nothing without a scale
    r"(float[48]_|q?u?int\d|complex|bits\d)\w*$|(Q\w+|ComplexDouble)Storage$"
)
_UNFINISHED = object()
# What the machine that runs a malformed pickle may raise.
_MALFORMED = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Storage(NamedTuple):
    """Bytes in the archive. Tuples, unlike objects, cannot be altered by a pickle."""

    offset: int
    nbytes: int
    dtype: str


class _View(NamedTuple):
    """A tensor that has no name yet."""

    start: int
    dtype: str
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickle(path: Path) -> Any:
    """The containers, numbers and texts of a torch file, with its tensors unread.

    Args:
        path: a zip archive as torch writes it; `converters.archives.decompressed` undoes gzip.

    Returns:
        Nested dicts, lists, tuples, sets, numbers and strings; each tensor is a `Stored` that
        points into the archive and is named after its keys and positions, joined by dots. Types
        and devices come as strings, parameters as their tensors.

    Raises:
        InputError: when the file is missing, truncated or something else, was written on a
            big-endian machine, or names anything besides tensors and plain data.
    """
    with open_archive(path) as entries:
        try:
            return _finished(_Reader(path, entries).load(), path, (), {})
        except InputError:
            raise
        except _MALFORMED as error:
            told = _one_line(str(error))
            raise InputError(f"{path}: found a broken pickle ({told}), {EXPECTED}") from None


class _Reader(pickle.Unpickler):
    """Runs a pickle in which names stand for the functions below, and for nothing else.

    What `find_class` hands out are bound methods, strings and built-in types: a pickle can call
    them but has no way to alter them.
    """

    def __init__(self, path: Path, entries: Entries) -> None:
        content = entries.content("data.pkl")
        super().__init__(io.BytesIO(content))
        self._path, self._entries = path, entries
        self._known: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor_v2"): self._tensor,
            ("torch._utils", "_rebuild_tensor_v3"): self._typed_tensor,
            ("torch._utils", "_rebuild_parameter"): self._parameter,
            ("torch._utils", "_rebuild_parameter_with_state"): self._parameter,
            ("torch.storage", "UntypedStorage"): _UNTYPED,
            ("torch", "Size"): self._size,
            ("torch", "device"): self._device,
            ("collections", "OrderedDict"): collections.OrderedDict,
            ("_codecs", "encode"): self._bytes,
        }

    def find_class(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for."""
        known = self._known.get((module, name))
        if known is not None:
            return known
        if module in ("builtins", "__builtin__") and name in ("set", "frozenset"):
            return set if name == "set" else frozenset
        if module in ("torch", "torch.cuda") and name in _STORAGES:
            return _STORAGES[name]
        if module == "torch" and (name in _TYPES or _UNREADABLE.match(name)):
            return name.removesuffix("Storage")
        code = _one_line(f"{module}.{name}")
        raise InputError(f"{self._path}: found code, {code}, in the pickle, expected tensors only")

    def persistent_load(self, pid: Any) -> _Storage:
        """The bytes that a storage's key stands for."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or dtype not in _STORAGES.values() or not _is_size(count):
            self._refuse_type(dtype)
            raise ValueError(f"storage {pid}")
        offset, held = self._entries.place(f"data/{key}")
        nbytes = count * _TYPES[dtype].itemsize
        if nbytes > held:
            raise InputError(
                f"{self._path}: found {held} bytes of storage {key}, expected {nbytes}"
            )
        return _Storage(offset, nbytes, dtype)

    def _tensor(self, storage: Any, first: Any, shape: Any, strides: Any, *rest: Any) -> _View:
        flags = rest[2:]  # after requires_grad and hooks
        return self._view(storage, storage.dtype, (first, shape, strides), *flags)

    def _typed_tensor(
        self, storage: Any, first: Any, shape: Any, strides: Any, *rest: Any
    ) -> _View:
        dtype, *flags = rest[2:]
        return self._view(storage, dtype, (first, shape, strides), *flags)

    def _view(self, storage: Any, dtype: Any, place: Any, flags: Any = None) -> _View:
        self._refuse_type(dtype)
        if flags:  # "neg", "conj": the bytes are not the values
            raise InputError(
                f"{self._path}: found a tensor marked {', '.join(flags)}, expected plain values"
            )
        first, shape, strides = place
        if len(shape) != len(strides) or not all(map(_is_size, (first, *shape, *strides))):
            raise ValueError(f"a view of shape {shape}, strides {strides}, offset {first}")
        end = (first + extent(shape, strides)) * _TYPES[dtype].itemsize
        if end > storage.nbytes:
            raise InputError(
                f"{self._path}: found a tensor of {list(shape)} that ends at byte {end} of a "
                f"storage of {storage.nbytes}, expected it inside"
            )
        return _View(storage.offset, dtype, first, tuple(shape), tuple(strides))

    def _refuse_type(self, dtype: Any) -> None:
        if isinstance(dtype, str) and dtype not in _TYPES:
            raise InputError(
                f"{self._path}: found a tensor of type {dtype}, expected bfloat16, float16 or "
                "float32 (quantised weights are not read)"
            )

    def _parameter(self, data: Any, requires_grad: bool, hooks: Any, state: Any = None) -> Any:
        return data

    def _size(self, lengths: Any) -> tuple[Any, ...]:
        return tuple(lengths)

    def _device(self, *parts: Any) -> str:
        return ":".join(map(str, parts))

    def _bytes(self, text: str, encoding: str) -> bytes:
        return text.encode("latin1")  # how protocol 2 writes bytes


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _finished(value: Any, path: Path, keys: tuple[str, ...], done: dict[int, Any]) -> Any:
    """Plain containers, each built once however often it is named, and tensors with names."""
    if isinstance(value, _View):
        return _stored(value, path, ".".join(keys))
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if id(value) in done:
        if done[id(value)] is _UNFINISHED:
            raise ValueError("a container that holds itself")
        return done[id(value)]
    done[id(value)] = _UNFINISHED
    if isinstance(value, dict):
        # Not value.items(): the pickle may have given an OrderedDict another one.
        result: Any = {
            _finished(key, path, keys, done): _finished(item, path, (*keys, str(key)), done)
            for key, item in dict.items(value)
        }
    elif isinstance(value, list | tuple | set | frozenset) and not isinstance(value, _Storage):
        result = type(value)(
            _finished(item, path, (*keys, str(index)), done) for index, item in enumerate(value)
        )
    else:
        raise ValueError(f"a {type(value).__name__} where data belongs")
    done[id(value)] = result
    return result


def _stored(view: _View, path: Path, name: str) -> Stored:
    dtype, gapless = _TYPES[view.dtype], 1
    plain = True
    for length, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        plain &= length == 1 or stride == gapless
        gapless *= length
    strides = None if plain or 0 in view.shape else view.strides
    return Stored(path, name, dtype, view.shape, view.start + view.first * dtype.itemsize, strides)

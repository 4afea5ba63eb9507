"""Torch's file format, written by hand: tests of its reader need no torch."""

import io
import pickle
import zipfile
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

STORAGES = {
    "bfloat16": "BFloat16Storage",
    "bool": "BoolStorage",
    "complex64": "ComplexFloatStorage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "int8": "CharStorage",
    "uint8": "ByteStorage",
}


class Name(NamedTuple):
    """Something that a pickle calls by name."""

    module: str
    name: str


class Call(NamedTuple):
    """What a pickle calls, with what, and the state that it then gives to the result."""

    function: Name
    arguments: tuple[Any, ...] = ()
    state: Any = None


@dataclass(eq=False)
class Storage:
    """The bytes that tensors share; `kind` and `count` are what the pickle says of them."""

    values: np.ndarray
    kind: Name | None = None
    count: int | None = None


HOOKS = Call(Name("collections", "OrderedDict"))
PARAMETER = Name("torch._utils", "_rebuild_parameter")


def view(storage, first, shape, strides, *flags):
    arguments = (storage, first, shape, strides, False, HOOKS, *flags)
    return Call(Name("torch._utils", "_rebuild_tensor_v2"), arguments)


def typed(storage, shape, strides, dtype):
    arguments = (storage, 0, shape, strides, False, HOOKS, Name("torch", dtype))
    return Call(Name("torch._utils", "_rebuild_tensor_v3"), arguments)


def tensor(array):
    strides = [stride // array.itemsize for stride in np.empty(array.shape, array.dtype).strides]
    return view(Storage(array.ravel()), 0, array.shape, tuple(strides))


class _Pickler(pickle._Pickler):
    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)

    def __init__(self, file, protocol):
        super().__init__(file, protocol)
        self.storages = []

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        if value not in self.storages:
            self.storages.append(value)
        kind = value.kind or Name("torch", STORAGES[value.values.dtype.name])
        count = len(value.values) if value.count is None else value.count
        return ("storage", kind, str(self.storages.index(value)), "cpu", count)

    def save_name(self, value):
        self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())

    def save_call(self, value):
        self.save(value.function)
        self.save(value.arguments)
        self.write(pickle.REDUCE)
        if value.state is not None:
            self.save(value.state)
            self.write(pickle.BUILD)

    dispatch[Name] = save_name
    dispatch[Call] = save_call


def write_torch(path, value, *, pickled=None, entries=(), lacks=(), compression=0, protocol=2):
    """Write what `torch.save` would; `pickled` takes the place of the pickle of `value`."""
    sink = io.BytesIO()
    pickler = _Pickler(sink, protocol)
    pickler.dump(value)
    content = {
        "data.pkl": sink.getvalue() if pickled is None else pickled,
        "byteorder": b"little",
        **{f"data/{i}": s.values.tobytes() for i, s in enumerate(pickler.storages)},
        "version": b"3\n",
        **dict(entries),
    }
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in content.items():
            if name not in lacks:
                archive.writestr(f"archive/{name}", data)
    return path

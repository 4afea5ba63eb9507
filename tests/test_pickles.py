"""Torch files: every tensor to the byte, and nothing in them is ever run."""

import base64
import gzip
import pickle
import re
import struct
import sys
import zipfile
import zlib

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from converters.archives import decompressed
from converters.pickles import read_pickle
from converters.tensors import DTYPES, Stored
from eagle3_jax.errors import InputError
from tests.torch_files import (
    HOOKS,
    PARAMETER,
    STORAGES,
    Call,
    Name,
    Storage,
    tensor,
    typed,
    view,
    write_torch,
)

TORCH = "expected a torch file (torch.save, 1.6 or later)"
REAL = (
    "eNqlls9P02AYx9+tbEAF5q8pKOIv1Kkwt1G2QURmY3rpQRgxWYhmKd3r2thRnu4dqAkJiQHlJhePxrOJJw/+BZ484c"
    "F48GDiAT35L/i+7TbbAlPgTd68W/N+v8/naZ/nbadkrg2hjg60bfSg46haUQzjRkkhSnzhkSGJh9Gsb6wElwHFCjwV"
    "VIlCcLGkqwQCyxCMFSL0YsUs1QwcV+JLWC9rBDiVmJaqxYs1ohtVvmjhuZpulIoLiqVUMMEWD227bCF4vmpaxcUUD6"
    "FYrNBuhzQtpYwh7Eh4UTJMhSTTM851HtoLAbotAR0Fjq7qQg065TABflpGclDm1uCQzMmBNehaV1XTMLBKdHO+yt+1"
    "StjCpTs0Fx66r+ahh0AkD4dfaOzPkedwNA/H3PnNNfI7rlE2rcFj4zRhojZMEk5oNsRJBsHJwTXolQOMpW/dtj9F4H"
    "Qe+t32asP+jGOvRbW6ycA0S4CZnHW8zjkm5wlcyMNF+8HUTUiqBIMePNE0jSbdJZsuBZepMUfgik23CjE5sApXHdNr"
    "BK7nYahWCNGdeMFUNRiWuVp8Sm7vGNx6xYeCCLE5tWtRRVG2XlTxh6ZVUUhxEVtVes8lUdhWW/8zkiz2h9/fnjF4Nn"
    "eP3YvGGrHrdVNUDL08X8HzRBJH9xV+Ni0wgMkl+EXzRsGWABF0uw4w94Rgk9WYJE7sL25jGDohBmYMqxM/+sI0Srgl"
    "QxfKubr6RkISbx4IAKGVSZTL5VZyb3KM4v357+NddpzWFONuiqQkptF+47NBGRBNjILQ33Q6LCdfbm302g++NUvczZ"
    "KSxGt7YEGBAAv18euDDXbCcC1DdSOxHqpZ9bcO9vhnR3gWfvN1+d6/668fCY0GsFOtYkunHfBUYYdeUS9JYmLPNIms"
    "MCZks1khM5YeTQjZzMhoIjmSyaQEQUim04KQyaYSqUyaUT74NPQ2RjliNmWAwTY53cdHzzZy73vIr3W3f9SjYzdlx+"
    "PGb+Fu4F6PxeZfi22nht/F3YIRj0ueQ/7W94vdndPlEX/hkKdn/Up3nXuV99s8yqRf6S5br/KnV5nyK90V1+1RzoSQ"
    "t8j9UncZ9Hukn5vSnQt0Sg6Hh+p7B7jhpq7Tt44GnfVx2Fmpjn0toHd1Auc9EQo7mk57v7P3DxrKCXo="
)


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


@st.composite
def views(draw):
    """Some storage, and a view of it: a permuted slice, or one value over and over."""
    dtype = np.dtype(draw(st.sampled_from(sorted(STORAGES))))
    lengths = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(lengths))
    values = np.frombuffer(draw(st.binary(min_size=count * 8, max_size=count * 8)), np.uint8)
    values = values[: count * dtype.itemsize].view(dtype)
    if dtype == np.bool_:
        values = values.view(np.uint8) % 2 == 1
    array = values.reshape(lengths).transpose(draw(st.permutations(range(len(lengths)))))
    cuts = [st.slices(length).filter(lambda cut: (cut.step or 1) > 0) for length in array.shape]
    array = array[(*(draw(cut) for cut in cuts), ...)]
    first = array.__array_interface__["data"][0] - values.__array_interface__["data"][0]
    strides = tuple(stride // dtype.itemsize for stride in array.strides)
    return values, array, (first // dtype.itemsize if array.size else 0), strides


@given(views(), st.sampled_from([2, 3, 4, 5]))
def test_every_view_comes_back_to_the_byte(tmp_path_factory, drawn, protocol):
    values, array, first, strides = drawn
    path = tmp_path_factory.mktemp("views") / "a.pt"
    write_torch(path, [view(Storage(values), first, array.shape, strides)], protocol=protocol)
    (found,) = read_pickle(path)
    back = found.read()
    assert (found.dtype, found.shape, found.nbytes) == (array.dtype, array.shape, array.nbytes)
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert back.tobytes() == array.tobytes()
    assert back.flags.c_contiguous
    assert back.flags.owndata or back.base.flags.owndata


def test_a_file_that_torch_wrote(tmp_path):
    """Written by torch 2.13.0.

    weight = torch.arange(6.0).reshape(2, 3)
    state = {
        "module.a.weight": torch.nn.Parameter(weight.bfloat16()),
        "module.b.weight": weight.T,
        "module.c.weight": weight[1:, ::2],
        "module.t2d": weight[0] > 0,
    }
    torch.save({"state_dict": state, "epoch": 3}, "small.bin")
    """
    path = tmp_path / "small.bin"
    path.write_bytes(zlib.decompress(base64.b64decode(REAL)))
    found = read_pickle(path)
    assert found["epoch"] == 3
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = {
        "module.a.weight": weight.astype(ml_dtypes.bfloat16),
        "module.b.weight": weight.T,
        "module.c.weight": weight[1:, ::2],
        "module.t2d": weight[0] > 0,
    }
    assert found["state_dict"].keys() == expected.keys()
    for name, array in expected.items():
        stored = found["state_dict"][name]
        assert (stored.name, stored.dtype) == (f"state_dict.{name}", array.dtype)
        np.testing.assert_array_equal(stored.read(), array)
    assert found["state_dict"]["module.b.weight"].strides == (1, 3)


def test_not_a_number_keeps_its_payload(tmp_path):
    bits = np.array([0x7FC1, 0xFFC2, 0x7F81, 0x8000], np.uint16)
    wide = np.array([0x7F812345, 0xFFFFFFFF, 0x7FC00001], np.uint32)
    arrays = [bits.view(ml_dtypes.bfloat16), bits.view(np.float16), wide.view(np.float32)]
    found = read_pickle(write_torch(tmp_path / "a", [tensor(a) for a in arrays]))
    assert [stored.read().tobytes() for stored in found] == [array.tobytes() for array in arrays]


def test_tensors_share_a_storage(tmp_path):
    shared = Storage(np.arange(6, dtype=np.float32))
    value = {"whole": view(shared, 0, (2, 3), (3, 1)), "row": view(shared, 3, (3,), (1,))}
    path = write_torch(tmp_path / "a", value)
    found = read_pickle(path)
    assert found["row"].offset == found["whole"].offset + 12
    np.testing.assert_array_equal(found["row"].read(), [3, 4, 5])
    assert path.read_bytes()[found["whole"].offset :].startswith(shared.values.tobytes())


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 4), (9, 1)), ((4, 1), (1, 0)), ((0, 3), (7, 7)), ((), ())]
)
def test_strides_that_say_nothing_are_left_out(tmp_path, shape, strides):
    storage = Storage(np.ones(4, np.float32))
    assert (
        read_pickle(write_torch(tmp_path / "a", view(storage, 0, shape, strides))).strides is None
    )


def test_containers_and_plain_data(tmp_path):
    one = np.ones(2, np.int64)
    parameter = Call(PARAMETER, (tensor(one), True, HOOKS))
    attributed = Call(
        Name("torch._utils", "_rebuild_parameter_with_state"),
        (tensor(one), True, HOOKS, {"note": "x"}),
    )
    value = {
        "numbers": [1, -(2**70), 1.5, None, True, "é"],
        "pair": (tensor(one), [tensor(one)]),
        "parameters": [parameter, attributed],
        "device": Call(Name("torch", "device"), ("cuda", 1)),
        "size": Call(Name("torch", "Size"), ((2, 3),)),
        "type": Name("torch", "bfloat16"),
        "bytes": b"\0\xff",
        "sets": [Call(Name("__builtin__", "set"), ([1, 2],)), frozenset({3})],
        3: Name("torch", "FloatStorage"),
    }
    for protocol in (2, 5):
        found = read_pickle(write_torch(tmp_path / "a", value, protocol=protocol))
        assert found["numbers"] == value["numbers"]
        assert [type(item) for item in found["pair"]] == [Stored, list]
        names = [found["pair"][0], *found["pair"][1], *found["parameters"]]
        assert [s.name for s in names] == ["pair.0", "pair.1.0", "parameters.0", "parameters.1"]
        assert (found["device"], found["size"], found["type"]) == ("cuda:1", (2, 3), "bfloat16")
        assert (found["bytes"], found["sets"], found[3]) == (b"\0\xff", [{1, 2}, {3}], "float32")


def test_types_without_a_storage_class(tmp_path):
    untyped = Name("torch.storage", "UntypedStorage")
    array = np.array([[1, 2, 3], [4, 5, 65535]], np.uint16)
    storage = Storage(array.view(np.uint8).ravel(), kind=untyped)
    found = read_pickle(write_torch(tmp_path / "a", typed(storage, (3, 2), (1, 3), "uint16")))
    np.testing.assert_array_equal(found.read(), array.T)
    for dtype in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "complex128", "uint4"):
        path = write_torch(tmp_path / "a", typed(storage, (12,), (1,), dtype))
        with refused(
            f"{path}: found a tensor of type {dtype}, expected bfloat16, float16 or float32 "
            "(quantised weights are not read)"
        ):
            read_pickle(path)
    quantised = Storage(array, kind=Name("torch", "QInt8Storage"))
    with pytest.raises(InputError, match="found a tensor of type QInt8, expected bfloat16"):
        read_pickle(write_torch(tmp_path / "a", view(quantised, 0, (3,), (1,))))


def test_an_ordered_dict_with_attributes(tmp_path):
    one = tensor(np.ones(1, np.float32))
    state = {"_metadata": Call(Name("collections", "OrderedDict")), "items": 1, "keys": []}
    # What `Module.state_dict()` gives, and attributes that hide methods.
    ordered = Call(Name("collections", "OrderedDict"), ([["w", one]],), state)
    found = read_pickle(write_torch(tmp_path / "a", ordered))
    assert type(found) is dict
    assert found["w"].read() == 1


class Bomb:
    def __reduce__(self):
        return exec, ("import sys; sys.modules['exploded'] = sys",)


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "posix.system",
        "builtins.eval",
        "builtins.getattr",
        "__builtin__.exec",
        "torch.load",
        "torch.nn.modules.linear.Linear",
        "torch._utils._rebuild_qtensor",
        "torch.storage.TypedStorage",
        "torch.FloatStorage.__init__",
        "evil.FloatStorage",
        "collections.OrderedDict.__init__",
        "numpy.core.multiarray._reconstruct",
    ],
)
def test_code_is_refused_by_name(tmp_path, name):
    module, function = re.split(r"\.(?=[^.]+$)", name)
    path = tmp_path / "a.pt"
    for value in (Name(module, function), {"a": Call(Name(module, function), ("true",))}):
        write_torch(path, value)
        with refused(f"{path}: found code, {name}, in the pickle, expected tensors only"):
            read_pickle(path)


def test_dotted_names_reach_nothing(tmp_path):
    broken = b"\x80\x04\x8c\x03o\ns\x8c\x01x\x93."
    path = write_torch(tmp_path / "a.pt", None, pickled=broken)
    with refused(rf"{path}: found code, 'o\ns.x', in the pickle, expected tensors only"):
        read_pickle(path)
    dotted = b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93."
    path = write_torch(tmp_path / "a.pt", None, pickled=dotted)
    with refused(
        f"{path}: found code, collections.OrderedDict.fromkeys, in the pickle, expected tensors "
        "only"
    ):
        read_pickle(path)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_is_run(tmp_path, protocol):
    path = write_torch(tmp_path / "a", None, pickled=pickle.dumps([Bomb()], protocol=protocol))
    with pytest.raises(InputError, match=r"found code, (__builtin__|builtins)\.exec, in"):
        read_pickle(path)
    assert "exploded" not in sys.modules


@pytest.mark.parametrize(
    "target",
    [Name("torch", "Size"), Name("torch._utils", "_rebuild_tensor_v2"), Name("torch", "float32")],
)
def test_a_pickle_cannot_alter_what_it_calls(tmp_path, target):
    hostile = b"\x80\x02c" + f"{target.module}\n{target.name}\n".encode()
    # BUILD with (state, slots): sets attributes on any object that lets itself be altered.
    hostile += b"N}X\x0c\x00\x00\x00__defaults__)s\x86b."
    path = write_torch(tmp_path / "a", None, pickled=hostile)
    with pytest.raises(InputError, match="found a broken pickle"):
        read_pickle(path)
    altered = Call(*tensor(np.ones(1, np.float32))[:2], {"start": 0, "dtype": "bool"})
    with pytest.raises(InputError, match="found a broken pickle"):
        read_pickle(write_torch(tmp_path / "a", [altered]))


ONE = np.ones(4, np.float32)
SELF = b"\x80\x02]q\x00h\x00a."


@pytest.mark.parametrize(
    ("value", "changes", "message"),
    [
        (1, {"pickled": b""}, f"found a broken pickle (Ran out of input), {TORCH}"),
        (
            1,
            {"pickled": b"\x80\x02K"},
            f"found a broken pickle (pickle data was truncated), {TORCH}",
        ),
        (1, {"pickled": b"\x80\x02R."}, "found a broken pickle (unpickling stack underflow), "),
        (1, {"pickled": b"garbage"}, "found a broken pickle ("),
        (1, {"pickled": SELF}, "found a broken pickle (a container that holds itself), "),
        (1, {"pickled": b"\x80\x02" + b"]" * 9999 + b"a" * 9998 + b"."}, "found a broken pickle ("),
        (Storage(ONE), {}, "found a broken pickle (a _Storage where data belongs), "),
        (Name("torch", "Size"), {}, "found a broken pickle (a method where data belongs), "),
        (
            view(Storage(ONE), 1, (2, 2), (2, 1)),
            {},
            "found a tensor of [2, 2] that ends at byte 20 of a storage of 16, expected it inside",
        ),
        (view(Storage(ONE), -1, (2,), (1,)), {}, "found a broken pickle (a view of shape (2,), "),
        (view(Storage(ONE), 3, (2,), (-1,)), {}, "found a broken pickle (a view of shape (2,), "),
        (view(Storage(ONE), 0, (2, 2), (1,)), {}, "found a broken pickle (a view of shape (2, 2)"),
        (view(Storage(ONE), 0, (2.0,), (1,)), {}, "found a broken pickle (a view of shape (2.0,)"),
        (view(None, 0, (2,), (1,)), {}, "found a broken pickle ("),
        (Call(Name("torch._utils", "_rebuild_tensor_v2")), {}, "found a broken pickle ("),
        (
            view(Storage(ONE), 0, (4,), (1,), {"neg": True}),
            {},
            "found a tensor marked neg, expected plain values",
        ),
        (
            view(Storage(ONE, count=5), 0, (4,), (1,)),
            {},
            "found 16 bytes of storage 0, expected 20",
        ),
        (view(Storage(ONE, count=-1), 0, (4,), (1,)), {}, "found a broken pickle (storage ("),
        (
            tensor(ONE),
            {"lacks": ["data/0"]},
            f"found no entry archive/data/0 in the archive, {TORCH}",
        ),
        (
            tensor(np.zeros(99, np.float32)),
            {"compression": zipfile.ZIP_DEFLATED},
            "found archive/byteorder compressed or encrypted in the archive, expected it as it is, "
            "as torch writes it",
        ),
        (
            tensor(ONE),
            {"entries": {"byteorder": b"big"}},
            "found big-endian tensors, expected little-endian ones",
        ),
        (
            tensor(ONE),
            {"entries": {"constants.pkl": b""}},
            f"found TorchScript, a program, {TORCH}",
        ),
        (tensor(ONE), {"lacks": ["data.pkl"]}, f"found a zip archive with 0 data.pkl, {TORCH}"),
    ],
)
def test_broken_archives_and_pickles(tmp_path, value, changes, message):
    path = write_torch(tmp_path / "a.pt", value, **changes)
    with pytest.raises(InputError) as error:
        read_pickle(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_older_archives_do_not_name_their_byte_order(tmp_path):
    path = write_torch(tmp_path / "a.pt", tensor(ONE), lacks=["byteorder"])
    np.testing.assert_array_equal(read_pickle(path).read(), ONE)


def test_what_is_no_torch_file(tmp_path):
    path = tmp_path / "a.pt"
    with refused(f"{path}: no such file, {TORCH}"):
        read_pickle(path)
    with refused(f"{tmp_path}: found a directory, {TORCH}"):
        read_pickle(tmp_path)
    for content, found in (
        (b"", "0 bytes of something else"),
        (b"plain text", "10 bytes of something else"),
        (pickle.dumps({"w": 1}), "a bare pickle"),
        (pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2), "torch's format from before 1.6"),
        (gzip.compress(b"a"), "gzip"),
    ):
        path.write_bytes(content)
        with refused(f"{path}: found {found}, {TORCH}"):
            read_pickle(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2\nsize 1234\n")
    with refused(
        f"{path}: found a Git LFS pointer, expected a torch file: the content was never "
        "downloaded (git lfs pull)"
    ):
        read_pickle(path)


def test_truncated_and_damaged_archives(tmp_path):
    path = write_torch(tmp_path / "a.pt", tensor(ONE))
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 30, 3):
        path.write_bytes(whole[:length])
        with refused(
            f"{path}: found {length} bytes that are not a whole zip archive (File is not a zip "
            f"file), {TORCH}"
        ):
            read_pickle(path)
    path.write_bytes(whole.replace(b"FloatStorage", b"Float_torage"))
    with refused(
        f"{path}: found archive/data.pkl broken (Bad CRC-32 for file 'archive/data.pkl'), {TORCH}"
    ):
        read_pickle(path)
    local = whole.index(b"archive/data/0") - 30
    path.write_bytes(whole[:local] + b"XX" + whole[local + 2 :])
    with refused(
        f"{path}: found no 16 bytes of archive/data/0 where the archive's directory says, {TORCH}"
    ):
        read_pickle(path)
    listed = whole.rindex(b"archive/data/0") - 46  # its entry in the directory
    longer = struct.pack("<II", 9999, 9999)
    path.write_bytes(whole[: listed + 20] + longer + whole[listed + 28 :])
    with refused(
        f"{path}: found no 9999 bytes of archive/data/0 where the archive's directory says, {TORCH}"
    ):
        read_pickle(path)
    path.write_bytes(whole[: listed + 8] + b"\1" + whole[listed + 9 :])
    with refused(
        f"{path}: found archive/data/0 compressed or encrypted in the archive, expected it as it "
        "is, as torch writes it"
    ):
        read_pickle(path)


@given(st.data())
def test_damage_anywhere_is_told_or_harmless(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    path = write_torch(folder / "a.pt", {"a": tensor(ONE), "b": [1, "text"]})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    told = None
    try:
        read_pickle(path)
    except InputError as error:
        told = str(error)
    assert told is None or told.startswith(f"{path}: found")


def test_gzip_is_undone_for_a_while(tmp_path):
    plain = write_torch(tmp_path / "a.ckpt", [tensor(ONE), "text"])
    packed = tmp_path / "a.ckpt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with decompressed(packed) as path:
        stored, text = read_pickle(path)
        np.testing.assert_array_equal(stored.read(), ONE)
        assert (text, path.name.startswith("a.ckpt.gz.")) == ("text", True)
    assert not path.exists()
    for same in (plain, tmp_path, tmp_path / "missing"):
        with decompressed(same) as path:
            assert path == same
    for content in (packed.read_bytes()[:-9], gzip.compress(b"")[:10] + b"\xff" * 9):
        packed.write_bytes(content)
        with (
            pytest.raises(InputError, match=r"a\.ckpt\.gz: found broken gzip \(.*\), expected a "),
            decompressed(packed),
        ):
            pass


def test_every_type_has_its_storage_class():
    assert STORAGES.keys() == {d.name for d in DTYPES.values()} - {"uint16", "uint32", "uint64"}

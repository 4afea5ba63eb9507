"""Checkpoints opened by their headers: which files count, and what is told of the rest."""

import json
import re
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.stored import open_checkpoint, open_tensors_file
from converters.tensors import Stored
from eagle3_jax.errors import InputError
from tests.torch_files import tensor, write_torch

ONE, TWO = np.arange(4, dtype=np.float32), np.ones((2, 2), np.float16)
SINGLES = {".safetensors": "model.safetensors", ".bin": "pytorch_model.bin"}
KINDS = pytest.mark.parametrize("kind", SINGLES)


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def write(path, tensors, **metadata):
    if path.suffix == ".safetensors":
        save_file(tensors, path, metadata=metadata or None)
    else:
        write_torch(path, {name: tensor(array) for name, array in tensors.items()})
    return path


def write_index(directory, kind, weight_map):
    index = directory / f"{SINGLES[kind]}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def read_all(checkpoint):
    return {name: stored.read() for name, stored in checkpoint.tensors.items()}


def test_a_header_is_enough(tmp_path):
    bits = np.array([[0x7FC1, 0xFFC2, 0x7F81]], np.uint16).view(ml_dtypes.bfloat16)
    tensors = {"bits": bits, "scalar": np.array(3.5), "empty": np.zeros((0, 4), np.int8)}
    path = write(tmp_path / "model.safetensors", tensors, format="pt", by="me")
    found = open_checkpoint(tmp_path)
    assert (found.metadata, found.files, found.notes) == ({"format": "pt", "by": "me"}, (path,), ())
    assert found.tensors.keys() == tensors.keys()
    for name, array in tensors.items():
        stored = found.tensors[name]
        assert (stored.file, stored.name, stored.strides) == (path, name, None)
        assert (stored.dtype, stored.shape) == (array.dtype, array.shape)
        assert (stored.size, stored.nbytes) == (array.size, array.nbytes)
        back = stored.read()
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array.tobytes()
        back[...] = 0  # it is the reader's own
        assert stored.read().tobytes() == array.tobytes()
    assert path.read_bytes()[found.tensors["bits"].offset :].startswith(bits.tobytes())


def test_strides_are_undone(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"head" + np.arange(12, dtype=np.float32).tobytes())
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    for strides, shape, first, expected in (
        ((1, 4), (4, 3), 0, whole.T),
        ((4, 2), (2, 2), 5, whole[1:, 1::2]),
        ((0, 1), (3, 4), 8, np.broadcast_to(whole[2], (3, 4))),
        ((5, 7), (0, 2), 0, np.zeros((0, 2), np.float32)),
    ):
        stored = Stored(path, "w", whole.dtype, shape, 4 + 4 * first, strides)
        back = stored.read()
        np.testing.assert_array_equal(back, expected)
        assert back.flags.c_contiguous
        assert back.flags.writeable
        assert back.nbytes == stored.nbytes


def test_a_file_that_changes_after_it_was_opened(tmp_path):
    path = write(tmp_path / "model.safetensors", {"w": ONE})
    stored = open_checkpoint(tmp_path).tensors["w"]
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with refused(
        f"{path}: ends at byte {size - 3}, inside tensor w, expected the whole tensor: the file "
        "changed after it was opened"
    ):
        stored.read()
    path.unlink()
    with refused(f"{path}: no such file any more, expected it to hold tensor w"):
        stored.read()


@pytest.mark.parametrize(
    ("present", "counts", "notes"),
    [
        (["model.safetensors"], "model.safetensors", []),
        (["pytorch_model.bin"], "pytorch_model.bin", []),
        (
            ["model.safetensors", "pytorch_model.bin", "a.safetensors", "x.gguf"],
            "model.safetensors",
            ["a.safetensors, pytorch_model.bin, x.gguf not read: model.safetensors is there"],
        ),
        (
            ["a.safetensors", "pytorch_model.bin"],
            "a.safetensors",
            [
                "a.safetensors is read, for want of model.safetensors",
                "pytorch_model.bin not read: a.safetensors is there",
            ],
        ),
        (
            ["pytorch_model.bin", "optimizer.pt"],
            "pytorch_model.bin",
            ["optimizer.pt not read: pytorch_model.bin is there"],
        ),
        *(
            ([name], name, [f"{name} is read, for want of pytorch_model.bin"])
            for name in ("training_state.pt", "a.pth", "a.bin")
        ),
    ],
)
def test_which_file_counts(tmp_path, present, counts, notes):
    for name in present:
        write(tmp_path / name, {"w": ONE + (name == counts)})
    (tmp_path / "._a.safetensors").touch()
    found = open_checkpoint(tmp_path)
    assert found.files == (tmp_path / counts,)
    assert found.notes == tuple(f"{tmp_path}: {note}" for note in notes)
    np.testing.assert_array_equal(found.tensors["w"].read(), ONE + 1)


@pytest.mark.parametrize(
    "present",
    [[], ["a.safetensors", "b.safetensors", "pytorch_model.bin"], ["a.bin", "b.pt"], ["x.gguf"]],
)
def test_no_file_that_counts(tmp_path, present):
    for name in present:
        (tmp_path / name).touch()
    (tmp_path / "config.json").touch()
    with refused(
        f"{tmp_path}: found {', '.join(present) or 'no weights'}, expected model.safetensors, or "
        "model.safetensors.index.json with the files that it names"
    ):
        open_checkpoint(tmp_path)
    missing = tmp_path / "missing"
    with refused(f"{missing}: no such directory, expected a checkpoint (config.json, weights)"):
        open_checkpoint(missing)


@KINDS
def test_an_index_alone_says_which_files_count(tmp_path, kind):
    for name, tensors in ((f"1{kind}", {"a": ONE}), (f"2{kind}", {"b": TWO, "c": TWO})):
        write(tmp_path / name, tensors)
    single = write(tmp_path / SINGLES[kind], {"a": ONE + 1, "stale": ONE})
    index = write_index(tmp_path, kind, {"a": f"1{kind}", "b": f"2{kind}"})
    found = open_checkpoint(tmp_path)
    assert found.tensors.keys() == {"a", "b", "c"}
    np.testing.assert_array_equal(found.tensors["a"].read(), ONE)
    assert found.files == (tmp_path / f"1{kind}", tmp_path / f"2{kind}")
    assert found.notes == (
        f"{tmp_path}: {single.name} not read: {index.name} alone says which files count",
        f"{index}: does not list c, read nevertheless",
    )


@KINDS
def test_files_that_disagree_with_their_index(tmp_path, kind):
    one, two, three = (f"{number}{kind}" for number in "123")
    write(tmp_path / one, {"a": ONE})
    write(tmp_path / two, {"b": TWO})
    index = write_index(tmp_path, kind, {"a": one, "b": three})
    with refused(f"{index}: names {three}, which is not in {tmp_path}"):
        open_checkpoint(tmp_path)
    for weight_map, name, file in (
        ({"a": one, "c": two}, "c", two),
        ({"a": two, "b": one}, "a", two),
    ):
        write_index(tmp_path, kind, weight_map)
        with refused(f"{index}: lists tensor {name} in {file}, which does not hold it"):
            open_checkpoint(tmp_path)
    write(tmp_path / two, {"a": ONE, "b": TWO})
    write_index(tmp_path, kind, {"a": one, "b": two})
    with refused(f"{tmp_path / two}: tensor a stands in {one} too, expected it once"):
        open_checkpoint(tmp_path)
    for outside in ("../1.bin", "/1.bin", "b/1.bin", "..", ".", "", 3, None):
        write_index(tmp_path, kind, {"a": outside})
        with refused(f"{index}: tensor a is in {outside!r}, expected the name of a file beside it"):
            open_checkpoint(tmp_path)
    for nothing in ({}, [], None):
        write_index(tmp_path, kind, nothing)
        with refused(f"{index}: found no object 'weight_map', expected tensor -> file"):
            open_checkpoint(tmp_path)
    index.write_text("{")
    with pytest.raises(InputError, match=r"index\.json: found text that is not JSON \(Expecting"):
        open_checkpoint(tmp_path)
    index.unlink()
    index.mkdir()
    with refused(f"{index}: found a directory, expected a JSON file"):
        open_checkpoint(tmp_path)


def test_metadata_of_several_files(tmp_path):
    write(tmp_path / "1.safetensors", {"a": ONE}, format="pt", by="me")
    second = write(tmp_path / "2.safetensors", {"b": ONE}, format="np", on="Monday")
    write_index(tmp_path, ".safetensors", {"a": "1.safetensors", "b": "2.safetensors"})
    found = open_checkpoint(tmp_path)
    assert found.metadata == {"format": "pt", "by": "me", "on": "Monday"}
    assert found.notes == (f"{second}: format is 'np', 'pt' in an earlier file",)


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 4), ("F8_E5M2", 4), ("F4", 2)])
def test_quantised_types_are_refused_by_name(tmp_path, dtype, size):
    path = tmp_path / "model.safetensors"
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))
    with refused(
        f"{path}: tensor w has type {dtype}, expected BF16, F16 or F32 (quantised weights are not "
        "read)"
    ):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("wrap", "names", "notes"),
    [
        (lambda state: state, ["a.w", "b.w"], []),
        *(
            (
                lambda state, key=key: {key: state, "epoch": 3, "optimizer": {"state": {0: state}}},
                ["a.w", "b.w"],
                ["the weights are in " + key, "epoch, optimizer not read, beside the weights"],
            )
            for key in ("state_dict", "model_state_dict", "model", "module", "draft_state_dict")
        ),
        (
            lambda state: {"model": {"state_dict": state}, "module": {"lr": 1}},
            ["a.w", "b.w"],
            [
                "the weights are in model",
                "module not read, beside the weights",
                "the weights are in state_dict",
            ],
        ),
        (
            lambda state: {**state, "step": 3, "model": {"n": 1}, 7: state["a.w"]},
            ["a.w", "b.w"],
            ["7, model, step not read, beside the weights"],
        ),
        (
            lambda state: {**state, **{f"k{i}": i for i in range(10)}},
            ["a.w", "b.w"],
            ["k0, k1, k2, k3, k4, k5, k6, k7 and 2 more not read, beside the weights"],
        ),
        (
            lambda state: {f"module._orig_mod.{name}": t for name, t in state.items()},
            ["a.w", "b.w"],
            [
                "all names begin with module., which is left out",
                "all names begin with _orig_mod., which is left out",
            ],
        ),
        *(
            (
                lambda state, prefix=prefix: {prefix + name: t for name, t in state.items()},
                ["a.w", "b.w"],
                [f"all names begin with {prefix}, which is left out"],
            )
            for prefix in ("draft_model.", "eagle_module.")
        ),
        (
            lambda state: {"module.a.w": state["a.w"], "b.w": state["b.w"]},
            ["b.w", "module.a.w"],
            [],
        ),
    ],
)
def test_wrappers_and_prefixes(tmp_path, wrap, names, notes):
    path = write_torch(tmp_path / "a.pt", wrap({"a.w": tensor(ONE), "b.w": tensor(TWO)}))
    found = open_tensors_file(path)
    assert sorted(found.tensors) == names
    assert found.notes == tuple(f"{path}: {note}" for note in notes)
    assert (found.files, found.metadata) == ((path,), {})
    prefix = "".join(re.findall(r"begin with (\S+),", " ".join(notes)))
    assert found.tensors["b.w"].name == f"{prefix}b.w"
    np.testing.assert_array_equal(found.tensors["b.w"].read(), TWO)


def test_prefixes_are_those_of_all_files(tmp_path):
    """A tensor keeps the name that its file has for it."""
    write(tmp_path / "1.safetensors", {"module.a": ONE})
    write(tmp_path / "2.safetensors", {"module.b": ONE})
    weight_map = {"module.a": "1.safetensors", "module.b": "2.safetensors"}
    write_index(tmp_path, ".safetensors", weight_map)
    found = open_checkpoint(tmp_path)
    assert {name: s.name for name, s in found.tensors.items()} == {"a": "module.a", "b": "module.b"}
    assert found.notes == (f"{tmp_path}: all names begin with module., which is left out",)
    write(tmp_path / "2.safetensors", {"b": ONE})
    write_index(tmp_path, ".safetensors", {"module.a": "1.safetensors", "b": "2.safetensors"})
    assert open_checkpoint(tmp_path).tensors.keys() == {"module.a", "b"}


def test_notes_of_all_files(tmp_path):
    for name in "ab":
        write_torch(tmp_path / f"{name}.bin", {"model": {name: tensor(ONE)}})
    write_index(tmp_path, ".bin", {"a": "a.bin", "b": "b.bin"})
    assert open_checkpoint(tmp_path).notes == tuple(
        f"{tmp_path / name}.bin: the weights are in model" for name in "ab"
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([tensor(ONE)], "found a list, expected a state dict of tensors"),
        ({}, "found a dict with nothing, expected a state dict of tensors"),
        (
            {"optimizer": {"w": tensor(ONE)}, "epoch": 3},
            "found a dict with epoch, optimizer, expected a state dict of tensors",
        ),
        (
            {"model": {"w": tensor(ONE)}, "state_dict": {"w": tensor(ONE)}},
            "found state dicts state_dict and model, expected one of them",
        ),
    ],
)
def test_torch_files_without_one_state_dict(tmp_path, value, message):
    path = write_torch(tmp_path / "a.pt", value)
    with refused(f"{path}: {message}"):
        open_tensors_file(path)


def test_broken_files_are_told_by_their_kind(tmp_path):
    for name, what in (("a.safetensors", "safetensors"), ("a.bin", "a torch file")):
        path = tmp_path / name
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: no such file, expected a "):
            open_tensors_file(path)
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2\n")
        with refused(
            f"{path}: found a Git LFS pointer, expected {what}: the content was never downloaded "
            "(git lfs pull)"
        ):
            open_tensors_file(path)
        path.write_bytes(b"")
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: found 0 bytes "):
            open_tensors_file(path)

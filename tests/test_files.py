"""Files: read whole or refused by name, written whole or not at all."""

import json
import os
import re
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from converters.files import (
    open_tensors,
    read_checkpoint,
    read_json,
    read_tensors,
    require_directory,
    weight_files,
    whole_directory,
    write_json,
    write_tensors,
)
from eagle3_jax.errors import InputError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2\nsize 1234\n"
ONE, TWO = np.arange(4, dtype=np.float32), np.ones((2, 2), np.float16)


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def write_shards(directory, shards, weight_map=None):
    """Files of tensors and the index that names them."""
    for name, tensors in shards.items():
        save_file(tensors, directory / name)
    if weight_map is None:
        weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_raw(path, dtype, size):
    """A safetensors file of one tensor of a type that NumPy may not have."""
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(size))


@pytest.mark.parametrize(
    "dtype",
    [
        ml_dtypes.bfloat16,
        np.float16,
        np.float32,
        np.float64,
        np.int64,
        np.int32,
        np.bool_,
        np.uint8,
    ],
)
def test_tensors_come_back_to_the_byte(tmp_path, dtype):
    tensor = np.random.default_rng(0).integers(0, 2, (3, 4)).astype(dtype)
    write_tensors(tmp_path / "a", {"w": tensor, "transposed": tensor.T}, {"format": "pt"})
    back = read_tensors([tmp_path / "a"])
    assert {name: value.dtype for name, value in back.items()} == {"w": dtype, "transposed": dtype}
    assert back["w"].tobytes() == tensor.tobytes()
    np.testing.assert_array_equal(back["transposed"], tensor.T)
    with open_tensors(tmp_path / "a") as handle:
        assert handle.metadata() == {"format": "pt"}


def test_json_comes_back_in_order(tmp_path):
    write_json(tmp_path / "deep/er/a.json", {"b": 1, "a": {"c": [None, True, "ü"]}})
    assert list(read_json(tmp_path / "deep/er/a.json").items()) == [
        ("b", 1),
        ("a", {"c": [None, True, "ü"]}),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "found text that is not JSON (Expecting property name"),
        (b"\xff", "found text that is not JSON ('utf-8' codec can't decode"),
        (b"[1]", "found a JSON list, expected an object"),
        (POINTER, "found a Git LFS pointer, expected JSON: the content was never downloaded"),
    ],
)
def test_what_is_no_json_object(tmp_path, content, message):
    path = tmp_path / "a.json"
    with refused(f"{path}: no such file, expected a JSON file"):
        read_json(path)
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}"):
        read_json(path)


def test_what_is_no_safetensors_file(tmp_path):
    path = tmp_path / "a.safetensors"
    with refused(f"{path}: no such file, expected a safetensors file"):
        read_tensors([path])
    save_file({"w": ONE}, path)
    for content in (b"", b"plain text", path.read_bytes()[:-1], b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(InputError, match="bytes that are not whole safetensors") as error:
            read_tensors([path])
        assert str(error.value).startswith(f"{path}: found {len(content)} bytes")
    path.write_bytes(POINTER)
    with refused(
        f"{path}: found a Git LFS pointer, expected safetensors: the content was never downloaded "
        "(git lfs pull)"
    ):
        read_tensors([path])
    with refused(f"{tmp_path}: found a directory, expected a safetensors file"):
        read_tensors([tmp_path])


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 4), ("F8_E5M2", 4), ("F4", 2)])
def test_quantised_types_are_refused_by_name(tmp_path, dtype, size):
    path = tmp_path / "a.safetensors"
    write_raw(path, dtype, size)
    with refused(
        f"{path}: tensor w has type {dtype}, expected BF16, F16 or F32 (quantised weights are not "
        "read)"
    ):
        read_tensors([path])


def test_shards_are_read_by_their_index(tmp_path):
    write_shards(tmp_path, {"1.safetensors": {"a": ONE}, "2.safetensors": {"b": TWO}})
    save_file({"a": ONE + 1, "stale": ONE}, tmp_path / "model.safetensors")
    save_file({"a": ONE + 1}, tmp_path / "3.safetensors")
    tensors = read_checkpoint(tmp_path)
    assert tensors.keys() == {"a", "b"}
    np.testing.assert_array_equal(tensors["a"], ONE)
    np.testing.assert_array_equal(tensors["b"], TWO)


def test_shards_that_disagree_with_their_index(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    files = {"1.safetensors": {"a": ONE}, "2.safetensors": {"b": TWO}}
    write_shards(tmp_path, files, {"a": "1.safetensors", "b": "3.safetensors"})
    with refused(f"{index}: names 3.safetensors, which is not in {tmp_path}"):
        read_checkpoint(tmp_path)
    write_shards(tmp_path, files, {"a": "1.safetensors", "c": "2.safetensors"})
    with refused(f"{index}: lists tensor c in 2.safetensors, which does not hold it"):
        read_checkpoint(tmp_path)
    twice = {"1.safetensors": {"a": ONE}, "2.safetensors": {"a": ONE, "b": TWO}}
    write_shards(tmp_path, twice, {"a": "1.safetensors", "b": "2.safetensors"})
    with refused(
        f"{tmp_path / '2.safetensors'}: tensor a stands in 1.safetensors too, expected it once"
    ):
        read_checkpoint(tmp_path)
    for outside in ("../1.safetensors", "/1.safetensors", 3):
        write_shards(tmp_path, files, {"a": outside})
        with refused(f"{index}: tensor a is in {outside!r}, expected the name of a file beside it"):
            read_checkpoint(tmp_path)
    for nothing in ("{}", "[]", "null"):
        index.write_text(f'{{"weight_map": {nothing}}}')
        with refused(f"{index}: found no object 'weight_map', expected tensor -> file"):
            read_checkpoint(tmp_path)


def test_directories_without_safetensors(tmp_path):
    expected = (
        "expected model.safetensors, or model.safetensors.index.json with the files that it names"
    )
    with refused(f"{tmp_path}: found no weights, {expected}"):
        weight_files(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    (tmp_path / "a.safetensors").touch()
    (tmp_path / "config.json").touch()
    with refused(f"{tmp_path}: found a.safetensors, pytorch_model.bin, {expected}"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_directories_are_required(tmp_path):
    with refused(f"{tmp_path / 'a'}: no such directory, expected a cat (config.json, weights)"):
        require_directory(tmp_path / "a", "a cat")
    (tmp_path / "a").touch()
    with refused(f"{tmp_path / 'a'}: found a file, expected the directory of a cat"):
        require_directory(tmp_path / "a", "a cat")
    require_directory(tmp_path, "a cat")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        with whole_directory(tmp_path / "a") as building:
            write_tensors(building / "w", {"w": ONE})
            write_json(building / "j", {})
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()}
    assert modes == {"w": 0o666 & ~umask, "j": 0o666 & ~umask}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o777 & ~umask


def test_a_write_that_fails_keeps_the_old_file_and_leaves_nothing(tmp_path):
    write_json(tmp_path / "j", {"old": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_json(tmp_path / "j", {"new": object()})
    write_tensors(tmp_path / "w", {"old": ONE})
    with pytest.raises(SafetensorError):
        write_tensors(tmp_path / "w", {"new": np.array([object()])})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "w"]
    assert read_json(tmp_path / "j") == {"old": 1}
    assert read_tensors([tmp_path / "w"]).keys() == {"old"}


class Broken(Exception):
    pass


def fail_halfway(destination):
    with whole_directory(destination, overwrite=True) as building:
        write_json(building / "new", {})
        raise Broken


def test_a_directory_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(Broken):
        fail_halfway(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_directory_stays_until_the_new_one_is_whole(tmp_path):
    destination = tmp_path / "a"
    with whole_directory(destination) as building:
        write_json(building / "old", {})
    with (
        refused(f"{destination}: exists already, expected a new path or overwrite"),
        whole_directory(destination),
    ):
        pass
    with pytest.raises(Broken):
        fail_halfway(destination)
    assert [path.name for path in destination.iterdir()] == ["old"]
    with whole_directory(destination, overwrite=True) as building:
        write_json(building / "new", {})
        assert [path.name for path in destination.iterdir()] == ["old"]
    assert [path.name for path in destination.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [destination]


def test_the_old_directory_comes_back_when_the_last_move_fails(tmp_path):
    destination = tmp_path / "a"
    with whole_directory(destination) as building:
        write_json(building / "old", {})
    with pytest.raises(FileNotFoundError), whole_directory(destination, overwrite=True) as building:
        building.rmdir()  # nothing is there to be moved
    assert [path.name for path in destination.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [destination]


def test_a_link_is_kept_and_a_file_is_not_taken_for_a_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with whole_directory(tmp_path / "link", overwrite=True) as building:
        write_json(building / "new", {})
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["new"]
    file = tmp_path / "file"
    file.write_text("kept")
    with (
        refused(f"{file}: found a file, expected a directory to replace"),
        whole_directory(file, overwrite=True),
    ):
        pass
    assert file.read_text() == "kept"

"""Files: read whole or refused by name, written whole or not at all."""

import errno
import os
import re
import stat
from dataclasses import replace

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import save, save_file

from converters import tensors as tensors_on_disk
from converters.files import (
    open_tensors,
    read_json,
    require_directory,
    whole_directory,
    write_json,
    write_tensors,
)
from converters.stored import open_checkpoint, open_tensors_file
from converters.tensors import DTYPES
from eagle3_jax.errors import InputError
from tests.torch_files import tensor, write_torch

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2\nsize 1234\n"
COPY_RANGE = os.copy_file_range
ONE, TWO = np.arange(4, dtype=np.float32), np.ones((2, 2), np.float16)


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def read(path):
    return {name: stored.read() for name, stored in open_tensors_file(path).tensors.items()}


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    content = draw(st.binary(min_size=512, max_size=512))
    if dtype == np.bool_:
        content = bytes(byte % 2 for byte in content)
    return np.frombuffer(content, dtype, int(np.prod(shape))).reshape(shape)


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda name: name != "__metadata__"), arrays()),
    st.none() | st.dictionaries(st.text(), st.text(), min_size=1, max_size=1),
)
def test_files_are_those_of_the_library(tmp_path_factory, tensors, metadata):
    path = tmp_path_factory.mktemp("files") / "a.safetensors"
    write_tensors(path, tensors, metadata)
    assert path.read_bytes() == save(tensors, metadata)
    again = path.with_name("b.safetensors")
    write_tensors(again, open_tensors_file(path).tensors, metadata)
    assert again.read_bytes() == path.read_bytes()


def test_tensors_come_back_to_the_byte(tmp_path):
    path = tmp_path / "a.safetensors"
    for dtype in DTYPES.values():
        tensor = np.random.default_rng(0).integers(0, 2, (3, 4)).astype(dtype)
        written = {"w": tensor, "transposed": tensor.T, "steps": tensor[::2, ::-1]}
        write_tensors(path, written, {"format": "pt"})
        back = read(path)
        for name, value in written.items():
            assert back[name].dtype == dtype
            np.testing.assert_array_equal(back[name], value)
        with open_tensors(path) as handle:
            assert handle.metadata() == {"format": "pt"}


def test_equal_input_gives_equal_files(tmp_path):
    names, texts = ["b", "a", "c"], {"z": "1", "y": "2", "x": "3"}
    write_tensors(tmp_path / "1", {name: ONE for name in names}, texts)
    write_tensors(
        tmp_path / "2", {name: ONE for name in sorted(names)}, dict(sorted(texts.items()))
    )
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


@pytest.fixture
def source(tmp_path):
    """A file of tensors with and without gaps, and what is in it."""
    path = tmp_path / "source.bin"
    wide = np.random.default_rng(0).normal(size=(30, 40)).astype(np.float32)
    written = {"wide": wide, "bits": wide.astype(ml_dtypes.bfloat16), "ids": wide.astype(np.int64)}
    write_torch(path, {name: tensor(array) for name, array in written.items()})
    stored = open_tensors_file(path).tensors
    stored["turned"] = replace(stored["wide"], shape=(40, 30), strides=(1, 40))
    return stored, written | {"turned": wide.T.copy()}


def no_ranges(code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    return refuse


def copy_three(source, target, count, start):
    return COPY_RANGE(source, target, min(count, 3), start)


def copy_nothing(source, target, count, start):
    return 0


@pytest.mark.parametrize(
    "copy",
    [
        COPY_RANGE,
        copy_three,
        copy_nothing,
        *map(no_ranges, (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)),
        None,
    ],
)
def test_tensors_on_disk_are_copied_in_pieces(tmp_path, source, monkeypatch, copy):
    stored, expected = source
    if copy is None:
        monkeypatch.delattr(os, "copy_file_range")
    else:
        monkeypatch.setattr(os, "copy_file_range", copy)
    monkeypatch.setattr(tensors_on_disk, "CHUNK", 1000)
    ticks = []
    in_memory = np.arange(999, dtype=np.int32)
    path = tmp_path / "copy.safetensors"
    write_tensors(path, {**stored, "held": in_memory}, None, ticks.append)
    assert path.read_bytes() == save({**expected, "held": in_memory})
    assert max(ticks) <= 1000
    assert sum(ticks) == sum(array.nbytes for array in (*expected.values(), in_memory))


def test_a_file_is_written_in_its_own_place(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"w": ONE, "x": TWO})
    write_tensors(path, {"x": open_tensors_file(path).tensors["w"]})
    assert path.read_bytes() == save({"x": ONE})


@pytest.mark.parametrize("strides", [None, (1,)])
def test_a_source_that_is_cut_short_leaves_the_old_file(tmp_path, strides):
    path, source = tmp_path / "a.safetensors", tmp_path / "source.safetensors"
    write_tensors(path, {"old": ONE})
    write_tensors(source, {"w": ONE})
    stored = replace(open_tensors_file(source).tensors["w"], strides=strides)
    size = source.stat().st_size
    os.truncate(source, size - 2)
    with refused(
        f"{source}: ends at byte {size - 2}, inside tensor w, expected the whole tensor: the file "
        "changed after it was opened"
    ):
        write_tensors(path, {"w": stored})
    source.unlink()
    with refused(f"{source}: no such file any more, expected it to hold tensor w"):
        write_tensors(path, {"w": stored})
    assert path.read_bytes() == save({"old": ONE})
    assert list(tmp_path.iterdir()) == [path]


def test_other_failures_of_a_copy_are_not_hidden(tmp_path, source, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", no_ranges(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device"):
        write_tensors(tmp_path / "a", source[0])
    assert [path.name for path in tmp_path.iterdir()] == ["source.bin"]


def test_what_is_written_is_on_the_disk(tmp_path, monkeypatch):
    synced = []

    def note(descriptor):
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        assert stat.S_ISDIR(os.fstat(descriptor).st_mode) == (len(synced) > 1)

    monkeypatch.setattr(os, "fsync", note)
    write_tensors(tmp_path / "a", {"w": ONE})
    assert [re.sub(r"\.[0-9a-f]{8}$", ".*", path) for path in synced] == [
        f"{tmp_path}/.a.*",
        str(tmp_path),
    ]
    del synced[1:]
    with whole_directory(tmp_path / "d"):
        pass
    assert [re.sub(r"\.[0-9a-f]{8}$", ".*", path) for path in synced[1:]] == [
        f"{tmp_path}/.d.*",
        str(tmp_path),
    ]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP, errno.EIO])
def test_file_systems_that_cannot_sync_directories(tmp_path, monkeypatch, code):
    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            write_json(tmp_path / "a", {})
    else:
        write_json(tmp_path / "a", {})
    assert read_json(tmp_path / "a") == {}


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
    with refused(f"{tmp_path}: found a directory, expected a JSON file"):
        read_json(tmp_path)
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}"):
        read_json(path)


def test_what_is_no_safetensors_file(tmp_path):
    path = tmp_path / "a.safetensors"
    with refused(f"{path}: no such file, expected a safetensors file"):
        open_tensors_file(path)
    save_file({"w": ONE}, path)
    for content in (b"", b"plain text", path.read_bytes()[:-1], b"\0" * 100):
        path.write_bytes(content)
        with pytest.raises(InputError, match="bytes that are not whole safetensors") as error:
            open_tensors_file(path)
        assert str(error.value).startswith(f"{path}: found {len(content)} bytes")
    path.write_bytes(POINTER)
    with refused(
        f"{path}: found a Git LFS pointer, expected safetensors: the content was never downloaded "
        "(git lfs pull)"
    ):
        open_tensors_file(path)
    with refused(f"{tmp_path}: found a directory, expected a safetensors file"):
        open_tensors_file(tmp_path)


def test_checkpoints_are_read_of_either_kind(tmp_path):
    write_torch(tmp_path / "pytorch_model.bin", {"a": tensor(ONE), "b": tensor(TWO)})
    back = open_checkpoint(tmp_path).tensors
    assert {name: stored.read().tolist() for name, stored in back.items()} == {
        "a": ONE.tolist(),
        "b": TWO.tolist(),
    }
    save_file({"c": ONE}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path).tensors.keys() == {"c"}


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
    with refused(
        f"{tmp_path / 'w'}: tensor new has type object, expected one of bool, uint8, int8, int16, "
        "uint16, float16, bfloat16, int32, uint32, float32, complex64, float64, int64, uint64"
    ):
        write_tensors(tmp_path / "w", {"new": np.array([object()])})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "w"]
    assert read_json(tmp_path / "j") == {"old": 1}
    assert read(tmp_path / "w").keys() == {"old"}


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

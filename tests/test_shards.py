"""Training shards: what is written comes back, and what is no shard says so."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.shards import (
    ShardFile,
    ShardInfo,
    open_shards,
    read_documents,
    read_info,
    shard_files,
    write_shard,
)
from converters.tensors import Stored
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

INFO = ShardInfo((2, 4, 5, 8), "pre_norm", "a target", {"prompts": [1, 7], "made": {"by": "ü"}})
METADATA = {
    "format": "eagle3-jax shard 1",
    "boundaries": "[2, 4, 5, 8]",
    "last_state": "pre_norm",
    "target": "a target",
    "notes": "{}",
}


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def document(length, dtype=np.float32, seed=0, embeddings=True):
    rng = np.random.default_rng(seed)
    return Document(
        rng.integers(0, 32, length).astype(np.int32),
        rng.random(length) < 0.5,
        rng.normal(size=(length, 4, 8)).astype(dtype),
        rng.normal(size=(length, 6)).astype(dtype) if embeddings else None,
    )


def damaged(path, metadata=None, **tensors):
    """A good shard with other tensors or another header."""
    write_shard(path, [document(3), document(2)], INFO)
    changed = {name: t for name, t in (load_file(path) | tensors).items() if t is not None}
    save_file(changed, path, metadata=METADATA | (metadata or {}))
    return path


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("embeddings", [True, False])
def test_documents_come_back_to_the_byte(tmp_path, dtype, embeddings):
    documents = [
        document(length, dtype, seed, embeddings) for seed, length in enumerate((5, 1, 0, 3))
    ]
    path = tmp_path / "deep/a.safetensors"
    write_shard(path, documents, INFO)
    assert read_info(path) == INFO
    back = list(read_documents(path))
    assert len(back) == len(documents)
    for ours, theirs in zip(back, documents, strict=True):
        for name in Document._fields:
            found, written = getattr(ours, name), getattr(theirs, name)
            if written is None:
                assert found is None
                continue
            assert (found.dtype, found.shape) == (written.dtype, written.shape), name
            assert found.tobytes() == written.tobytes(), name


def test_types_on_disk(tmp_path):
    odd = document(3)._replace(ids=np.arange(3, dtype=np.int64), answer=np.array([0, 1, 1]))
    write_shard(tmp_path / "a", [odd], INFO)
    assert {name: str(tensor.dtype) for name, tensor in load_file(tmp_path / "a").items()} == {
        "input_ids": "int32",
        "loss_mask": "bool",
        "hidden_states": "float32",
        "document_lengths": "int32",
        "embeddings": "float32",
    }
    (back,) = read_documents(tmp_path / "a")
    assert back.answer.tolist() == [False, True, True]


def test_what_cannot_be_written(tmp_path):
    path = tmp_path / "a"
    with refused(f"{path}: found no document to write, expected one or more"):
        write_shard(path, [], INFO)
    with refused(f"{path}: 1 of 2 documents have embeddings, expected all or none"):
        write_shard(path, [document(3), document(3, embeddings=False)], INFO)
    with refused(f"{path}: document 1 has arrays of [3, 2, 3, 3] rows, expected one length"):
        write_shard(path, [document(3), document(3)._replace(answer=np.ones(2, bool))], INFO)
    for changes, told in (
        ({"boundaries": None}, "boundaries None, last state pre_norm, target a target"),
        ({"last_state": "absent"}, "boundaries (2, 4, 5, 8), last state absent, target a target"),
        ({"target": None}, "boundaries (2, 4, 5, 8), last state pre_norm, target None"),
    ):
        with refused(
            f"{path}: {told}: expected all three known, the last state pre_norm or post_norm"
        ):
            write_shard(path, [document(3)], INFO._replace(**changes))
    assert list(tmp_path.iterdir()) == []


def test_paths_mean_files(tmp_path):
    for name in ("b.safetensors", "deep/a.safetensors", ".hidden/c.safetensors", "d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    found = [tmp_path / "b.safetensors", tmp_path / "deep/a.safetensors"]
    assert shard_files([tmp_path]) == found
    assert shard_files([tmp_path / "d.txt", tmp_path / "deep"]) == [tmp_path / "d.txt", found[1]]
    with refused(
        f"{tmp_path / 'empty'}: found no shard, expected files that end in .safetensors, .ckpt, "
        ".pt, .pth, or those with .gz"
    ):
        shard_files([tmp_path / "empty"])
    with refused(f"{tmp_path / 'no'}: no such file or directory, expected shards"):
        shard_files([tmp_path / "no"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"input_ids": np.arange(4, dtype=np.int32)}, "input_ids has 4 rows, expected 5"),
        ({"loss_mask": np.ones(6, bool)}, "loss_mask has 6 rows, expected 5"),
        ({"hidden_states": np.ones((1, 4, 8))}, "hidden_states has 1 rows, expected 5"),
        ({"embeddings": np.ones((7, 8))}, "embeddings has 7 rows, expected 5"),
        ({"document_lengths": np.array([3, 3], np.int32)}, "input_ids has 5 rows, expected 6"),
    ],
)
def test_lengths_that_disagree(tmp_path, tensors, message):
    path = damaged(tmp_path / "a", **tensors)
    with refused(f"{path}: {message}, the sum of document_lengths"):
        next(read_documents(path))


def test_lengths_that_are_none(tmp_path):
    for lengths, told in (
        (np.array([6, -1], np.int32), "type int32, shape [2] and lowest value -1"),
        (np.array([3, 2], np.float32), "type float32, shape [2] and lowest value 0.0"),
        (np.array([[3, 2]], np.int32), "type int32, shape [1, 2] and lowest value 0"),
    ):
        path = damaged(tmp_path / "a", document_lengths=lengths)
        with refused(
            f"{path}: document_lengths has {told}, expected int32, one axis, none negative"
        ):
            next(read_documents(path))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"last_state": "normed"}, "last_state is 'normed', expected pre_norm or post_norm"),
        ({"boundaries": "[2, 4"}, "boundaries is '[2, 4', expected JSON"),
        ({"boundaries": '["2"]'}, "boundaries are ['2'], expected a list of integers"),
        ({"notes": "[]"}, "notes are [], expected an object"),
    ],
)
def test_headers_that_are_broken(tmp_path, metadata, message):
    path = damaged(tmp_path / "a", metadata)
    with refused(f"{path}: {message}"):
        read_info(path)


def test_headers_that_lack_something(tmp_path):
    path = damaged(tmp_path / "a")
    save_file(load_file(path), path, metadata={"format": METADATA["format"], "target": "a"})
    with refused(f"{path}: the header lacks boundaries, last_state, notes, expected them"):
        read_info(path)


def test_what_is_no_shard(tmp_path):
    required = "input_ids, loss_mask, hidden_states, document_lengths"
    path = tmp_path / "a"
    save_file({"w": np.ones(1)}, path)
    with pytest.raises(InputError, match="a: found w, which no layout of shards has, expected one"):
        next(read_documents(path))
    damaged(path, loss_mask=None)
    with pytest.raises(InputError, match="found document_lengths, embeddings, hidden_states, inp"):
        read_info(path)
    damaged(path)
    save_file(load_file(path), path)
    with refused(
        f"{path}: found format None with tensors document_lengths, embeddings, hidden_states, "
        f"input_ids, loss_mask; expected 'eagle3-jax shard 1' with {required}"
    ):
        read_info(path)
    damaged(path, {"format": "eagle3-jax shard 2"})
    with pytest.raises(InputError, match="found format 'eagle3-jax shard 2'"):
        read_info(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="bytes that are not whole safetensors"):
        read_info(path)


def test_what_a_shard_says_of_itself_is_in_its_header(tmp_path):
    path = tmp_path / "a"
    write_shard(path, [document(2)], INFO)
    header = path.read_bytes()
    header = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    assert header.pop("notes") == json.dumps(INFO.notes)
    assert header == {key: value for key, value in METADATA.items() if key != "notes"}


def test_one_document_is_in_memory_at_a_time(tmp_path, monkeypatch):
    documents = [document(length, seed=length) for length in (3, 400, 2)]
    write_shard(tmp_path / "a", documents, INFO)
    sizes = []
    read = Stored.read

    def recorded(stored):
        if stored.name == "hidden_states":
            sizes.append(stored.nbytes)
        return read(stored)

    monkeypatch.setattr(Stored, "read", recorded)
    reader = read_documents(tmp_path / "a")
    for count, text in enumerate(documents, 1):
        assert next(reader).states.tobytes() == text.states.tobytes()
        assert sizes == [text.states.nbytes for text in documents[:count]]


def test_shapes_that_do_not_fit_the_header(tmp_path):
    path = damaged(tmp_path / "a", {"boundaries": "[2, 4, 8]"})
    with refused(
        f"{path}: hidden_states has shape [5, 4, 8], expected [tokens, 3, width], a state for each "
        "of the boundaries 2, 4, 8"
    ):
        read_info(path)
    damaged(path, hidden_states=np.ones((5, 8), np.float32))
    with refused(f"{path}: hidden_states has shape [5, 8], expected [tokens, states, width]"):
        read_info(path)
    damaged(path, input_ids=np.ones(5, np.float32))
    with refused(f"{path}: input_ids has type float32, expected integers"):
        read_info(path)


def test_the_header_says_it_all(tmp_path):
    write_shard(tmp_path / "a", [document(3, ml_dtypes.bfloat16), document(2)], INFO)
    (file,) = open_shards([tmp_path / "a"]).files
    expected = ShardFile(tmp_path / "a", "eagle3-jax", 2, 4, 8, np.dtype(np.float32), 6, INFO)
    assert file == expected

"""A series of shards: what is done, what is another's, and what is never touched."""

import re

import numpy as np
import pytest

from converters.series import digest_of, finished, made_of, shard_path
from converters.shards import ShardInfo, write_shard
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

SETTINGS = {"target": "tiny", "boundaries": [1, 2]}
TEXTS = [(np.arange(size), np.arange(size) > 1) for size in (3, 4)]
SERIES = [made_of(SETTINGS, [text]) for text in TEXTS]


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def write(file, made=None):
    document = Document(
        np.arange(3, dtype=np.int32), np.ones(3, bool), np.zeros((3, 2, 4), np.float32), None
    )
    notes = {} if made is None else made.notes()
    write_shard(file, [document], ShardInfo((1, 2), "pre_norm", "tiny", notes))
    return file


def test_a_digest_is_of_all_that_counts():
    ids, answer = TEXTS[0]
    made = [
        made_of(SETTINGS, TEXTS),
        made_of(SETTINGS, TEXTS[::-1]),
        made_of(SETTINGS, TEXTS[:1]),
        made_of(SETTINGS | {"target": "other"}, TEXTS),
        made_of(SETTINGS, [(ids, ~answer), TEXTS[1]]),
        made_of(SETTINGS, [(ids + 1, answer), TEXTS[1]]),
        # The same tokens one after the other, divided otherwise.
        made_of(SETTINGS, [(np.concatenate([ids, TEXTS[1][0]]), np.ones(7, bool))]),
    ]
    assert len({one.digest for one in made}) == len(made)
    same = [(ids.astype(np.int64), answer.astype(int)) for ids, answer in TEXTS]
    assert made_of(dict(reversed(SETTINGS.items())), same).digest == made[0].digest


def test_a_digest_of_tensors():
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = [
        digest_of({"a": tensor}),
        digest_of({"b": tensor}),
        digest_of({"a": tensor + 1}),
        digest_of({"a": tensor.T}),
        digest_of({"a": tensor.reshape(3, 2)}),
        digest_of({"a": tensor.view(np.int32)}),
        digest_of({"a": tensor}, "config"),
    ]
    assert len(set(found)) == len(found)
    assert digest_of({"a": tensor.copy(order="F"), "b": tensor}) == digest_of(
        {"b": tensor, "a": tensor}
    )


def test_shards_of_the_series_are_done_and_others_refused(tmp_path):
    directory = tmp_path / "out"
    assert finished(directory, SERIES) == set()
    write(shard_path(directory, 1), SERIES[1])
    (directory / ".00000.safetensors.1234").write_text("left by a run that was killed")
    (directory / ".00000.safetensors").write_text("the same")
    (directory / "README").write_text("not a shard")
    assert finished(directory, SERIES) == {1}
    file = write(shard_path(directory, 0), SERIES[1])
    removes = "; --overwrite removes such shards"
    with refused(f"{file}: was made from other texts, expected those given{removes}"):
        finished(directory, SERIES)
    write(file, made_of(SETTINGS | {"boundaries": [0, 2]}, TEXTS[:1]))
    with refused(f"{file}: was made with boundaries [0, 2], expected [1, 2]{removes}"):
        finished(directory, SERIES)
    write(file, SERIES[0])
    surplus = shard_path(directory, 1)
    with refused(
        f"{surplus}: found a shard too many, expected no more than these texts fill{removes}"
    ):
        finished(directory, SERIES[:1])


def test_overwrite_removes_shards_of_other_captures_and_keeps_those_of_this(tmp_path):
    kept, stale = write(shard_path(tmp_path, 0), SERIES[0]), shard_path(tmp_path, 1)
    surplus = write(shard_path(tmp_path, 2), SERIES[1])
    write(stale, SERIES[0])
    assert finished(tmp_path, SERIES, overwrite=True) == {0}
    assert kept.exists()
    assert not stale.exists()
    assert not surplus.exists()


@pytest.mark.parametrize("name", ["00000.safetensors", "a.safetensors", "deep/00000.safetensors"])
def test_what_no_capture_wrote_is_never_removed(tmp_path, name):
    other = write(tmp_path / name, None if name[0] == "0" else SERIES[0])
    stale = write(shard_path(tmp_path, 1), SERIES[0])
    with refused(f"{other}: not written by capture, expected its shards alone here"):
        finished(tmp_path, SERIES, overwrite=True)
    assert other.exists()
    assert stale.exists()


def test_a_file_where_the_directory_should_be(tmp_path):
    file = tmp_path / "out"
    file.write_text("")
    with refused(f"{file}: found a file, expected a directory for the shards"):
        finished(file, SERIES)

"""A draft vocabulary from a file of its own, in every form that trainers leave behind."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.drafts import Reading, open_draft
from converters.vocab_files import read_mapping
from eagle3_jax.errors import InputError
from tests.raw_drafts import IDS, MASK, OFFSETS, write_raw
from tests.torch_files import tensor, write_torch

D2T = OFFSETS.astype(np.int64)
EXPECTED = "expected d2t (int64 offsets), t2d (a bool mask) or both"


def write_json(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def write_pt(path, value):
    if isinstance(value, np.ndarray):
        value = tensor(value)
    else:
        value = {k: tensor(v) if isinstance(v, np.ndarray) else v for k, v in value.items()}
    write_torch(path, value)


WRITERS = {
    ".npy": lambda path, value: np.save(path, value),
    ".NPY": lambda path, value: written(path.with_suffix(".npy"), value).rename(path),
    ".json": write_json,
    ".safetensors": lambda path, value: save_file(value, path),
    ".pt": write_pt,
    ".txt": write_json,
}


def written(path, value):
    WRITERS[path.suffix](path, value)
    return path


def vocabulary(tmp_path, mapping, **keys):
    lost = write_raw(tmp_path / "draft", keys, {"d2t": None, "t2d": None})
    return open_draft(lost, Reading(mapping=read_mapping(mapping))).vocab.target_ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("d2t.npy", D2T),
        ("d2t.npy", D2T.astype(np.int32)),
        ("t2d.npy", MASK),
        ("t2d.npy", MASK.astype(np.uint8)),
        ("D2T.NPY", D2T),
        ("ids.npy", IDS.astype(np.int64)),
        ("map.safetensors", {"d2t": D2T, "t2d": MASK}),
        ("map.safetensors", {"t2d": MASK}),
        ("map.safetensors", {"target_ids": IDS.astype(np.int64)}),
        ("map.pt", {"d2t": D2T, "t2d": MASK}),
        ("map.pt", D2T),
        ("ids.json", IDS.tolist()),
        ("ids.json", {"target_ids": IDS.tolist()}),
        ("ids.json", {"ids": IDS.tolist(), "t2d": MASK.tolist()}),
        ("ids.json", {"d2t": D2T.tolist()}),
        ("ids.json", {"t2d": MASK.tolist()}),
    ],
)
def test_every_form_gives_the_same_ids(tmp_path, name, value):
    np.testing.assert_array_equal(vocabulary(tmp_path, written(tmp_path / name, value)), IDS)


def test_ids_in_a_list_are_ids_even_where_they_could_be_offsets(tmp_path):
    low = list(range(0, 24, 2))  # as offsets they would all lie inside the vocabulary, too
    np.testing.assert_array_equal(
        vocabulary(tmp_path, written(tmp_path / "ids.json", low), vocab_size=64), low
    )


def test_the_files_own_map_makes_way_and_that_is_told(tmp_path):
    draft = write_raw(tmp_path / "draft")
    other = written(tmp_path / "ids.json", [*range(11), 31])
    opened = open_draft(draft, Reading(mapping=read_mapping(other)))
    np.testing.assert_array_equal(opened.vocab.target_ids, [*range(11), 31])
    assert opened.sources["vocabulary"] == f"--vocab-mapping {other}"
    assert f"d2t and t2d of the file make way for --vocab-mapping {other}" in opened.notes


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("d2t.npy", D2T.astype(np.float32), "d2t has type float32 and shape [12], expected int64 "
         "or int32 and one axis"),
        ("d2t.npy", D2T[None], "d2t has type int64 and shape [1, 12], expected int64 or int32 and "
         "one axis"),
        ("d2t.npy", np.int64(3), "d2t has type int64 and shape [], expected int64 or int32 and one "
         "axis"),
        ("map.safetensors", {"t2d": MASK * np.uint8(2)}, "t2d holds 2, expected zeros and ones"),
        ("map.safetensors", {"d2t": D2T, "fc.weight": D2T}, f"found fc.weight, {EXPECTED}"),
        ("map.safetensors", {}, f"found nothing, {EXPECTED}"),
        ("map.pt", {"step": 3}, f"found no dict of tensors, {EXPECTED}"),
        ("ids.json", {}, f"found nothing, {EXPECTED}"),
        ("ids.json", "3", "found a JSON int, expected a list of ids"),
        ("ids.json", [1.0, 2.0], "target_ids is no list of ints, expected one"),
        ("ids.json", [True, False], "target_ids is no list of ints, expected one"),
        ("ids.json", {"t2d": [0, 1]}, "t2d is no list of bools, expected one"),
        ("ids.json", [10**30], "target_ids holds a number past 64 bits, expected ids"),
        ("ids.json", {"ids": [1], "d2t": [1]}, "found ids and d2t, expected one of them"),
        ("ids.json", {"ids": [1], "target_ids": [2]}, "found target_ids and ids, expected one of "
         "them"),
        ("ids.txt", "3", "found a file .txt, expected .pt, .npy, .safetensors or .json"),
    ],
)  # fmt: skip
def test_files_that_hold_no_map(tmp_path, name, value, message):
    path = written(tmp_path / name, value)
    with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}$"):
        read_mapping(path)


@pytest.mark.parametrize("text", ["", "[1,", "[" * 100_000, "[" + "9" * 5000 + "]"])
def test_text_that_is_no_json(tmp_path, text):
    path = written(tmp_path / "ids.json", text)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: found text that is not JSON"):
        read_mapping(path)


def test_files_that_are_none(tmp_path):
    np.savez(tmp_path / "d2t.npz", d2t=D2T)
    archive = (tmp_path / "d2t.npz").rename(tmp_path / "d2t.npy")
    for path, message in (
        (tmp_path / "a.npy", "no such file, expected a vocabulary mapping"),
        (tmp_path, "found a directory, expected a vocabulary mapping file"),
        (archive, f"found an archive of arrays (.npz), {EXPECTED}"),
    ):
        with pytest.raises(InputError, match=f"^{re.escape(f'{path}: {message}')}$"):
            read_mapping(path)
    for broken in (b"", b"x", archive.read_bytes()[:-40]):
        archive.write_bytes(broken)
        with pytest.raises(InputError, match=f"^{re.escape(str(archive))}: found no NumPy array"):
            read_mapping(archive)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "the vocabulary map has 0 ids, expected 12, the rows of the head"),
        (list(range(13)), "the vocabulary map has 13 ids, expected 12, the rows of the head"),
        (list(range(30, 42)), "d2t means ids 30 to 41, expected 0 to 31"),
        ([-1, *range(11)], "d2t means ids -1 to 10, expected 0 to 31"),
        ([5] * 12, "draft vocabulary of 12 holds 1 distinct ids"),
        ({"d2t": D2T.tolist(), "t2d": (~MASK).tolist()},
         "d2t means 12 ids that are not the 20 that t2d marks, expected the same ids"),
    ],
)  # fmt: skip
def test_maps_that_do_not_fit_name_the_mapping_file(tmp_path, value, message):
    path = written(tmp_path / "ids.json", value)
    with pytest.raises(InputError, match=f"^{re.escape(f'--vocab-mapping {path}: {message}')}$"):
        vocabulary(tmp_path, path)

"""Every framework's shards: the same documents come back from each, whatever else does not."""

import builtins
import gzip
import json
import re

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from safetensors.numpy import load_file, save_file

from converters.shards import LAYOUTS, check_document, open_shards, read_documents, read_info
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document
from tests.shard_samples import (
    AUX,
    DTYPES,
    VOCAB,
    WIDTH,
    WRITERS,
    aux_of,
    documents,
    ids_of,
    last_of,
    mask_of,
    torch_value,
    write_modelopt,
    write_nemo,
    write_specforge,
    write_specforge_gzip,
    write_speculators,
    write_torchspec,
    write_v1,
    write_vllm,
)
from tests.torch_files import write_torch

ENDINGS = "files that end in .safetensors, .ckpt, .pt, .pth, or those with .gz"


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def read(*paths, **hints):
    return [
        text for file in open_shards(list(paths), **hints).files for text in read_documents(file)
    ]


def same(found: list[Document], expected: list[Document]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        for name in Document._fields:
            here, there = getattr(ours, name), getattr(theirs, name)
            if there is None:
                assert here is None, name
                continue
            assert (here.dtype, here.shape) == (there.dtype, there.shape), name
            assert here.tobytes() == there.tobytes(), name


def sample(text=None, **changes):
    """A document as SpecForge writes it, with changes; `None` leaves a key out."""
    text = documents()[0] if text is None else text
    content = {
        "input_ids": ids_of(text),
        "loss_mask": mask_of(text),
        "aux_hidden_state": aux_of(text)[None],
        "hidden_state": last_of(text)[None],
    }
    return torch_value({k: v for k, v in (content | changes).items() if v is not None})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WRITERS)
def test_the_same_documents_from_every_layout(tmp_path, name, dtype):
    written = WRITERS[name](tmp_path, documents(dtype))
    shards = open_shards([written.path], num_aux=AUX, target_width=WIDTH)
    same([text for file in shards.files for text in read_documents(file)], written.documents)
    told = (written.layout, written.boundaries, written.last_state, written.target)
    info = shards.info
    assert (info.layout, info.boundaries, info.last_state, info.target) == told
    embeddings = written.documents[0].embeddings
    for file in shards.files:
        assert (file.layout, file.width, file.dtype) == (written.layout, WIDTH, np.dtype(dtype))
        assert file.states == written.documents[0].states.shape[1]
        assert file.embedding_width == (None if embeddings is None else embeddings.shape[1])
        assert len(list(read_documents(file))) == file.documents


def test_every_layout_has_a_sample(tmp_path):
    roots = {name: tmp_path / name for name in WRITERS}
    for root in roots.values():
        root.mkdir()
    written = {WRITERS[name](root, documents()).layout for name, root in roots.items()}
    assert written == set(LAYOUTS)


@pytest.mark.parametrize("name", WRITERS)
def test_layouts_are_told_without_a_draft(tmp_path, name):
    written = WRITERS[name](tmp_path, documents())
    same(read(written.path), written.documents)


@pytest.mark.parametrize("name", WRITERS)
def test_the_user_says_the_layout(tmp_path, name):
    written = WRITERS[name](tmp_path, documents())
    same(read(written.path, layout=written.layout), written.documents)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, 9).filter(lambda n: n != AUX + 1), min_size=1, max_size=4))
def test_documents_of_any_length(tmp_path_factory, lengths):
    texts = documents(lengths=lengths)
    for name, write in WRITERS.items():
        written = write(tmp_path_factory.mktemp("any"), texts)
        try:
            same(read(written.path), written.documents)
        except BaseException as error:
            error.add_note(name)
            raise


# --- What the files leave open ---


def test_what_no_file_says_stands_in_the_notes(tmp_path):
    unsaid = "the files do not say whether the last state is before or after the final norm"
    no_mask = "no loss mask is stored: every token counts as one of the answer"
    roots = iter([tmp_path / str(number) for number in range(9)])

    def notes(write, **more):
        root = next(roots)
        root.mkdir()
        return open_shards([write(root, documents(), **more).path]).info.notes

    assert notes(write_specforge) == {}
    assert notes(write_torchspec) == {"last_state": unsaid}
    assert notes(write_vllm)["loss_mask"] == no_mask
    assert notes(write_modelopt)["last_state"].startswith(unsaid)
    assert notes(write_modelopt, hidden_states_prenorm=False).keys() == {"boundaries"}
    assert "loss_mask" not in notes(write_speculators)
    assert "0 stands for it" in notes(write_nemo)["input_ids"]


def test_a_dump_without_a_loss_mask_counts_every_token(tmp_path):
    text = documents()[0]
    content = {
        "input_ids": ids_of(text),
        "aux_hidden_states": aux_of(text),
        "hidden_states": last_of(text),
        "conversation_id": "a",
    }
    write_torch(tmp_path / "a.pt", torch_value(content))
    same(read(tmp_path), [text._replace(answer=np.ones(len(text.ids), bool))])
    assert "every token counts" in read_info(tmp_path / "a.pt").notes["loss_mask"]


def test_a_flag_says_where_the_last_state_is_from(tmp_path):
    assert read_info(write_flag(tmp_path, True)).last_state == "pre_norm"
    assert read_info(write_flag(tmp_path, False)).last_state == "post_norm"
    path = write_flag(tmp_path, "yes")
    with refused(f"{path}: hidden_states_prenorm is 'yes', expected True or False"):
        read_info(path)


def write_flag(root, flag):
    write_modelopt(root, documents()[:1], hidden_states_prenorm=flag)
    return root / "0.pt"


# --- Keys that collide ---


def test_a_list_of_states_may_be_of_two_layouts(tmp_path):
    texts = documents()
    write_v1(tmp_path, texts)
    (tmp_path / "data_config.json").unlink()
    path = tmp_path / "data_0.pt"
    message = (
        f"{path}: found hidden_states, input_ids, loss_mask, which layouts speculators-v1 and "
        "states have, expected --layout with one of them"
    )
    for hints in ({}, {"num_aux": AUX}):
        with refused(message):
            open_shards([tmp_path], **hints)
    other = open_shards([tmp_path], num_aux=AUX - 1)  # not A + 1 states: nobody's v1
    assert (other.info.layout, other.info.last_state) == ("states", None)
    for name in ("speculators-v1", "states"):
        same(read(tmp_path, layout=name), texts)
    assert open_shards([tmp_path], layout="speculators-v1").info.last_state == "pre_norm"


def test_widths_decide_between_layouts_that_share_keys(tmp_path):
    """SpecForge's `hidden_state` is the last state, speculators' the aux states."""
    text = documents()[0]
    path = write_torch(tmp_path / "a.ckpt", sample(target=last_of(text)))
    with refused(
        f"{path}: found aux_hidden_state, hidden_state, input_ids, loss_mask, target, which "
        "layouts specforge and speculators-v0 have, expected --layout with one of them"
    ):
        open_shards([path])
    assert open_shards([path], num_aux=AUX).info.layout == "specforge"
    assert open_shards([path], num_aux=1).info.layout == "speculators-v0"
    wide = sample(target=last_of(text), hidden_state=aux_of(text), aux_hidden_state=last_of(text))
    assert open_shards([write_torch(path, wide)]).info.layout == "speculators-v0"
    wrong = sample(target=last_of(text)[:, :5])
    assert open_shards([write_torch(path, wrong)]).info.layout == "specforge"
    with refused(
        f"{path}: fits no layout that has its keys; specforge: hidden_state has states of width 8, "
        "expected 5, the width of the draft's target; speculators-v0: hidden_state has width 8 "
        "and target 5, expected a multiple of it: aux states side by side, and one last state"
    ):
        open_shards([path], target_width=5)


def test_names_that_are_swapped(tmp_path):
    text = documents()[0]
    swapped = sample(hidden_state=aux_of(text), aux_hidden_state=last_of(text))
    path = write_torch(tmp_path / "a.ckpt", swapped)
    with refused(
        f"{path}: aux_hidden_state has width 8 and hidden_state 24, expected a multiple of it: aux "
        "states side by side, and one last state"
    ):
        open_shards([path])


def test_states_of_another_width_than_the_draft_reads(tmp_path):
    for name, key in (
        ("specforge", "hidden_state"),
        ("speculators-v1", "hidden_states"),
        ("vllm", "hidden_states"),
        ("nemo", "aux_hidden_states"),
        ("eagle3-jax", "hidden_states"),
    ):
        (root := tmp_path / name).mkdir()
        written = WRITERS[name](root, documents())
        with pytest.raises(
            InputError,
            match=f": {key} has states of width 8, expected 12, the width of the draft's target$",
        ):
            open_shards([written.path], target_width=12)


def test_keys_that_no_layout_has(tmp_path):
    path = write_torch(tmp_path / "a.ckpt", sample(hidden_state=None))
    start = f"{path}: found aux_hidden_state, input_ids, loss_mask, which no layout of shards has"
    with pytest.raises(InputError, match=f"^{re.escape(start)}") as error:
        open_shards([path])
    for layout in LAYOUTS.values():
        assert f"{layout.name} ({', '.join(sorted(layout.keys))})" in str(error.value)
    with refused(
        f"{path}: found aux_hidden_state, input_ids, loss_mask, expected aux_hidden_state, "
        "hidden_state, input_ids, loss_mask of layout specforge"
    ):
        open_shards([path], layout="specforge")
    with refused(f"--layout is 'forge', expected one of {', '.join(LAYOUTS)}"):
        open_shards([path], layout="forge")


@pytest.mark.parametrize("value", [[np.ones((2, 3))], np.ones((4, 2, 3))])
def test_states_without_their_tokens(tmp_path, value):
    path = write_torch(tmp_path / "a.pt", torch_value(value))
    kind = "list" if isinstance(value, list) else "tensor"
    with refused(
        f"{path}: found a {kind}, expected a dict: states without their tokens (input_ids) are no "
        "shard"
    ):
        open_shards([path])


# --- Which files ---


def test_mixed_layouts(tmp_path):
    write_specforge(tmp_path, documents())
    (tmp_path / "z").mkdir()
    write_modelopt(tmp_path / "z", documents())
    with refused(
        f"{tmp_path}/z/0.pt: found layout modelopt, expected specforge as in "
        f"{tmp_path}/rows_0-2000/data_0.ckpt"
    ):
        open_shards([tmp_path])


def test_captures_that_differ(tmp_path):
    write_torchspec(tmp_path, documents())
    four = documents()[0]
    path = tmp_path / "data_1.ckpt"

    def error(states):
        content = {
            "input_ids": ids_of(four),
            "loss_mask": mask_of(four),
            "aux_hidden_states": states[:, :-1].reshape(len(states), -1),
            "hidden_states": states[:, -1],
        }
        write_torch(path, torch_value(content))
        with pytest.raises(InputError) as error:
            open_shards([tmp_path])
        return str(error.value)

    first = f"4 states of width 8 (last state unsaid, float32) as in {tmp_path}/data_0.ckpt"
    assert error(four.states[:, 1:]) == (
        f"{path}: stores 3 states of width 8 (last state unsaid, float32), expected {first}"
    )
    assert error(four.states.astype(np.float16)) == (
        f"{path}: stores 4 states of width 8 (last state unsaid, float16), expected {first}"
    )


def test_folders_patterns_and_files(tmp_path):
    texts = documents()
    (tmp_path / "a").mkdir()
    write_specforge(tmp_path / "a", texts)
    root = tmp_path / "a/rows_0-2000"
    for paths in (
        [tmp_path],
        [tmp_path / "*"],
        [tmp_path / "**/*.ckpt"],
        [root / "data_?.ckpt"],
        [root / "data_[0-2].ckpt"],
        [root / "data_0.ckpt", root],
        [root / "data_0.ckpt", root / "*.ckpt", tmp_path],
        [root / "../rows_0-2000/data_0.ckpt", root],
        [tmp_path / "a/*"],
        [tmp_path / "a/rows*", root / "data_1.ckpt"],
    ):
        same(read(*paths), texts)
    same(read(root / "data_2.ckpt", root / "data_0.ckpt"), [texts[2], texts[0]])
    for pattern in ("*.nothing", "a/vocab_mapping/*"):
        with refused(f"{tmp_path / pattern}: matches no shard, expected {ENDINGS}"):
            open_shards([tmp_path / pattern])
    with refused("found no path of shards, expected files or directories of them"):
        open_shards([])


def test_a_name_with_brackets_is_a_name_first(tmp_path):
    path = write_torch(tmp_path / "data[0].ckpt", sample())
    same(read(path), documents()[:1])


# --- Broken files ---


def test_files_that_are_no_shards(tmp_path):
    path = tmp_path / "a.ckpt"
    torch_file = "expected a torch file (torch.save, 1.6 or later)"
    whole = write_torch(path, sample()).read_bytes()
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    for content, told in (
        (b"", f"found 0 bytes of something else, {torch_file}"),
        (whole[:-30], None),
        (pointer, "found a Git LFS pointer, expected a torch file: the content was never "
         "downloaded (git lfs pull)"),
        (b"\x28\xb5\x2f\xfd....", "found zstd, expected the file unpacked (zstd -d)"),
        (gzip.compress(whole)[:-9], None),
        (gzip.compress(b"text"), f"found 4 bytes of something else, {torch_file}"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"^{re.escape(str(path))}: ") as error:
            open_shards([path])
        assert "\n" not in str(error.value)
        assert told is None or str(error.value) == f"{path}: {told}"


def test_a_pickle_that_runs_code(tmp_path):
    path = write_torch(tmp_path / "a.pt", None, pickled=b"cos\nsystem\n(S'true'\ntR.")
    with refused(f"{path}: found code, os.system, in the pickle, expected tensors only"):
        open_shards([path])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": np.arange(4)}, "input_ids has 4, loss_mask has 5, aux_hidden_state has 5, "
         "hidden_state has 5 tokens, expected one length"),
        ({"loss_mask": np.ones(6)}, "input_ids has 5, loss_mask has 6, aux_hidden_state has 5, "
         "hidden_state has 5 tokens, expected one length"),
        ({"hidden_state": np.ones((1, 4, 8), np.float32)}, "input_ids has 5, loss_mask has 5, "
         "aux_hidden_state has 5, hidden_state has 4 tokens, expected one length"),
        ({"input_ids": np.ones(5, np.float32)}, "input_ids has type float32, expected integers"),
        ({"input_ids": np.ones((2, 5), np.int64)}, "input_ids has shape [2, 5], expected [T] or "
         "[1, T]"),
        ({"aux_hidden_state": np.ones((2, 5, 24), np.float32)}, "aux_hidden_state has shape "
         "[2, 5, 24], expected [T, width] or [1, T, width]"),
        ({"aux_hidden_state": np.ones((5, 20), np.float32)}, "aux_hidden_state has width 20 and "
         "hidden_state 8, expected a multiple of it: aux states side by side, and one last state"),
        ({"aux_hidden_state": np.ones((5, 0), np.float32)}, "aux_hidden_state has width 0 and "
         "hidden_state 8, expected a multiple of it: aux states side by side, and one last state"),
        ({"hidden_state": np.ones((5, 8), np.float16)}, "hidden_state is 8 wide (float16), "
         "expected 8 (float32) as aux_hidden_state"),
        ({"hidden_state": np.ones((5, 8), int), "aux_hidden_state": np.ones((5, 24), int)},
         "aux_hidden_state has type int64 and states of width 8, expected bfloat16, float16 or "
         "float32, and 1 or more"),
        ({"hidden_state": [1.0]}, "hidden_state is a list, expected a tensor"),
        ({"loss_mask": np.ones(5, np.complex64)}, "loss_mask has type complex64, expected a mask "
         "of 0 and 1"),
    ],
)  # fmt: skip
def test_tensors_that_are_not_what_they_should_be(tmp_path, changes, message):
    path = write_torch(tmp_path / "a.ckpt", sample(**changes))
    with refused(f"{path}: {message}"):
        open_shards([path])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss_mask": np.array([0, 1, 2, 1, 0])}, "the loss mask holds 2, expected 0 and 1"),
        ({"loss_mask": np.array([0, 1, 0.5, 1, 0])}, "the loss mask holds 0.5, expected 0 and 1"),
        ({"input_ids": np.array([0, 1, 2**40, 3, 4])}, f"token ids are 0 to {2**40}, expected "
         "32-bit integers"),
    ],
)  # fmt: skip
def test_values_that_are_not_what_they_should_be(tmp_path, changes, message):
    path = write_torch(tmp_path / "a.ckpt", sample(**changes))
    (file,) = open_shards([path]).files
    with refused(f"{path}: {message}"):
        list(read_documents(file))


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "hidden_states is list [], expected a list of states"),
        ("x", "hidden_states is str 'x', expected a list of states"),
        ([np.ones((5, 8), np.float32), 3], "hidden_states.1 is a int, expected a tensor"),
        ([np.ones((5, 8), np.float32), np.ones((5, 4), np.float32)],
         "hidden_states.1 is 4 wide (float32), expected 8 (float32) as hidden_states.0"),
        ([np.ones(5, np.float32)], "hidden_states.0 has shape [5], expected [T, width] or "
         "[1, T, width]"),
        (np.ones((5, 5, 8), np.float32), "hidden_states has shape [5, 5, 8], expected "
         "[states, 5, width] for 5 tokens, with as many states as tokens only in a list"),
        (np.ones((5, 8), np.float32), "hidden_states has shape [5, 8], expected "
         "[states, 5, width] for 5 tokens, with as many states as tokens only in a list"),
        (np.ones((3, 4, 8), np.float32), "hidden_states has shape [3, 4, 8], expected "
         "[states, 5, width] for 5 tokens, with as many states as tokens only in a list"),
    ],
)  # fmt: skip
def test_lists_that_are_not_what_they_should_be(tmp_path, states, message):
    content = {"input_ids": np.arange(5), "hidden_states": states}
    path = write_torch(tmp_path / "a.pt", torch_value(content))
    with refused(f"{path}: {message}"):
        open_shards([path], layout="states")


def test_gzip_files_are_held_to_the_first(tmp_path):
    write_specforge_gzip(tmp_path, documents())
    path = tmp_path / "rows_0-2000/data_1.ckpt.gz"
    odd = documents(np.float16)[1]
    path.write_bytes(gzip.compress(write_torch(tmp_path / "a", sample(odd)).read_bytes()))
    (tmp_path / "a").unlink()
    files = open_shards([tmp_path]).files
    with refused(
        f"{path}: stores 1 documents of 4 x 8 (float16), expected 1 documents of 4 x 8 (float32): "
        "it changed, or differs from the file in gzip that was opened for all"
    ):
        list(read_documents(files[1]))
    same(list(read_documents(files[2])), documents()[2:])


def test_files_beside_gzip_are_opened(tmp_path):
    write_specforge_gzip(tmp_path, documents())
    path = write_torch(tmp_path / "z.ckpt", sample(documents(np.float16)[0]))
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: stores 4 states of width 8"):
        open_shards([tmp_path])


# --- speculators' data set ---


def test_rows_are_joined_by_number(tmp_path):
    texts = documents(lengths=(5, 7, 4, 6))
    write_speculators(tmp_path, texts)
    (tmp_path / "hidden_states/hs_0.safetensors").unlink()  # rows without states are no fault
    same(read(tmp_path), texts[1:])
    same(read(tmp_path / "hidden_states/hs_3.safetensors"), texts[3:])
    everything = read(tmp_path, layout="vllm")
    assert all(text.answer.all() for text in everything)


def test_rows_that_do_not_fit(tmp_path):
    write_speculators(tmp_path, documents())
    states = tmp_path / "hidden_states"
    (states / "hs_1.safetensors").rename(states / "hs_9.safetensors")
    with refused(f"{tmp_path}: has 3 rows, expected row 9 for {states / 'hs_9.safetensors'}"):
        read(states / "hs_9.safetensors")
    (states / "hs_9.safetensors").rename(states / "hs_0.safetensors")
    with refused(
        f"{states / 'hs_0.safetensors'}: token_ids are not those of row 0 of {tmp_path}, expected "
        "the same (7 and 5 of them)"
    ):
        read(states / "hs_0.safetensors")


def test_data_sets_that_are_broken(tmp_path):
    write_speculators(tmp_path, documents())
    state, arrow = tmp_path / "state.json", tmp_path / "data-00000.arrow"
    whole = arrow.read_bytes()
    for content in (whole[:100], b"text", b""):
        arrow.write_bytes(content)
        with pytest.raises(InputError, match=f"^{re.escape(str(arrow))}: found no Arrow stream"):
            read(tmp_path)
    arrow.unlink()
    with pytest.raises(InputError, match=f"^{re.escape(str(arrow))}: found no Arrow stream"):
        read(tmp_path)
    state.write_text(json.dumps({"_data_files": []}))
    with refused(f"{state}: _data_files is [], expected the files of an Arrow data set"):
        read(tmp_path)
    state.unlink()
    assert open_shards([tmp_path]).info.layout == "vllm"
    path = tmp_path / "hidden_states/hs_0.safetensors"
    with refused(
        f"{path}: found no data set (state.json) near a file hs_ROW.safetensors, expected one: it "
        "holds the loss mask (--layout vllm reads the states without)"
    ):
        open_shards([tmp_path], layout="speculators")


def test_arrow_is_an_extra(tmp_path, monkeypatch):
    write_speculators(tmp_path, documents())
    real = builtins.__import__

    def without(name, *rest, **more):
        if name == "pyarrow":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with refused(
        f"{tmp_path}/hidden_states/hs_0.safetensors: the loss mask is in an Arrow data set, "
        "expected pyarrow to read it (pip install 'eagle3-jax[arrow]')"
    ):
        open_shards([tmp_path])


# --- NeMo's cache ---


def test_shifted_columns_pair_the_same_state_with_the_same_token(tmp_path):
    """Written by hand: x = 5 6 7 8, of which 7 and 8 are the answer."""
    states = np.arange(6 * 24, dtype=np.float32).reshape(1, 6, 24)
    tensors = {
        "input_ids": np.array([[6, 7, 8, 31, 31, 0]]),
        "loss_mask": np.array([[0, 1, 1, 0, 0, 0]]),
        "attention_mask": np.array([[1, 1, 1, 1, 0, 0]]),
        "aux_hidden_states": states,
        "position_mask": np.ones((1, 6, 1), bool),
        "target_probs": np.ones((1, 6, 3), np.float32),
    }
    save_file(tensors, tmp_path / "shard-000000.safetensors")
    (text,) = read(tmp_path, target_width=8)
    assert text.ids.tolist() == [0, 6, 7, 8]
    assert text.answer.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(text.states, states[0, :4].reshape(4, 3, 8))
    same(read(tmp_path, num_aux=3), [text])
    path = tmp_path / "shard-000000.safetensors"
    with refused(
        f"{path}: aux_hidden_states has width 24, and no manifest.json beside it says of how many "
        "states, expected one"
    ):
        open_shards([tmp_path])
    with refused(
        f"{path}: aux_hidden_states has width 24, expected a multiple of 5, by the aux states of "
        "the draft"
    ):
        open_shards([tmp_path], num_aux=5)


def test_caches_that_are_broken(tmp_path):
    write_nemo(tmp_path, documents())
    manifest, shard = tmp_path / "manifest.json", tmp_path / "shard-000000.safetensors"
    good = json.loads(manifest.read_text())
    for changes, message in (
        ({"format_version": 1}, "format_version is 1, expected 2"),
        ({"aux_layer_ids": None}, "aux_layer_ids is None, expected a list of integers"),
        ({"aux_layer_ids": [3, 1]}, "aux_layer_ids is [3, 1]: layer ids [3, 1] do not ascend, "
         "expected each higher than the last"),
    ):  # fmt: skip
        manifest.write_text(json.dumps(good | changes))
        with refused(f"{manifest}: {message}"):
            open_shards([tmp_path])
    manifest.write_text(json.dumps(good))
    tensors = load_file(shard)
    gaps = tensors["attention_mask"].copy()
    gaps[0, :2] = (0, 1)
    save_file(tensors | {"attention_mask": gaps}, shard)
    with refused(
        f"{shard}: attention_mask of document 0 has gaps, expected documents one by one, padded "
        "on the right"
    ):
        read(shard)
    save_file(tensors | {"loss_mask": tensors["loss_mask"][:, :3]}, shard)
    with refused(
        f"{shard}: loss_mask has shape [2, 3], input_ids [2, 8], expected [documents, padded "
        "length], and one axis more for states"
    ):
        open_shards([shard])
    foreign = tensors["input_ids"].copy()
    foreign[0, 1] = VOCAB
    save_file(tensors | {"input_ids": foreign}, shard)
    with pytest.raises(InputError, match=r"holds embeddings of ids 0 to 31, expected of 0 to 32"):
        read(shard)
    save_file({"other": np.ones(2)}, tmp_path / "target_embeddings.safetensors")
    with refused(
        f"{tmp_path}/target_embeddings.safetensors: found no matrix 'weight', expected the token "
        "embeddings"
    ):
        open_shards([tmp_path])


# --- What speculators' and our own sidecars say ---


def test_data_config_that_is_broken(tmp_path):
    write_v1(tmp_path, documents())
    config = tmp_path / "data_config.json"
    for states, message in (
        ({"layer_ids": "1,2"}, "layer_ids is '1,2', expected a list of integers"),
        (None, "layer_ids is None, expected a list of integers"),
        ({"layer_ids": [1, 3, 4]}, f"layer_ids is [1, 3, 4], expected 4 as {tmp_path}/data_0.pt "
         "stores"),
        ({"layer_ids": [1, 3, 3, 7]}, "layer_ids is [1, 3, 3, 7]: layer ids [1, 3, 3, 7] do not "
         "ascend, expected each higher than the last"),
    ):  # fmt: skip
        config.write_text(json.dumps({"hidden_states": states}))
        with refused(f"{config}: {message}"):
            open_shards([tmp_path])


# --- One document ---


def test_what_is_wrong_with_a_document():
    text = documents(ml_dtypes.bfloat16)[1]

    def with_states(*changes):
        states = text.states.copy()
        for token, slot, value in changes:
            states[token, slot, 0] = value
        return check_document(text._replace(states=states))

    assert check_document(text) is None
    assert check_document(text, VOCAB) is None
    assert check_document(text._replace(ids=text.ids[:-1])) == (
        "has arrays of [6, 7, 7] rows, expected one length"
    )
    empty = Document(*(None if array is None else array[:0] for array in text))
    assert check_document(empty) == "holds no token, expected some"
    assert check_document(text._replace(ids=text.ids + 0.5)) == (
        "holds token ids of type float64, expected integers"
    )
    assert check_document(text._replace(states=text.states[:, 0])) == (
        "holds states of shape [7, 8], expected [tokens, slots, width]"
    )
    top = int(text.ids.max())
    assert check_document(text, top + 1) is None
    assert check_document(text, top) == (
        f"holds token ids {text.ids.min()} to {top}, expected 0 to {top - 1}"
    )
    negative = text._replace(ids=np.array([-1, *text.ids[1:]], np.int32))
    assert check_document(negative, VOCAB).startswith("holds token ids -1 to ")
    assert with_states((0, 1, np.nan), (3, 1, np.inf), (2, 3, -np.inf)) == (
        "holds NaN or infinity, 2 in slot 1, 1 in slot 3, expected finite values"
    )
    rows = np.ones((len(text.ids), 4), np.float32)
    assert check_document(text._replace(embeddings=rows)) is None
    rows[2, 2] = np.nan
    assert check_document(text._replace(embeddings=rows)) == (
        "holds NaN or infinity, 1 in embeddings, expected finite values"
    )
    assert check_document(text._replace(answer=np.zeros(7, bool))) == (
        "holds no answer token, expected the loss mask to mark some"
    )

"""`eval` on shards of every framework, on bad documents, and what its figures are called."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.shards import opening
from eagle3_jax.cli import progress
from eagle3_jax.cli.main import main
from eagle3_jax.structs import Document
from tests.commands import error_of
from tests.samples import TABLE, WIDTH, texts, tiny_draft, write_draft, write_texts
from tests.shard_samples import WRITERS, write_nemo


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return write_draft(tmp_path_factory.mktemp("draft") / "draft", tiny_draft(embeddings=True))


def evaluated(capsys, draft, *arguments):
    assert main(["eval", "--draft", str(draft), "--steps", "2", "--json", "-", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, draft, *arguments):
    return error_of(capsys, "eval", "--draft", str(draft), "--steps", "2", *arguments)


def test_a_draft_with_a_nan_has_no_figures(capsys, tmp_path):
    draft = write_draft(tmp_path / "draft")
    write_texts(tmp_path / "texts.safetensors", texts())
    (path,) = draft.glob("*.safetensors")
    tensors = load_file(path)
    tensors["norm.weight"][1] = np.nan
    save_file(tensors, path)
    assert refused(capsys, draft, "--shards", str(tmp_path / "texts.safetensors")) == (
        f"{draft}: norm.weight holds NaN or infinity in 1 of {WIDTH} values, expected in none"
    )


FIGURES = ("steps", "accepted_per_round", "tokens_per_round", "walked", "intervals", "documents")


def all_answer():
    """Texts without a prompt, as a layout without a loss mask has them."""
    return [text._replace(answer=np.ones_like(text.answer), embeddings=None) for text in texts()]


@pytest.fixture(scope="module")
def own_figures(tmp_path_factory, draft):
    path = write_texts(tmp_path_factory.mktemp("own") / "a.safetensors", all_answer())
    file = path.with_suffix(".json")
    arguments = ["eval", "--draft", str(draft), "--steps", "2", "--json", str(file), "--quiet"]
    assert main([*arguments, "--shards", str(path)]) == 0
    return json.loads(file.read_text())


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_gives_the_same_figures(tmp_path, capsys, draft, own_figures, layout):
    written = WRITERS[layout](tmp_path, all_answer())
    found = evaluated(capsys, draft, "--shards", str(written.path))
    assert own_figures["steps"][0]["joint"] > 0.4
    for name in FIGURES:
        assert found[name] == own_figures[name], name
    assert found["layout"] == written.layout
    assert found["capture"]["slots"] == [0, 1, 2]


# Bad documents


def spoilt(text: Document, **changes) -> Document:
    return text._replace(embeddings=TABLE[text.ids])._replace(**changes)


def bad_documents():
    text = texts()[0]
    states = text.states.copy()
    states[3:5, 1, 2] = np.nan
    states[7, 2, 0] = np.inf
    ids = text.ids.copy()
    ids[4] = 32
    return {
        "holds NaN or infinity, 2 in slot 1, 1 in slot 2, expected finite values": spoilt(
            text, states=states
        ),
        f"holds token ids {ids.min()} to 32, expected 0 to 31": spoilt(text, ids=ids),
        "holds no answer token, expected the loss mask to mark some": spoilt(
            text, answer=np.zeros_like(text.answer)
        ),
    }


@pytest.mark.parametrize("told", bad_documents())
def test_a_bad_document_is_left_out_and_told(tmp_path, capsys, draft, told):
    good = texts()
    shard = write_texts(tmp_path / "a.safetensors", [good[0], bad_documents()[told], *good[1:]])
    clean = write_texts(tmp_path / "b.safetensors", good)
    line = f"{shard}: document 1 {told}"
    found = evaluated(capsys, draft, "--shards", str(shard), "--max-bad", "0.2")
    expected = evaluated(capsys, draft, "--shards", str(clean))
    assert found["bad"] == [line]
    for name in FIGURES:
        assert found[name] == expected[name], name
    assert refused(capsys, draft, "--shards", str(shard), "--strict") == line
    assert refused(capsys, draft, "--shards", str(shard)) == (
        f"1 of 5 documents are bad, expected at most 1.0% (--max-bad): {line}"
    )


def test_shards_of_nothing_but_bad_documents(tmp_path, capsys, draft):
    bad = list(bad_documents().values())
    shard = write_texts(tmp_path / "a.safetensors", [*bad, bad[0]])
    message = refused(capsys, draft, "--shards", str(shard), "--max-bad", "0.99")
    assert message.startswith("4 of 4 documents are bad, expected at most 99.0% (--max-bad): ")
    assert message.endswith(" and 1 more")


@pytest.mark.parametrize("share", ["-0.1", "1", "nan"])
def test_a_share_of_bad_documents_is_a_share(capsys, draft, share):
    assert refused(capsys, draft, "--shards", "x", f"--max-bad={share}") == (
        f"--max-bad is {float(share)}, expected a share from 0 to below 1"
    )


# Broken files

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
BREAK = {
    "truncated": lambda whole: whole[: len(whole) // 2],
    "cut in its header": lambda whole: whole[:40],
    "a header that is none": lambda whole: whole[:8] + b"?" * (len(whole) - 8),
    "zero bytes": lambda _: b"",
    "a pointer": lambda _: POINTER,
}


@pytest.fixture
def several(tmp_path):
    """Good shards, the second of them still to be broken."""
    shards = tmp_path / "shards"
    return [write_texts(shards / f"{n}.safetensors", [text]) for n, text in enumerate(texts())]


@pytest.mark.parametrize("how", BREAK)
@pytest.mark.parametrize("place", [0, 1])
def test_a_broken_file_is_left_out_and_told(capsys, draft, several, how, place):
    path = several[place]
    path.write_bytes(BREAK[how](path.read_bytes()))
    folder = str(path.parent)
    line = refused(capsys, draft, "--shards", str(path))
    assert line.startswith(f"{path}: ")
    assert refused(capsys, draft, "--shards", folder, "--strict") == line
    assert refused(capsys, draft, "--shards", folder, "--max-bad", "0") == line
    assert refused(capsys, draft, "--shards", folder) == (
        f"1 of 4 documents are bad, expected at most 1.0% (--max-bad): {line}"
    )
    arguments = ["--draft", str(draft), "--steps", "2", "--json", "-", "--max-bad", "0.25"]
    assert main(["eval", *arguments, "--shards", folder]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert f"left out: {line}" in err
    assert (found["bad"], found["bad_documents"]) == ([line], 1)
    rest = [str(other) for other in several if other != path]
    assert found["shards"] == [told["path"] for told in found["files"]] == rest
    path.unlink()
    expected = evaluated(capsys, draft, "--shards", folder)
    for name in FIGURES:
        assert found[name] == expected[name], name


def test_nothing_but_broken_files(capsys, draft, several):
    for path in several:
        path.write_bytes(POINTER)
    assert refused(capsys, draft, "--shards", str(several[0].parent), "--max-bad", "0.9") == (
        f"{several[0]}: found a Git LFS pointer, expected safetensors: the content was never "
        "downloaded (git lfs pull); and 3 more files, all broken"
    )


def test_more_broken_files_than_allowed_end_it_before_anything_is_read(
    capsys, draft, several, monkeypatch
):
    for path in several[:2]:
        path.write_bytes(b"")
    monkeypatch.setattr("eagle3_jax.cli.documents.read_documents", lambda _: pytest.fail("read"))
    message = refused(capsys, draft, "--shards", str(several[0].parent), "--max-bad", "0.4")
    assert message.startswith("2 of 4 documents are bad, expected at most 40.0% (--max-bad): ")


def test_a_link_to_nothing_is_a_broken_file(capsys, draft, several):
    several[2].unlink()
    several[2].symlink_to("never-downloaded")
    found = evaluated(capsys, draft, "--shards", str(several[0].parent), "--max-bad", "0.25")
    assert found["bad"] == [f"{several[2]}: no such file or directory, expected shards"]


def test_a_file_that_may_not_be_read_is_a_broken_file(capsys, draft, several, monkeypatch):
    opened = opening.open_tensors_file

    def denied(path):
        if path == several[2]:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path)

    monkeypatch.setattr(opening, "open_tensors_file", denied)
    found = evaluated(capsys, draft, "--shards", str(several[0].parent), "--max-bad", "0.25")
    assert found["bad"] == [f"{several[2]}: Permission denied, expected a shard to read"]


def test_what_is_lost_of_a_file_that_breaks_while_it_is_read(tmp_path, capsys, draft):
    """The second of four documents cannot be read: it and those after it are lost."""
    write_nemo(tmp_path, [text._replace(embeddings=None) for text in texts()], shard_size=4)
    shard = tmp_path / "shard-000000.safetensors"
    tensors = load_file(shard)
    tensors["attention_mask"][1, 0] = 0
    save_file(tensors, shard)
    line = (
        f"{shard}: attention_mask of document 1 has gaps, expected documents one by one, padded "
        "on the right"
    )
    arguments = ("--shards", str(tmp_path))
    found = evaluated(capsys, draft, *arguments, "--max-bad", "0.75")
    assert (found["documents"], found["bad"], found["bad_documents"]) == (1, [line], 3)
    assert refused(capsys, draft, *arguments, "--max-bad", "0.5") == (
        f"3 of 4 documents are bad, expected at most 50.0% (--max-bad): {line}"
    )


def test_layouts_that_are_mixed_are_no_broken_files(tmp_path, capsys, draft, several):
    WRITERS["specforge"](several[0].parent, all_answer()[:1])
    stranger = several[0].parent / "rows_0-2000/data_0.ckpt"
    arguments = ("--shards", str(several[0].parent), "--max-bad", "0.9")
    assert refused(capsys, draft, *arguments) == (
        f"{stranger}: found layout specforge, expected eagle3-jax as in {several[0]}"
    )
    save_file({"w": np.ones(1)}, several[1])
    assert refused(capsys, draft, *arguments).startswith(
        f"{several[1]}: found w, which no layout of shards has, expected one of "
    )


# Files and slots


def test_each_path_given_is_a_group(capsys, draft, several):
    folder, first = several[0].parent, several[0]
    other = write_texts(folder.parent / "other.safetensors", texts()[2:])
    found = evaluated(capsys, draft, "--shards", str(other), str(folder), str(first), str(other))
    groups = found["groups"]
    assert [group["path"] for group in groups] == [str(other), str(folder), str(first)]
    for group in groups[:2]:
        alone = evaluated(capsys, draft, "--shards", group["path"])
        assert group == alone["groups"][0]
        assert group["walked_tokens_per_round"] == alone["walked"]["tokens_per_round"]
        assert group["intervals"] == alone["intervals"]
        assert None not in group["intervals"].values()
    # Its file counts with the folder, which was named before.
    assert groups[2] == {"path": str(first), "documents": 0}


def test_groups_are_printed_where_there_are_several(capsys, draft, several):
    arguments = ["eval", "--draft", str(draft), "--steps", "2", "--shards"]
    assert main([*arguments, str(several[0].parent)]) == 0
    assert "step 0" not in capsys.readouterr().out
    several[2].write_bytes(b"")
    more = ["--max-bad", "0.3"]
    assert main([*arguments, *map(str, several), *more]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "step 0" in out
    found = evaluated(capsys, draft, *more, "--shards", *map(str, several))
    for group in found["groups"]:
        # A long path is folded, so only its end stands before the figures.
        assert group["documents"] == (group["path"] != str(several[2]))
        if group["documents"]:
            assert f" 1 {group['joint_0']:.1%} - {group['walked_tokens_per_round']:.3f} - " in out
    assert " 0 - - - - " in out


def test_only_so_many_groups_are_printed(tmp_path, capsys, draft, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = texts()[0]
    paths = [str(write_texts(Path(f"{n}.safetensors"), [text])) for n in range(23)]
    arguments = ["eval", "--draft", str(draft), "--steps", "1", "--shards"]
    assert main([*arguments, *paths]) == 0
    out = capsys.readouterr().out
    table = out[out.index(" shards ") :]
    assert [path in table for path in paths] == [True] * 20 + [False] * 3
    assert out.endswith("and 3 more, which --json has\n")
    Path("0.safetensors").rename("b.safetensors")
    assert main([*arguments, "[b].safetensors", "?.safetensors"]) == 0
    assert " [b]." in capsys.readouterr().out


def test_figures_of_each_file(tmp_path, capsys, draft):
    good = texts()
    for name, part in (("a", good[:1]), ("b", good[1:])):
        write_texts(tmp_path / f"{name}.safetensors", part)
    found = evaluated(capsys, draft, "--shards", str(tmp_path))
    for told in found["files"]:
        alone = evaluated(capsys, draft, "--shards", told["path"])
        assert told == {
            "path": told["path"],
            "documents": alone["documents"],
            "joint_0": alone["steps"][0]["joint"],
            "tokens_per_round": alone["tokens_per_round"],
            "walked_tokens_per_round": alone["walked"]["tokens_per_round"],
            "intervals": alone["intervals"],
        }
    assert [told["documents"] for told in found["files"]] == [1, 3]


def test_the_users_boundaries_win_and_are_told(tmp_path, capsys, draft):
    shard = write_texts(tmp_path / "a.safetensors", texts())
    found = evaluated(capsys, draft, "--shards", str(shard), "--boundaries", "4,5,8")
    assert found["capture"] == {
        "slots": [1, 2, 3],
        "boundaries": [4, 5, 8],
        "source": "--boundaries",
    }
    slots = evaluated(capsys, draft, "--shards", str(shard), "--slots", "1,2,3")
    assert found["steps"] == slots["steps"]


def test_states_that_nobody_names_have_to_be_named(tmp_path, capsys, draft):
    rng = np.random.default_rng(0)
    wide = [
        text._replace(states=rng.normal(size=(len(text.ids), 6, WIDTH)).astype(np.float32))
        for text in all_answer()
    ]
    written = WRITERS["a stack of states"](tmp_path, wide)
    message = refused(capsys, draft, "--shards", str(written.path))
    assert (
        "stores 6 states and does not say which, expected --slots with the 3 of 0 to 5" in message
    )
    found = evaluated(capsys, draft, "--shards", str(written.path), "--slots", "0,2,4")
    assert found["capture"]["boundaries"] is None


# Precision


def test_precision_is_asked_for_and_told(tmp_path, capsys, draft):
    shards = write_texts(tmp_path / "a.safetensors", all_answer())
    full = evaluated(capsys, draft, "--shards", str(shards))
    half = evaluated(capsys, draft, "--shards", str(shards), "--precision", "bfloat16")
    assert (full["precision"], half["precision"]) == ("float32", "bfloat16")
    assert half["steps"] != full["steps"]
    for one, other in zip(half["steps"], full["steps"], strict=True):
        assert one["total"] == other["total"]
        assert one["joint"] == pytest.approx(other["joint"], abs=0.05)

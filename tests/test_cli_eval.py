"""`eval` on shards of every framework, on bad documents, and what its figures are called."""

import json

import numpy as np
import pytest

from eagle3_jax.cli import progress
from eagle3_jax.cli.main import main
from eagle3_jax.structs import Document
from tests.samples import TABLE, WIDTH, texts, tiny_draft, write_draft, write_texts
from tests.shard_samples import WRITERS


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
    assert main(["eval", "--draft", str(draft), "--steps", "2", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


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


# Files and slots


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

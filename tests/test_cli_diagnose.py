"""`eagle3-jax diagnose` on the shipped draft: the field story, and what cannot be told."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import eagle3_jax
from eagle3_jax.cli.main import main
from eagle3_jax.structs import Document
from tests.samples import (
    BOUNDARIES,
    TABLE,
    text_of,
    tiny_draft,
    write_draft,
    write_target,
    write_texts,
)

SHIPPED = Path(eagle3_jax.__file__).parent / "demo"
SHARDS = SHIPPED / "shards"


def diagnose(directory: Path, *arguments: object, steps: int = 2) -> tuple[int, dict[str, Any]]:
    path = directory / "found.json"
    ends = ("--steps", str(steps), "--quiet", "--json", str(path))
    code = main(["diagnose", *map(str, arguments), *ends])
    return code, json.loads(path.read_text())


def claims(found: dict[str, Any], strength: str) -> list[str]:
    return [f["claim"] for f in found["slots"]["findings"] if f["strength"] == strength]


def with_ids(directory: Path, ids: list[int]) -> Path:
    """The shipped draft with other layer ids in its config."""
    shutil.copytree(SHIPPED / "draft", directory)
    config = json.loads((directory / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = ids
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_the_shipped_draft_is_wired_as_configured(tmp_path):
    code, found = diagnose(tmp_path, "--draft", SHIPPED / "draft", "--shards", SHARDS)
    assert code == 0
    assert found["verdict"]["kind"] == "wired as configured"
    assert found["verdict"]["reading"] == []
    assert found["correction"] is None
    assert found["configured"]["boundaries"] == [2, 15, 27]
    # Its norm is by far the smallest, and still:
    assert "slot 0 is not the embedding" in claims(found, "proved")
    engines = {row["engine"]: row for row in found["engines"]}
    assert engines["vllm"]["boundaries"] == [1, 14, 26]
    assert engines["sglang"]["boundaries"] == [2, 15, 27]
    trained, bare = (engines[name]["tokens_per_round"] for name in ("sglang", "sglang-jax"))
    assert trained == pytest.approx(found["readings"][0]["tokens_per_round"], abs=0.02)
    assert bare < 1.3 < trained
    assert any("fc_norm" in told for told in engines["sglang-jax"]["differences"])


def test_states_read_from_the_end_are_named(tmp_path):
    code, found = diagnose(
        tmp_path, "--draft", SHIPPED / "draft", "--shards", SHARDS, "--slots", "1,2,3", steps=1
    )
    assert code == 1
    verdict = found["verdict"]
    assert verdict["kind"] == "another reading"
    told = "slot 0 = boundary 2, slot 1 = boundary 15, slot 2 = boundary 27 (all moved by -1)"
    assert verdict["reading"] == [{"axis": "states", "choice": told}]
    assert 0 < verdict["interval"][0] < verdict["difference"] < verdict["interval"][1]
    best, plain = found["readings"][0], found["readings"][-1]
    assert plain["changes"] == []
    assert best["joint"][0] > plain["joint"][0] + 0.2


def test_ids_one_place_on_are_corrected_for_each_framework(tmp_path):
    draft = with_ids(tmp_path / "draft", [14, 26, 29])
    code, found = diagnose(tmp_path, "--draft", draft, "--shards", SHARDS, steps=1)
    assert code == 1
    assert found["correction"]["boundaries"] == [2, 15, 27]
    keys = {config["framework"]: config["keys"] for config in found["correction"]["configs"]}
    nested, top = (
        {"key": key, "now": now, "right": right}
        for key, now, right in (
            (
                "eagle_config.eagle_aux_hidden_state_layer_ids",
                [14, 26, 29],
                [1, 14, 26],
            ),
            ("eagle_aux_hidden_state_layer_ids", [15, 27, 30], [2, 15, 27]),
        )
    )
    assert keys == {"sglang": [nested], "specforge": [nested], "vllm": [top], "speculators": [top]}


@cache
def tiny_texts() -> tuple[Document, ...]:
    return tuple(text_of(tiny_draft(), 40, seed) for seed in range(8))


@pytest.fixture
def tiny(tmp_path) -> tuple[Path, list[Document]]:
    return write_draft(tmp_path / "draft"), list(tiny_texts())


def test_states_of_nothing_have_no_confident_verdict(tmp_path, tiny):
    draft, texts = tiny
    rng = np.random.default_rng(5)
    noise = [d._replace(states=rng.normal(size=d.states.shape).astype(np.float32)) for d in texts]
    write_texts(tmp_path / "noise.safetensors", noise)
    code, found = diagnose(tmp_path, "--draft", draft, "--shards", tmp_path / "noise.safetensors")
    assert code == 1
    assert found["verdict"]["kind"] == "cannot tell"
    assert "too few texts" in found["verdict"]["told"]
    assert found["verdict"]["interval"] is None


def test_ids_that_are_not_stored_are_told_and_the_states_found(tmp_path, tiny):
    draft, texts = tiny
    config = json.loads((draft / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 4, 6]
    (draft / "config.json").write_text(json.dumps(config))
    write_texts(tmp_path / "texts.safetensors", texts)
    arguments = ("--draft", draft, "--shards", tmp_path / "texts.safetensors")
    code, found = diagnose(tmp_path, *arguments, steps=1)
    assert code == 1
    assert found["verdict"]["kind"] == "another reading"
    assert found["correction"]["boundaries"] == [2, 4, 5]
    assert found["configured"]["source"] == "nobody: the first stored ones"
    assert any("expected 3, 5, 7" in note for note in found["notes"])


def test_a_config_without_ids_is_told_and_the_states_found(tmp_path, tiny):
    """vLLM PR#50170: field figures were 1.04 tokens per round against 2.77."""
    draft = write_draft(tmp_path / "silent", tiny_draft(boundaries=None))
    rng = np.random.default_rng(4)
    texts = []
    for text in tiny[1]:
        early = rng.normal(size=(len(text.ids), 1, 8)).astype(np.float32)
        texts.append(text._replace(states=np.concatenate([early, text.states], axis=1)))
    shard = write_texts(tmp_path / "texts.safetensors", texts, boundaries=(1, *BOUNDARIES))
    code, found = diagnose(tmp_path, "--draft", draft, "--shards", shard, steps=1)
    assert code == 1
    assert found["configured"]["boundaries"] == [1, 2, 4]
    assert any("does not say which target states feed the draft" in n for n in found["notes"])
    assert found["correction"]["boundaries"] == [2, 4, 5]
    keys = {one["framework"]: one["keys"] for one in found["correction"]["configs"]}
    assert [(key["now"], key["right"]) for key in keys["sglang"]] == [(None, [1, 3, 4])]
    assert [(key["now"], key["right"]) for key in keys["vllm"]] == [(None, [2, 4, 5])]


def test_one_short_document_has_no_verdict(tmp_path, tiny):
    draft, texts = tiny
    write_texts(tmp_path / "one.safetensors", texts[:1])
    code, found = diagnose(tmp_path, "--draft", draft, "--shards", tmp_path / "one.safetensors")
    assert code == 1
    assert found["verdict"]["kind"] == "cannot tell"
    assert "documents with answer tokens that decide: 1," in found["verdict"]["told"]


def extracted(path: Path, document: Document, slots: list[int]) -> Path:
    """Some states of a document, as vLLM extracts them: nobody says which they are."""
    states = np.ascontiguousarray(document.states[:, slots])
    save_file({"token_ids": document.ids.astype(np.int64), "hidden_states": states}, path)
    return path


def test_fewer_states_than_fc_reads_are_told(tmp_path, tiny):
    draft, texts = tiny
    (tmp_path / "few").mkdir()
    for number, text in enumerate(texts):
        extracted(tmp_path / "few" / f"{number}.safetensors", text, [0])
    target = write_target(tmp_path / "target", layers=8)
    code, found = diagnose(
        tmp_path, "--draft", draft, "--shards", tmp_path / "few", "--target", target
    )
    assert code == 1
    assert found["verdict"]["kind"] == "cannot tell"
    assert "stores 1 states, expected 3" in found["verdict"]["told"]
    assert found["readings"] == []


def test_shards_without_a_last_state_are_searched(tmp_path, tiny):
    draft, texts = tiny
    (tmp_path / "aux").mkdir()
    for number, text in enumerate(texts):
        extracted(tmp_path / "aux" / f"{number}.safetensors", text, [2, 0, 1])
    target = write_target(tmp_path / "target", layers=8)
    arguments = ("--draft", draft, "--shards", tmp_path / "aux", "--target", target)
    code, found = diagnose(tmp_path, *arguments, "--last-state", "absent", steps=1)
    assert code == 1
    (change,) = found["verdict"]["reading"]
    assert change["choice"] == "slot 1, slot 2, slot 0"


def test_a_server_that_serves_other_slots_is_named(tmp_path, tiny):
    draft, texts = tiny
    write_texts(tmp_path / "texts.safetensors", texts)
    served = extracted(tmp_path / "served.safetensors", texts[3], [1, 2, 3])
    arguments = ("--draft", draft, "--shards", tmp_path / "texts.safetensors")
    _, found = diagnose(tmp_path, *arguments, "--serving", served, steps=1)
    (dump,) = found["serving"]
    assert dump["document"] == 3
    told = " ".join(finding["claim"] for finding in dump["findings"])
    assert "slot 0 is training slot 1" in told
    assert "training slot 0 is never served" in told


def test_a_target_tells_what_the_last_state_is_and_gives_its_tables(tmp_path, tiny):
    draft, texts = tiny
    target = write_target(tmp_path / "target", layers=8)
    write_texts(tmp_path / "texts.safetensors", texts)
    _, found = diagnose(
        tmp_path, "--draft", draft, "--shards", tmp_path / "texts.safetensors", "--target", target
    )
    evidence = " ".join(f["evidence"] for f in found["slots"]["findings"])
    assert "the target's embed_tokens" in evidence
    assert TABLE.shape == (32, 8)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--steps", "0"), "--steps is 0, expected 1 or more"),
        (("--trained-accuracy", "74.7"), "--trained-accuracy is 74.7, expected a share above 0"),
        (("--recompute",), "--recompute runs the target, expected --target"),
        (("--slots", "0,1"), "--slots is 0, 1, expected 3 of 0 to 3"),
        (("--serving", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, told):
    line = ["diagnose", "--draft", str(SHIPPED / "draft"), "--shards", str(SHARDS), "--quiet"]
    assert main([*line, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert told in error

"""`eagle3-jax convert`: what is written, what is told of every tensor, and what is refused."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from eagle3_jax.cli.main import main
from tests.raw_drafts import IDS, LAYER, LAYER_IDS, OFFSETS, noise, raw_tensors, write_raw

Q_BIAS = {f"{LAYER}self_attn.{x}_proj.bias": n for x, n in (("q", 16), ("k", 8), ("v", 8))}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_raw(Path("draft"))


def converted(capsys, *arguments, to="vllm"):
    assert main(["convert", "draft", "out", "--to", to, *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *arguments):
    assert main(["convert", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("error: ").rstrip("\n")


def config(directory="out"):
    return json.loads(Path(directory, "config.json").read_text())


@pytest.mark.parametrize(
    ("to", "layer"),
    [
        ("specforge", "midlayer."),
        ("sglang", "midlayer."),
        ("vllm", "layers.0."),
        ("torchspec", "midlayer."),
        ("tensorrt-llm", "midlayer."),
    ],
)
def test_every_tensor_of_both_files_has_its_row(capsys, to, layer):
    told = converted(capsys, to=to)
    before, after = load_file("draft/model.safetensors"), load_file("out/model.safetensors")
    rows = told["tensors"]
    assert sorted(row["source"] for row in rows if row["source"]) == sorted(before)
    assert sorted(row["written"] for row in rows if row["written"]) == sorted(after)
    for row in rows:
        source, written = row["source"], row["written"]
        assert written == source.replace(LAYER, layer)
        assert row["fate"] == ("written" if written == source else "renamed")
        assert before[source].tobytes() == after[written].tobytes()
        assert (tuple(row["shape"]), row["dtype"]) == (after[written].shape, after[written].dtype)


def test_dropped_rebuilt_and_added_tensors_say_why(capsys):
    write_raw(
        Path("draft"),
        {"eagle_config": {LAYER_IDS: [1, 3, 4]}},
        {"d2t": IDS.astype(np.int64), "t2d": None, "midlayer.rotary_emb.inv_freq": noise(2),
         **{name: np.zeros(size, np.float32) for name, size in Q_BIAS.items()}},
    )  # fmt: skip
    told = converted(capsys, "--from", "specforge", to="sglang")
    rows = {row["source"] or row["written"]: row for row in told["tensors"]}
    fates = {name: (row["fate"], row["reason"]) for name, row in rows.items()}
    assert {name: fate for name, fate in fates.items() if fate[0] != "written"} == {
        **dict.fromkeys(Q_BIAS, ("dropped", "all zeros")),
        "d2t": ("rebuilt", "from int64, as readers take it"),
        "t2d": ("added", "rebuilt from the vocabulary"),
        "midlayer.rotary_emb.inv_freq": ("dropped", "computed from the config"),
    }
    np.testing.assert_array_equal(load_file("out/model.safetensors")["d2t"], OFFSETS)
    assert (
        "q/k/v biases is all zeros and left out: its projections have no biases, o_proj's aside"
        in told["notes"]
    )


def test_the_table_ends_with_what_was_read_written_and_noted(capsys):
    write_raw(Path("draft"), {"max_position_embeddings": None, "eagle_config": None})
    assert main(["convert", "draft", "out", "--to", "vllm", "--from", "specforge"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert ["midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight", "16", "x", "8",
            "float32"] in rows  # fmt: skip
    assert ["norm.weight", "=", "8", "float32"] in rows
    assert out.endswith(
        "read     draft, SpecForge, from pull request 879 on: --from\n"
        "written  out, for vLLM\n"
        "capture  unknown\n"
        "note     no layer ids: which target states feed the draft is unknown (--boundaries says "
        "it, --target-layers gives the default)\n"
        "note     layer ids are unknown and not written: vLLM will take its default, boundaries 2, "
        "L//2, L-3, which may not be what the draft was trained on\n"
        "note     max_position_embeddings is unknown: written is 2048, Llama's default\n"
    )
    assert err == ""
    assert LAYER_IDS not in config()
    assert config()["max_position_embeddings"] == 2048


def test_layer_ids_are_renumbered_and_knobs_written_out(capsys):
    told = converted(capsys)
    assert told["boundaries"] == [2, 4, 5]
    written = config()
    assert written[LAYER_IDS] == [2, 4, 5]
    assert LAYER_IDS not in written["eagle_config"]
    for knob in ("norm_before_residual", "norm_output", "fc_norm", "tie_word_embeddings"):
        assert written[knob] is False
    assert (written["head_dim"], written["num_hidden_layers"]) == (4, 1)
    assert (written["rope_theta"], written["rope_scaling"]) == (10000.0, None)


@pytest.mark.parametrize(
    ("keys", "tensors", "to", "options", "message"),
    [
        ({"norm_before_residual": True}, {}, "sglang", [],
         "sglang has no place for norm_before_residual: its residual is always the raw state "
         "(--allow norm_before_residual accepts that)"),
        ({}, {name: noise(size) for name, size in Q_BIAS.items()}, "sglang", [],
         "sglang has no place for q/k/v biases: its projections have no biases, o_proj's aside "
         "(--allow attention_bias accepts that)"),
        ({}, {"fc.bias": noise(8)}, "vllm", [],
         "vllm has no place for fc_bias: its fc has no bias (--allow fc_bias accepts that)"),
        ({}, {}, "speculators", [],
         "the draft holds no token embeddings and speculators would make random ones, expected "
         "--target with the target's directory, whose embeddings the draft uses"),
        ({}, {}, "modelopt-megatron", [],
         "ModelOpt's Megatron export is only read, expected another dialect"),
    ],
)  # fmt: skip
def test_what_a_reader_cannot_express_is_refused(capsys, keys, tensors, to, options, message):
    write_raw(Path("draft"), keys, tensors)
    assert error_of(capsys, "draft", "out", "--to", to, *options) == f"out: {message}"
    assert os.listdir() == ["draft"]


def test_an_accepted_loss_is_told_and_its_tensors_are_dropped(capsys):
    write_raw(Path("draft"), {}, {"fc.bias": noise(8)})
    told = converted(capsys, "--allow", "fc_bias")
    assert told["notes"] == ["fc_bias is given up (--allow fc_bias): its fc has no bias"]
    (row,) = (row for row in told["tensors"] if row["fate"] == "dropped")
    assert (row["source"], row["reason"]) == ("fc.bias", "--allow fc_bias")
    assert "fc.bias" not in load_file("out/model.safetensors")
    assert config()["bias"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["draft", "draft", "--to", "vllm"],
         "draft: exists already, expected a new path or overwrite"),
        (["draft", "file", "--to", "vllm", "--overwrite"],
         "file: found a file, expected a directory to replace"),
        (["nested/draft", "nested", "--to", "vllm", "--overwrite"],
         "nested: holds the source nested/draft, expected another place"),
        (["nested/draft", ".", "--to", "vllm", "--overwrite"],
         ".: holds the source nested/draft, expected another place"),
        (["draft", "nested", "--to", "vllm", "--overwrite"],
         "nested: holds neither config.json nor draft.json, expected a draft to replace"),
        (["draft", "nested/draft", "--to", "vllm", "--overwrite", "--target", "nested/draft"],
         "nested/draft: holds the target nested/draft, expected another place"),
        (["draft", "out"], "missing from eagle3-jax convert: --to DIALECT"),
        (["draft", "--to", "vllm"], "missing from eagle3-jax convert: DST"),
        (["nowhere", "out", "--to", "vllm"],
         "nowhere: no such directory, expected a draft (config.json, weights)"),
    ],
)  # fmt: skip
def test_what_exists_is_not_lost(capsys, arguments, message):
    write_raw(Path("nested/draft"))
    Path("file").write_text("mine")
    if "--target" in arguments:  # a target, or opening it would be refused
        table = {"embed_tokens.weight": noise(32, 8), "lm_head.weight": noise(32, 8)}
        write_raw(Path("nested/draft"), {}, table)
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert error_of(capsys, *arguments) == message
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def test_a_dialect_that_nobody_knows(capsys):
    message = error_of(capsys, "draft", "out", "--to", "sglnag")
    assert message.startswith("dialect 'sglnag' is unknown, expected one of eagle, specforge, ")


def test_overwriting_replaces_a_draft_itself_included(capsys):
    assert main(["convert", "draft", "draft", "--to", "vllm", "--overwrite", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    held = load_file("draft/model.safetensors")
    source = raw_tensors()
    assert {name.replace("layers.0.", LAYER) for name in held} == source.keys()
    for name, tensor in held.items():
        assert tensor.tobytes() == source[name.replace("layers.0.", LAYER)].tobytes()
    Path("empty").mkdir()
    assert main(["convert", "draft", "empty", "--to", "sglang", "--overwrite", "--quiet"]) == 0


@pytest.mark.parametrize("name", ["Entwurf ümlaut 模型", "deep/er/place", "[bold]", "draft/within"])
def test_names_that_a_file_system_allows(capsys, name):
    assert main(["convert", "draft", name, "--to", "vllm"]) == 0
    assert f"written  {name}, for vLLM" in capsys.readouterr().out
    assert main(["inspect", "draft", name]) == 0
    assert capsys.readouterr().out == f"draft and {name}: the same draft\n"


def test_links_are_followed(capsys):
    Path("link").symlink_to("draft")
    Path("real").mkdir()
    Path("place").symlink_to("real")
    arguments = ["convert", "link", "place", "--to", "vllm", "--overwrite", "--quiet"]
    assert main(arguments) == 0
    assert Path("place").is_symlink()
    assert sorted(os.listdir("real")) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("destination", ["out", "draft"])
def test_a_failed_write_leaves_what_was_there(capsys, monkeypatch, destination, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    before = Path("draft/model.safetensors").read_bytes(), Path("draft/config.json").read_bytes()
    monkeypatch.setattr(os, "fsync", fail)
    message = error_of(capsys, "draft", destination, "--to", "vllm", "--overwrite")
    assert os.strerror(code) in message
    assert os.listdir() == ["draft"]
    assert (
        Path("draft/model.safetensors").read_bytes(),
        Path("draft/config.json").read_bytes(),
    ) == before


def test_an_interrupted_write_leaves_nothing(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    assert main(["convert", "draft", "out", "--to", "vllm"]) == 130
    assert capsys.readouterr() == ("", "error: interrupted\n")
    assert os.listdir() == ["draft"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_may_not_be_written(capsys):
    Path("locked").mkdir(mode=0o555)
    message = error_of(capsys, "draft", "locked/out", "--to", "vllm")
    assert message.endswith("Permission denied")


def test_json_goes_to_a_file_and_tables_to_stdout(capsys):
    assert main(["convert", "draft", "out", "--to", "vllm", "--json", "told.json"]) == 0
    out, _ = capsys.readouterr()
    told = json.loads(Path("told.json").read_text())
    assert "written  out, for vLLM" in out
    assert (told["source"], told["destination"]) == ("draft", "out")
    assert (told["from"], told["to"], told["notes"]) == ("specforge", "vllm", [])


def test_there_and_back_gives_the_same_bytes(capsys):
    source = raw_tensors()
    converted(capsys)
    assert main(["convert", "out", "back", "--to", "specforge", "--quiet"]) == 0
    back = load_file("back/model.safetensors")
    assert back.keys() == source.keys()
    for name, tensor in source.items():
        assert (back[name].dtype, back[name].tobytes()) == (tensor.dtype, tensor.tobytes())
    assert config("back")["eagle_config"][LAYER_IDS] == [1, 3, 4]


def test_python_m_converters_is_the_same_command():
    arguments = ["draft", "out", "--to", "vllm"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "converters", *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "written  out, for vLLM" in done.stdout
    assert sorted(os.listdir("out")) == ["config.json", "model.safetensors"]

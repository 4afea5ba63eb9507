"""`eagle3-jax inspect`: what a draft is, or what tells two apart; without JAX, in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_jax.cli.main import main
from tests.raw_drafts import LAYER_IDS, noise, write_raw

DEMO = Path(__file__).parents[1] / "eagle3_jax/demo/draft"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_raw(Path("draft"))


def inspected(capsys, *arguments):
    assert main(["inspect", *map(str, arguments), "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def error_of(capsys, *arguments):
    assert main(["inspect", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("error: ").rstrip("\n")


def test_the_demo_draft_in_every_numbering(capsys):
    told = inspected(capsys, DEMO, "--target-layers", "30")
    assert told["boundaries"] == [2, 15, 27]
    ids = {row["dialect"]: row["ids"] for row in told["captures"]}
    assert ids["vllm"] == ids["speculators"] == [2, 15, 27]
    assert ids["sglang"] == ids["specforge"] == ids["tensorrt-llm"] == [1, 14, 26]
    assert ids["eagle"] is None
    fits = {row["dialect"]: row["fits"] for row in told["captures"]}
    assert set(fits.values()) == {True}  # 2, 15, 27 are what a target of 30 layers defaults to
    assert not {row["dialect"] for row in told["captures"]} & {"native", "modelopt-megatron"}


def test_a_capture_that_a_framework_would_not_take_is_marked(capsys):
    told = inspected(capsys, "draft", "--target-layers", "30")
    fits = {row["dialect"]: row["fits"] for row in told["captures"]}
    assert (fits["eagle"], fits["sglang"]) == (False, True)
    main(["inspect", "draft", "--target-layers", "30"])
    (eagle,) = (line for line in capsys.readouterr().out.splitlines() if line[:7] == " eagle ")
    assert eagle.split(maxsplit=2)[2].strip() == (
        "states none, takes 2, L//2, L-3 (not this draft's)"
    )


def test_every_fact_of_a_draft(capsys):
    told = inspected(capsys, "draft")
    assert told["path"] == "draft"
    assert told["dialect"] == "specforge"
    assert told["evidence"][0] == (
        "architectures name LlamaForCausalLMEagle3, tensors are named midlayer.*"
    )
    assert told["dtype"] == "float32"
    assert told["parameters"] == 192 + 4 * 8 + 256 + 3 * 128 + 3 * 128 + 96
    assert told["own_embeddings"] is False
    assert told["knobs"]["head_dim"] == {"value": 4, "source": "shape of q_proj"}
    assert told["boundaries_source"] == (
        f"config eagle_config.{LAYER_IDS} [1, 3, 4], numbered by output"
    )
    assert told["vocabulary"] == {
        "source": "tensors d2t and t2d",
        "draft_vocab_size": 12,
        "vocab_size": 32,
        "share": 0.375,
        "lowest_id": 0,
        "highest_id": 31,
        "ascending": True,
        "first_ids_only": False,
        "whole": False,
        "gaps": 5,
    }
    assert told["notes"] == []


def test_the_tables_say_what_the_json_says(capsys):
    write_raw(Path("draft"), {"hidden_size": 9, "rope_theta": 500000})
    assert main(["inspect", "draft"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    told = {row[0]: [cell.strip() for cell in row[1:]] for row in rows if row}
    assert told["rope_theta"] == ["500000", "config rope_theta"]
    assert told["norm_before_residual"] == [
        "false",
        "specforge's rule: its residual is always the raw state",
    ]
    assert (
        "vocabulary  12 of 32 ids (37.5%), 0 to 31, by tensors d2t and t2d\n"
        "embeddings  the target's\n"
        "note        hidden_size is 9 in the config, 8 by the shape of hidden_norm\n"
    ) in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "draft", "--target-layers", "8", "--json", "-"],
        ["inspect", "--target-layers", "8", "--json", "-", "draft"],
        ["inspect", "--json", "-", "draft", "--target-layers", "8"],
        ["--quiet", "inspect", "draft", "--json", "-", "--target-layers", "8"],
    ],
)
def test_options_stand_before_or_after_the_path(capsys, arguments):
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["target_layers"] == 8


def test_quiet_prints_nothing(capsys):
    assert main(["inspect", "draft", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_two_drafts_are_told_apart_by_what_differs_alone(capsys):
    write_raw(
        Path("other"),
        {"rope_theta": 5e5, "eagle_config": {LAYER_IDS: [1, 3, 5]}},
        {"norm.weight": noise(8), "fc.bias": noise(8), "t2d": None, "d2t": None,
         "lm_head.weight": noise(32, 8)},
    )  # fmt: skip
    told = inspected(capsys, "draft", "other", "--from", "specforge")
    rows = {row["what"]: (row["first"], row["second"]) for row in told["differences"]}
    assert told["same"] is False
    assert rows == {
        "draft_vocab_size": (12, 32),
        "fc_bias": (False, True),
        "rope_theta": (10000.0, 500000.0),
        "boundaries": ([2, 4, 5], [2, 4, 6]),
        "draft vocabulary": ("12 ids, 12 shared", "32 ids, 12 shared"),
        "tensor fc.bias": (None, "float32 [8]"),
        "tensor lm_head.weight": ("float32 [12, 8]", "float32 [32, 8]"),
        "tensor norm.weight": ("float32 [8]", "same type and shape, other bytes"),
    }


def test_the_same_draft_under_other_names(capsys):
    write_raw(Path("other"))
    assert main(["inspect", "draft", "other"]) == 0
    assert capsys.readouterr().out == "draft and other: the same draft\n"
    assert inspected(capsys, "draft", "other") == {
        "paths": ["draft", "other"],
        "same": True,
        "differences": [],
    }


def test_one_flipped_bit_is_a_difference(capsys):
    write_raw(Path("other"))
    file = Path("other/model.safetensors")
    content = bytearray(file.read_bytes())
    content[-33] ^= 1  # before t2d, whose 32 bytes come last
    file.write_bytes(content)
    (row,) = inspected(capsys, "draft", "other")["differences"]
    assert row == {
        "what": "tensor norm.weight",
        "first": "float32 [8]",
        "second": "same type and shape, other bytes",
    }


BOUNDARIES = "expected numbers from 0, like 0,1,2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: no such directory, expected a draft (config.json, weights)"),
        (["draft/config.json"],
         "draft/config.json: found a file, expected the directory of a draft"),
        ([], "missing from eagle3-jax inspect: PATH"),
        (["draft", "draft", "draft"], "unrecognized options: draft"),
        (["draft", "--target-layers", "0"], "--target-layers is 0, expected a positive number"),
        (["draft", "--boundaries", "2,4"],
         "draft/config.json: --boundaries means 2 states of width 8, but fc reads 24 columns, "
         "expected 16"),
        (["draft", "--boundaries", "2,4,x"], f"--boundaries is '2,4,x', {BOUNDARIES}"),
        (["draft", "--boundaries", ""], f"--boundaries is '', {BOUNDARIES}"),
        (["draft", "--boundaries", "2,4,²"], f"--boundaries is '2,4,²', {BOUNDARIES}"),
        (["draft", "--boundaries", "2,4,9999999999"],
         f"--boundaries is '2,4,9999999999', {BOUNDARIES}"),
        (["draft", "--set", "d2t=x"], "--set d2t is 'x', expected offset or absolute"),
        (["draft", "--vocab-mapping", "x.pt"],
         "x.pt: no such file, expected a vocabulary mapping"),
        (["draft", "--target", "draft"],
         "draft: found no tensor embed_tokens.weight, expected one of that name"),
        (["draft", "--json", "draft"], "draft: found a directory, expected a file to write"),
        (["draft", "--json", "no/x.json"],
         "no: no such directory, expected one to write x.json in"),
        (["draft", "--from", "native"],
         "draft/draft.json: no such file, expected a native draft"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(capsys, arguments, message):
    assert error_of(capsys, *arguments) == message


def test_engines_are_told_for_a_class_of_targets(capsys):
    path, layers = Path("draft"), ("--target-layers", "61")
    config = json.loads((path / "config.json").read_text())
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    (path / "config.json").write_text(json.dumps(config))
    told = inspected(capsys, path, *layers, "--target-class", "deepseek_v3")
    captured = {row["engine"]: row["boundaries"] for row in told["engines"]}
    assert captured["sglang"] == captured["vllm"] == [2, 30, 58]
    told = inspected(capsys, path, *layers, "--target-class", "qwen3_moe")
    captured = {row["engine"]: row["boundaries"] for row in told["engines"]}
    assert (captured["sglang"], captured["vllm"]) == ([3, 31, 59], [2, 30, 58])
    assert "engines" not in inspected(capsys, path, *layers)
    assert main(["inspect", str(path), *layers, "--target-class", "qwen3_moe"]) == 0
    assert "trained on" in capsys.readouterr().out


def test_a_native_draft_is_served_by_none(capsys):
    assert main(["convert", "draft", "own", "--to", "native"]) == 0
    capsys.readouterr()
    told = inspected(capsys, "own", "--target-layers", "8", "--target-class", "llama")
    assert told["engines"] == []


def test_engines_are_told_of_one_draft_alone(capsys):
    told = error_of(capsys, "draft", "draft", "--target-layers", "8", "--target-class", "llama")
    assert told.endswith("expected no second one")


def test_a_class_of_targets_needs_its_depth(capsys):
    told = error_of(capsys, "draft", "--target-class", "llama")
    assert told.startswith("--target-class asks how engines would read the draft")
    assert told.endswith("expected --target-layers or --target too")


def test_an_allowance_that_means_nothing_is_a_typo(capsys):
    message = error_of(capsys, "draft", "--allow", "norm_outptu")
    assert message.startswith(
        "draft/config.json: --allow norm_outptu is neither a key nor a tensor of this draft, "
        "expected one, or one of attention_bias, "
    )


def test_a_plain_language_model_is_no_draft(capsys):
    Path("draft/config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    write_raw(Path("llama"), {}, {"midlayer.hidden_norm.weight": None})
    assert error_of(capsys, "llama") == (
        "llama: not an EAGLE-3 draft: found 'LlamaForCausalLMEagle3' without "
        "layers.0.hidden_norm.weight, expected a midlayer that reads [embedding, hidden]"
    )


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


HEAVY = """
heavy = {'jax', 'jaxlib', 'flax', 'orbax', 'torch', 'matplotlib'} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "draft", "--target-layers", "8"],
        ["inspect", "draft", "draft"],
        ["convert", "draft", "vllm", "--to", "vllm"],
        ["inspect", "nowhere"],
    ],
)
def test_no_jax_is_imported(arguments):
    code = f"import sys\nfrom eagle3_jax.cli.main import main\nmain({arguments!r}){HEAVY}"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_help_imports_neither_numpy_nor_rich():
    code = (
        "import sys\nfrom eagle3_jax.cli.main import main\nassert main(['inspect', '--help']) == 0"
        "\nheavy = {'numpy', 'rich', 'safetensors'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr


def test_names_stay_whole_in_a_pipe():
    code = "import sys\nfrom eagle3_jax.cli.main import main\nmain(['convert', 'draft', 'o', " \
           "'--to', 'vllm'])"  # fmt: skip
    done = run_python(code, NO_COLOR="1", COLUMNS="60")
    assert "midlayer.post_attention_layernorm.weight" in done.stdout
    assert "layers.0.post_attention_layernorm.weight" in done.stdout
    assert "\x1b" not in done.stdout

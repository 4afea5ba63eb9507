"""`eagle3-jax capture`: what its shards hold, what a second run does, and what it refuses."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import converters.files
from converters.shards import open_shards, read_documents
from eagle3_jax.cli import capturing, progress
from eagle3_jax.cli.main import main
from tests.capture_samples import (
    CHATML,
    ID,
    LAYERS,
    assistant,
    ids_of,
    user,
    whole_target,
    write_tokenizer,
    write_whole_target,
)
from tests.commands import error_of, json_of
from tests.conftest import TOLERANCE, close
from tests.samples import BOUNDARIES, VOCAB, tiny_draft, write_draft
from tests.test_target import run

CONFIG, PARAMS = whole_target()
CHATS = [
    {"messages": [user("hi there"), assistant("yes"), user("go"), assistant("no\nway")]},
    {"text": "some text"},
    {"ids": [7, 8, 9, 10, 11, 12], "prompt_length": 2},
    {"messages": [user("a"), assistant("b")]},
    {"ids": list(range(VOCAB)) * 3, "loss_mask": [0, 1] * 48},
]
CAPTURE = ("capture", "--target", "target", "--text", "chats.jsonl", "--output", "out")
SMALL = ("--documents-per-shard", "2", "--batch-tokens", "256")


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return write_whole_target(tmp_path_factory.mktemp("shelf") / "target")


@pytest.fixture
def here(shelf, tmp_path, monkeypatch):
    """A folder with the target and a file of texts."""
    (tmp_path / "target").symlink_to(shelf)
    write_lines(tmp_path / "chats.jsonl", CHATS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_lines(file, lines):
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def states_of(ids, boundaries=BOUNDARIES, params=PARAMS):
    padded = np.zeros((1, 128), np.int32)
    padded[0, : len(ids)] = ids
    return run(CONFIG, params, jnp.asarray(padded), boundaries).states[0, : len(ids)]


def stored(directory="out"):
    return [one for file in sorted(Path(directory).iterdir()) for one in read_documents(file)]


def names(directory="out"):
    return sorted(file.name for file in Path(directory).iterdir())


def contents(directory="out"):
    return {file.name: file.read_bytes() for file in Path(directory).iterdir()}


def test_shards_hold_the_targets_own_states_at_every_token(here, capsys):
    result = json_of(capsys, *CAPTURE, *SMALL, "--dtype", "float32", "--embeddings")
    assert names() == ["00000.safetensors", "00001.safetensors", "00002.safetensors"]
    shards = open_shards([Path("out")])
    assert shards.info.boundaries == BOUNDARIES  # the default of eight layers, then the last state
    assert (shards.info.last_state, shards.info.layout) == ("pre_norm", "eagle3-jax")
    assert [file.documents for file in shards.files] == [2, 2, 1]
    documents = stored()
    chat = (
        "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\nno\nway<|im_end|>\n"
    )
    assert documents[0].ids.tolist() == ids_of(chat)
    assert documents[0].ids[documents[0].answer].tolist() == ids_of(
        "yes<|im_end|>no\nway<|im_end|>"
    )
    assert documents[1].ids.tolist() == ids_of("<s>some text")
    assert documents[1].answer.all()
    assert documents[2].answer.tolist() == [False] * 2 + [True] * 4
    assert documents[4].ids.tolist() == CHATS[4]["ids"]
    for document in documents:
        close(document.states, states_of(document.ids))
        np.testing.assert_array_equal(document.embeddings, PARAMS["embed_tokens"][document.ids])
    tokens = sum(len(document.ids) for document in documents)
    answer_tokens = sum(int(document.answer.sum()) for document in documents)
    assert result["captured"] == {
        **{"documents": 5, "tokens": tokens, "answer_tokens": answer_tokens}
    }
    assert (result["shards"], result["kept"], result["documents"]) == (3, 0, 5)
    assert result["boundaries"] == list(BOUNDARIES)
    assert result["tokens_per_second"] == pytest.approx(tokens / result["seconds"])


def test_other_boundaries_in_bfloat16(here, capsys):
    assert main([*CAPTURE, "--boundaries", "0,3"]) == 0
    assert open_shards([Path("out")]).info.boundaries == (0, 3, LAYERS)
    for document in stored():
        assert document.states.dtype == ml_dtypes.bfloat16
        assert document.embeddings is None
        close(document.states, states_of(document.ids, (0, 3, LAYERS)), tolerance=2**-8)
    out = capsys.readouterr().out
    assert "boundaries 0, 3, then 8, the last before the final norm" in out
    assert "bfloat16, computed in float32" in out


def test_a_pass_in_bfloat16_is_another_one(here, capsys):
    result = json_of(capsys, *CAPTURE, "--compute", "bfloat16", "--dtype", "float32")
    assert result["compute"] == "bfloat16"
    [first, *_] = stored()
    assert first.states.dtype == np.float32
    np.testing.assert_array_equal(first.states, first.states.astype(ml_dtypes.bfloat16))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    close(first.states, states_of(first.ids, params=params), TOLERANCE["bfloat16"])


def test_answers_of_the_target(here, capsys):
    result = json_of(capsys, *CAPTURE, "--generate", "5", "--dtype", "float32")
    prompts = [
        ids_of(
            "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
            "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
        ),
        ids_of("<s>some text"),
        [7, 8],
        ids_of("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"),
        CHATS[4]["ids"][:95],
    ]
    assert result["end_ids"] == [ID["<|im_end|>"]]
    documents = stored()
    for document, prompt in zip(documents, prompts, strict=True):
        assert document.ids[: len(prompt)].tolist() == prompt
        assert document.answer.tolist() == [
            place >= len(prompt) for place in range(len(document.ids))
        ]
        answer = document.ids[len(prompt) :]
        close(document.states, states_of(document.ids))
        normed = states_of(document.ids, (LAYERS,))[len(prompt) - 1 : -1, 0]
        normed = np.asarray(normed, np.float64)
        normed /= np.sqrt(np.mean(normed**2, axis=1, keepdims=True) + CONFIG.rms_norm_eps)
        scores = normed * PARAMS["norm"]["scale"] @ PARAMS["lm_head"]["kernel"]
        assert answer.tolist() == np.argmax(scores, axis=1).tolist()
        assert len(answer) == 5 or answer[-1] == ID["<|im_end|>"]
    assert result["captured"]["answer_tokens"] == sum(int(d.answer.sum()) for d in documents)


def test_the_file_that_names_the_end_of_an_answer(here, shelf, capsys):
    assert main([*CAPTURE, "--generate", "6", "--quiet"]) == 0
    first = stored()[1]
    end = int(first.ids[first.answer][1])
    (here / "other").mkdir()
    for file in shelf.iterdir():
        (here / "other" / file.name).symlink_to(file)
    generation = here / "other/generation_config.json"
    arguments = ("capture", "--target", "other", "--text", "chats.jsonl", "--generate", "6")
    generation.write_text(json.dumps({"eos_token_id": [end, 0]}))
    assert json_of(capsys, *arguments, "--output", "2")["end_ids"] == [end, 0]
    again = stored("2")[1]
    assert len(again.ids[again.answer]) < len(first.ids[first.answer])
    assert again.ids[-1] in (end, 0)
    generation.write_text(json.dumps({"eos_token_id": "x"}))
    assert error_of(capsys, *arguments, "--output", "3") == (
        "other/generation_config.json: eos_token_id is 'x', expected one id or a list of them"
    )
    generation.unlink()
    config = json.loads((shelf / "config.json").read_text())
    (here / "other/config.json").unlink()
    (here / "other/config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    assert error_of(capsys, *arguments, "--output", "3") == (
        "other: found no eos_token_id in generation_config.json or config.json, expected the "
        "tokens that end an answer"
    )


def test_texts_are_cut_to_length_and_that_is_told(here, capsys):
    result = json_of(capsys, *CAPTURE, "--max-length", "9")
    assert [len(document.ids) for document in stored()] == [9, 9, 6, 9, 9]
    assert (result["truncated"], result["without_answer"], result["max_length"]) == (4, 2, 9)
    close(stored()[4].states, states_of(CHATS[4]["ids"][:9]), tolerance=2**-8)
    assert main([*CAPTURE, "--max-length", "9"]) == 0
    out = capsys.readouterr().out
    assert "note       4 texts were cut to 9 tokens" in out
    assert "note       2 texts have no token of an answer within that length" in out


def test_prompts_that_leave_no_room_are_left_out_and_that_is_told(here, capsys):
    result = json_of(capsys, *CAPTURE, "--max-length", "11", "--generate", "4")
    assert (result["left_out"], result["truncated"], result["documents"]) == (3, 0, 2)
    assert max(len(document.ids) for document in stored()) <= 11
    assert stored()[0].ids[:10].tolist() == ids_of("<s>some text")
    error = error_of(capsys, *CAPTURE, "--max-length", "2", "--generate", "4")
    assert error == "chats.jsonl: found no text to answer below 2 tokens, expected JSON lines"


def test_a_run_that_was_interrupted_goes_on_where_it_stopped(here, capsys, monkeypatch):
    assert main([*CAPTURE, *SMALL, "--quiet"]) == 0
    whole = contents()
    written = converters.files.write_tensor
    calls = 0

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == 6:  # within the second shard, which is of four tensors like the first
            raise KeyboardInterrupt
        written(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(converters.files, "write_tensor", interrupted)
        assert main([*CAPTURE[:-1], "again", *SMALL]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert names("again") == ["00000.safetensors"]
    before = Path("again/00000.safetensors").stat().st_mtime_ns
    result = json_of(capsys, *CAPTURE[:-1], "again", *SMALL)
    assert (result["kept"], result["captured"]["documents"]) == (1, 3)
    assert Path("again/00000.safetensors").stat().st_mtime_ns == before
    assert contents("again") == whole
    result = json_of(capsys, *CAPTURE[:-1], "again", *SMALL)
    assert (result["kept"], result["captured"]["documents"]) == (3, 0)
    assert result["tokens_per_second"] is None


def test_a_longer_file_goes_on_with_the_shards_that_were_full(here, capsys):
    write_lines(Path("chats.jsonl"), CHATS[:4])
    assert main([*CAPTURE, *SMALL, "--quiet"]) == 0
    write_lines(Path("chats.jsonl"), CHATS)
    assert json_of(capsys, *CAPTURE, *SMALL)["kept"] == 2
    assert len(stored()) == 5


def test_shards_of_other_inputs_are_refused_and_replaced_only_when_told(here, capsys):
    assert main([*CAPTURE, "--quiet"]) == 0
    old, start = contents(), "out/00000.safetensors: was made "
    end = "; --overwrite removes such shards"
    for options, message in (
        (("--boundaries", "1,2"), "with boundaries [2, 4, 5], expected [1, 2]"),
        (("--dtype", "float32"), "with dtype bfloat16, expected float32"),
        (("--compute", "bfloat16"), "with compute float32, expected bfloat16"),
        (("--embeddings",), "with embeddings False, expected True"),
        (("--generate", "3"), "with generate None, expected 3"),
        (("--max-length", "9"), "from other texts, expected those given"),
        (("--answers", "last"), "from other texts, expected those given"),
        (("--documents-per-shard", "2"), "from other texts, expected those given"),
    ):
        assert error_of(capsys, *CAPTURE, *options) == f"{start}{message}{end}"
    assert contents() == old
    result = json_of(capsys, *CAPTURE, "--embeddings", "--overwrite")
    assert (result["kept"], result["captured"]["documents"]) == (0, 5)
    assert stored()[0].embeddings is not None


def test_another_target_is_another_capture(here, capsys):
    assert main([*CAPTURE, "--quiet"]) == 0
    for name, change in (("one", {"rope_theta": 99.0}), ("two", {"rms_norm_eps": 1e-6})):
        write_whole_target(here / name, **change)
        error = error_of(capsys, "capture", "--target", name, *CAPTURE[3:])
        assert error.startswith("out/00000.safetensors: was made with target ")
    write_whole_target(here / "copy", architectures=["LlamaForCausalLM"])
    assert json_of(capsys, "capture", "--target", "copy", *CAPTURE[3:])["kept"] == 1


def test_how_fast_it_goes_changes_nothing_and_may_differ_between_runs(here, capsys):
    assert main([*CAPTURE, "--quiet"]) == 0
    assert json_of(capsys, *CAPTURE, "--batch-tokens", "99", "--rows", "2")["kept"] == 1


def test_eval_reads_what_was_captured(here, capsys):
    assert main([*CAPTURE, *SMALL, "--embeddings", "--quiet"]) == 0
    write_draft(here / "draft", tiny_draft())
    result = json_of(capsys, "eval", "--draft", "draft", "--shards", "out", "--steps", "1")
    assert result["documents"] == 5
    assert result["bad"] == []
    assert result["capture"]["boundaries"] == list(BOUNDARIES[:3])
    assert result["answer_tokens"] == sum(int(one.answer.sum()) for one in stored())


def test_several_files_and_a_tokenizer_from_elsewhere(here, capsys):
    write_tokenizer(here / "elsewhere", None)
    Path("template").write_text(CHATML.replace("assistant", "a"))
    write_lines(Path("more.jsonl"), CHATS[3:4])
    arguments = [*CAPTURE[:4], "more.jsonl", *CAPTURE[4:], "--tokenizer", "elsewhere"]
    assert error_of(capsys, *arguments).startswith("more.jsonl:1: elsewhere has no chat template")
    arguments = [*arguments, "--chat-template", "template", "--generate", "1"]
    assert json_of(capsys, *arguments)["documents"] == 6
    end = "<|im_end|>\n<|im_start|>a\n"
    assert stored()[0].ids[:-1].tolist() == ids_of(f"<|im_start|>user\na{end}")


def test_progress_tells_documents_and_tokens_a_second(here, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    assert main([*CAPTURE, "--json", "-"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("documents: ")]
    assert len(told) == 5
    for count, line in enumerate(told, 1):
        start = f"documents: {count} of 5, "
        assert line.startswith(start)
        rate, unit = line.removeprefix(start).split()
        assert unit == "tokens/s"
        assert int(rate.replace(",", "")) > 0


def test_quiet_is_quiet(here, capsys):
    assert main([*CAPTURE, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--boundaries", "2,1"),
            "boundaries [2, 1]: layer ids [2, 1] do not ascend, expected each ",
        ),
        (
            ("--boundaries", "1,9"),
            "boundaries [1, 9]: layer id 9 is outside the target, expected 0",
        ),
        (
            ("--boundaries", "1,8"),
            "--boundaries ends with 8, the last state, which is always stored; expected 0 to 7",
        ),
        (("--boundaries", "a"), "--boundaries is 'a', expected numbers from 0, like 0,1,2"),
        (("--generate", "0"), "--generate is 0, expected a positive number"),
        (("--documents-per-shard", "0"), "--documents-per-shard is 0, expected a positive number"),
        (
            ("--max-length", "257"),
            "--max-length is 257, expected at most 256, the positions of the target",
        ),
        (
            ("--target", "nowhere"),
            "nowhere: no such directory, expected a target (config.json, wei",
        ),
        (("--text", "nowhere"), "nowhere: no such file, expected JSON lines"),
        (("--text",), "--text names nothing, expected files of JSON lines"),
        (("--output", "target"), "target: holds what is read, expected another place"),
        (
            ("--output", "chats.jsonl"),
            "chats.jsonl: found a file, expected a directory for the sha",
        ),
        (
            ("--chat-template", "nowhere"),
            "chats.jsonl:1: nowhere: no such file, expected a chat template",
        ),
    ],
)
def test_bad_options(here, capsys, options, message):
    assert error_of(capsys, *CAPTURE, *options).startswith(message)
    assert not Path("out").exists()


def test_a_bad_line_is_told_before_the_target_runs(here, capsys, monkeypatch):
    monkeypatch.setattr(capturing, "load_target", None)
    write_lines(Path("chats.jsonl"), [*CHATS, {"ids": [1, 99]}])
    assert error_of(capsys, *CAPTURE) == (
        "chats.jsonl:6: token 99 is outside the target, expected 0 to 31"
    )
    Path("chats.jsonl").write_text("\n")
    error = error_of(capsys, *CAPTURE)
    assert error == "chats.jsonl: found no text to read, expected JSON lines"


def test_targets_that_it_cannot_run(here, capsys):
    write_whole_target(here / "shallow", layers=3)
    error = error_of(capsys, "capture", "--target", "shallow", *CAPTURE[3:])
    assert error == (
        "a target of 3 layers has no default capture: (2, 1, 0) are not three ascending "
        "boundaries: --boundaries names them"
    )
    write_whole_target(here / "other", model_type="gemma2")
    error = error_of(capsys, "capture", "--target", "other", *CAPTURE[3:], "--engine", "jax")
    assert error == (
        "other/config.json: model_type is 'gemma2', expected one of llama, mistral, qwen2, qwen3"
    )


def test_without_torch_it_says_which_extra_another_family_needs(here, capsys, monkeypatch):
    write_whole_target(here / "other", model_type="gemma2")
    for name in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    end = (
        ", but torch and transformers cannot be imported, expected: pip install 'eagle3-jax[torch]'"
    )
    other = error_of(capsys, "capture", "--target", "other", *CAPTURE[3:])
    assert other == (
        f"other/config.json: model_type is 'gemma2', which runs through transformers{end}"
    )
    assert error_of(capsys, *CAPTURE, "--engine", "transformers") == (
        f"--engine is transformers{end}"
    )
    assert json_of(capsys, *CAPTURE)["engine"] == "jax"

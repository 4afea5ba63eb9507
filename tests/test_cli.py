"""The command line: exit codes, one-line errors, JSON, and figures that somebody else counted."""

import json
import os
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.targets import open_target
from eagle3_jax.cli import progress
from eagle3_jax.cli.demo import Demo
from eagle3_jax.cli.main import main
from eagle3_jax.cli.manners import complain, obey
from eagle3_jax.ops import project
from eagle3_jax.rollout import unroll
from tests.commands import error_of, json_of
from tests.samples import (
    BOUNDARIES,
    TABLE,
    text_of,
    texts,
    tiny_draft,
    write_draft,
    write_target,
    write_texts,
)

STEPS = 3
ONE_BAD = "1 of 1 documents are bad, expected at most 1.0% (--max-bad): "
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    """On a slow machine a line of progress would stand where an error stands alone."""
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A draft, its texts in two shards, and its target, for tests that only read."""
    root = tmp_path_factory.mktemp("shelf")
    draft = tiny_draft()
    documents = texts()
    write_draft(root / "draft", draft)
    write_texts(root / "shards/a.safetensors", documents[:3])
    write_texts(root / "shards/b.safetensors", documents[3:])
    write_target(root / "target", layers=8)
    return root


@pytest.fixture
def here(shelf, monkeypatch):
    monkeypatch.chdir(shelf)


def counted(draft, documents, slots, due_of=lambda document: document.ids):
    """Accuracies by counting column by column, each document alone, from the draft's answers.

    `due_of` gives the id that is due at each token of a document.
    """
    kernel = jnp.asarray(draft.params["lm_head"]["kernel"])
    ids = jnp.asarray(draft.vocab.target_ids)

    def answer(_, step):
        return ids[jnp.argsort(-project(step.head_input, kernel), axis=-1, stable=True)]

    shape = (len(documents), 99, STEPS)
    right, due, sayable, top_4, top_8 = (np.zeros(shape, bool) for _ in range(5))
    for d, document in enumerate(documents):
        answers = np.asarray(
            jax.jit(partial(unroll, draft.config, steps=STEPS, read=answer))(
                draft.params,
                document.states[:, slots].reshape(1, len(document.ids), -1),
                TABLE[document.ids][None],
            )
        )
        wanted = due_of(document)
        for k in range(STEPS):
            for column in range(len(document.ids) - 2 - k):
                token, said = wanted[column + 2 + k], answers[k, 0, column].tolist()
                counts = document.answer[column + 2 + k]
                due[d, column, k] = counts
                right[d, column, k] = counts and said[0] == token
                top_4[d, column, k] = counts and token in said[:4]
                top_8[d, column, k] = counts and token in said[:8]
                sayable[d, column, k] = counts and token in draft.vocab.target_ids
    joint = np.logical_and.accumulate(right, axis=2)
    reached = due.copy()
    reached[:, :, 1:] &= joint[:, :, :-1]
    return [
        {
            "step": k,
            "total": int(due[..., k].sum()),
            "teacher_forced": share(right, due, k),
            "joint": share(joint, due, k),
            "conditional": share(joint, reached, k),
            "coverage": share(sayable, due, k),
            "top_4": share(top_4, due, k),
            "top_8": share(top_8, due, k),
        }
        for k in range(STEPS)
    ]


def chosen_by(directory):
    """What a target's head makes of the last stored state before each token."""
    target = open_target(directory)
    norm, head = target.norm.read(), target.head.read()

    def due_of(document):
        state = np.float64(document.states[:, 3])
        normed = norm * state / np.sqrt(np.mean(state**2, axis=1, keepdims=True) + 1e-5)
        return np.concatenate([[0], np.argmax(normed @ np.float64(head).T, axis=1)[:-1]])

    return due_of


def share(part, whole, step):
    count = int(whole[..., step].sum())
    return int(part[..., step].sum()) / count if count else None


def rows(table):
    return [line.split() for line in table.splitlines()]


def percent(share):
    return "-" if share is None else f"{share:.1%}"


@cache
def counted_texts(slots):
    return counted(tiny_draft(), texts(), slots)


def assert_same_steps(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert {name: one[name] for name in other} == pytest.approx(other)
        assert one.keys() - other.keys() <= {"agreement"}


EVAL = ("eval", "--draft", "draft", "--steps", str(STEPS), "--shards", "shards")


def test_eval_counts_what_a_count_by_hand_counts(here, capsys):
    result = json_of(capsys, *EVAL)
    documents = texts()
    expected = counted_texts((0, 1, 2))
    assert expected[0]["joint"] > 0.4  # the texts were made so: not a comparison of zeros
    assert expected[1]["joint"] > 0
    assert_same_steps(result["steps"], expected)
    accepted = sum(step["joint"] for step in expected)
    assert result["accepted_per_round"] == pytest.approx(accepted)
    assert result["tokens_per_round"] == pytest.approx(accepted + 1)
    assert result["documents"] == 4
    assert result["tokens"] == 130
    assert result["answer_tokens"] == sum(int(d.answer.sum()) for d in documents)
    assert result["draft"] == "draft"
    assert result["shards"] == ["shards/a.safetensors", "shards/b.safetensors"]
    assert result["capture"] == {
        "slots": [0, 1, 2],
        "boundaries": [2, 4, 5],
        "source": f"config eagle_config.{LAYER_IDS} [1, 3, 4], numbered by output",
    }
    assert result["due"] == "the text's own tokens"
    assert [one["documents"] for one in result["files"]] == [3, 1]
    assert (result["layout"], result["last_state"], result["bad"]) == ("eagle3-jax", "pre_norm", [])
    assert result["embeddings"] == "boundary 0 of the shards"
    assert result["head"] == "the draft's own file, draft"
    assert result["notes"] == []
    assert result["seconds"] > 0


def test_eval_reads_other_slots_and_the_targets_embeddings_where_told(here, capsys, tmp_path):
    file = tmp_path / "made" / "result.json"
    file.parent.mkdir()
    arguments = (*EVAL, "--slots", "1,2,3", "--target", "target", "--json", str(file))
    assert main(arguments) == 0
    out, _ = capsys.readouterr()
    result = json.loads(file.read_text())
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
    expected = counted(tiny_draft(), texts(), (1, 2, 3), chosen_by(Path("target")))
    assert_same_steps(result["steps"], expected)
    assert result["due"].startswith("the likeliest token of target (last state stored before")
    assert result["capture"] == {"slots": [1, 2, 3], "boundaries": [4, 5, 8], "source": "--slots"}
    assert result["embeddings"] == "the target, target"
    names = ("coverage", "teacher_forced", "joint", "conditional", "top_4", "top_8", "agreement")
    for step in result["steps"]:
        shares = (step[name] for name in names)
        assert [str(step["step"]), str(step["total"]), *map(percent, shares)] in rows(out)
    for said in (
        f"accepted per round  {result['accepted_per_round']:.3f}",
        f"tokens per round    {result['tokens_per_round']:.3f}",
        f"walked              {result['walked']['tokens_per_round']:.3f} tokens per round over",
        "boundaries 4, 5, 8 (slots 1, 2, 3), by --slots; stored are 2, 4, 5, 8, the last before "
        "the final norm",
        "the target, target",
        "tokens 130",
    ):
        assert said in out


def test_a_drafts_own_embeddings_come_first_and_its_notes_are_told(tmp_path, capsys):
    draft = tiny_draft(embeddings=True)
    document = text_of(draft, 12, 5)
    write_draft(tmp_path / "draft", draft)
    config = tmp_path / "draft/config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps(stated | {"intermediate_size": 99}))
    misleading = document._replace(embeddings=np.zeros_like(document.embeddings))
    shard = write_texts(tmp_path / "a.safetensors", [misleading])
    arguments = ("eval", "--draft", str(tmp_path / "draft"), "--steps", str(STEPS))
    assert main([*arguments, "--shards", str(shard), "--json", str(tmp_path / "r.json")]) == 0
    result = json.loads((tmp_path / "r.json").read_text())
    assert_same_steps(result["steps"], counted(draft, [document], (0, 1, 2)))
    assert result["embeddings"] == f"the draft's own file, {tmp_path / 'draft'}"
    note = "intermediate_size is 99 in the config, 16 by the shape of gate_proj"
    assert result["notes"] == [note]
    assert note in capsys.readouterr().out


@pytest.mark.parametrize("head", ["tied", "target"])
def test_a_head_that_the_draft_has_not_got_is_the_targets(tmp_path, capsys, head):
    draft = tiny_draft(head=head, draft_vocab_size=len(TABLE))
    write_target(tmp_path / "target", layers=8)
    write_draft(tmp_path / "draft", draft)
    kernel = TABLE.T
    if head == "target":
        kernel = open_target(tmp_path / "target").head.read().T
    owner = draft._replace(params=draft.params | {"lm_head": {"kernel": kernel}})
    document = text_of(owner, 12, 5)
    misleading = document._replace(embeddings=np.zeros_like(document.embeddings))
    shard = write_texts(tmp_path / "a.safetensors", [misleading])
    arguments = ["eval", "--draft", str(tmp_path / "draft"), "--shards", str(shard)]
    missing = {
        "tied": "the draft's head is its embedding table, which is not given",
        "target": "the draft has no head, expected the target's head",
    }
    assert error_of(capsys, *arguments) == (
        f"{tmp_path / 'draft'}: {missing[head]}; --target with the target's directory gives it"
    )
    arguments += ["--target", str(tmp_path / "target"), "--steps", str(STEPS)]
    result = json_of(capsys, *arguments)
    due_of = chosen_by(tmp_path / "target")
    assert_same_steps(result["steps"], counted(owner, [document], (0, 1, 2), due_of))


def test_paths_are_told_from_the_working_directory(shelf, here, capsys):
    arguments = ("eval", "--draft", str(shelf / "draft"), "--shards", str(shelf / "nowhere"))
    message = error_of(capsys, *arguments)
    assert message == "nowhere: no such file or directory, expected shards"


def test_bad_drafts(here, capsys, tmp_path):
    def error(path):
        return error_of(capsys, "eval", "--draft", str(path), "--shards", "shards")

    assert error("nowhere") == (
        "nowhere: no such directory, expected a draft (config.json, weights)"
    )
    (tmp_path / "empty").mkdir()
    config = tmp_path / "empty/config.json"
    assert error(tmp_path / "empty") == f"{config}: no such file, expected a JSON file"
    assert error("target") == (
        "target: not an EAGLE-3 draft: found 'LlamaForCausalLM' without "
        "layers.0.hidden_norm.weight, expected a midlayer that reads [embedding, hidden]"
    )


def test_bad_shards(here, capsys, tmp_path):
    whole = Path("shards/a.safetensors").read_bytes()
    shard = tmp_path / "a.safetensors"

    def error(contents=None):
        if contents is not None:
            shard.write_bytes(contents)
        return error_of(capsys, "eval", "--draft", "draft", "--shards", str(shard))

    assert error() == f"{shard}: no such file or directory, expected shards"
    for contents in (b"a text file, and a long one\n" * 20, whole[:-100], b""):
        start = f"{shard}: found {len(contents)} bytes that are not whole safetensors ("
        assert error(contents).startswith(start)
    shard.unlink()
    write_draft(tmp_path / "other")
    shard = tmp_path / "other/model.safetensors"
    assert error().startswith(f"{shard}: found d2t, fc.weight, lm_head.weight, ")
    shard = tmp_path / "nothing"
    shard.mkdir()
    assert error().startswith(f"{shard}: found no shard, expected files that end in .safetensors")
    assert error_of(capsys, "eval", "--draft", "draft", "--shards") == (
        "--shards names nothing, expected shard files or directories of them"
    )


def test_shards_that_do_not_fit(here, capsys, tmp_path):
    document = texts()[0]
    shard = tmp_path / "a.safetensors"

    def error(changed=document, **changes):
        write_texts(shard, [changed], **changes)
        return error_of(capsys, "eval", "--draft", "draft", "--shards", str(shard))

    assert error(document._replace(states=np.zeros((20, 4, 12), np.float32))) == (
        f"{shard}: 3 states of width 12 make 36 features, expected 24 (3 x 8), which the draft "
        "draft reads"
    )
    assert error(boundaries=(2, 4, 6, 8)) == (
        f"{shard}: stores boundaries 2, 4, 6, 8, expected 2, 4, 5, which feed the draft draft"
    )
    assert error(boundaries=(2, 4, 6, 5), last_state="post_norm") == (
        f"{shard}: stores boundaries 2, 4, 6, 5, the last one after the final norm, expected "
        "2, 4, 5, which feed the draft draft"
    )
    assert error(boundaries=(2, 4, 5)) == (
        f"{shard}: hidden_states has shape [20, 4, 8], expected [tokens, 3, width], a state for "
        "each of the boundaries 2, 4, 5"
    )
    assert error(document._replace(embeddings=None)) == (
        f"{shard}: stores no embeddings (boundary 0) and the draft draft holds none, expected "
        "--target with the target's directory"
    )
    assert error(document._replace(embeddings=np.zeros((20, 6), np.float32))) == (
        f"{shard}: token embeddings have width 6, expected 8, the width of the draft draft"
    )
    foreign = document.ids.copy()
    foreign[3] = 40
    assert error(document._replace(ids=foreign)) == (
        f"{ONE_BAD}{shard}: document 0 holds token ids {foreign.min()} to 40, expected 0 to 31"
    )
    nothing = document._replace(
        ids=document.ids[:0], answer=document.answer[:0], states=document.states[:0]
    )._replace(embeddings=TABLE[:0])
    assert error(nothing) == f"{ONE_BAD}{shard}: document 0 holds no token, expected some"
    late = np.arange(20) < 2  # answer tokens that no column is to predict
    assert error(document._replace(answer=late)) == (
        f"{shard}: no column counts: the text holds no answer token that a draft could say"
    )


def test_shards_that_differ(here, capsys, tmp_path):
    shard = write_texts(tmp_path / "z.safetensors", texts()[:1], last_state="post_norm")
    assert error_of(capsys, *EVAL, str(shard)) == (
        f"{shard}: stores boundaries 2, 4, 5, 8 of width 8 (post_norm, float32), expected "
        "boundaries 2, 4, 5, 8 of width 8 (pre_norm, float32) as in shards/a.safetensors"
    )


def test_a_capture_that_nobody_states_is_asked_for(here, capsys, tmp_path):
    write_draft(tmp_path / "draft", tiny_draft(boundaries=None))
    arguments = ("eval", "--draft", str(tmp_path / "draft"), "--shards", "shards")
    assert error_of(capsys, *arguments) == (
        f"{tmp_path / 'draft'}: the config does not say which target states feed the draft, "
        "expected --slots with 3 of 0 to 3: shards/a.safetensors stores boundaries 2, 4, 5, 8"
    )


@pytest.mark.parametrize("slots", ["0,1", "1,2,4"])
def test_slots_outside_the_stored_states(here, capsys, slots):
    assert error_of(capsys, *EVAL, "--slots", slots) == (
        f"--slots is {slots.replace(',', ', ')}, expected 3 of 0 to 3: the draft reads 3 states, "
        "shards/a.safetensors stores boundaries 2, 4, 5, 8"
    )


def test_bad_targets(here, capsys, tmp_path):
    assert error_of(capsys, *EVAL, "--target", "nowhere") == (
        "nowhere: no such directory, expected a target (config.json, weights)"
    )
    target = write_target(tmp_path / "target", width=12, vocab_size=40, layers=8)
    assert error_of(capsys, *EVAL, "--target", str(target)) == (
        f"{target}: a target of vocabulary 40 and width 12, expected 32 and 8, which the draft "
        "draft was made for"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*EVAL, "--stps", "4"), "unrecognized options: --stps, 4; perhaps you meant --steps K"),
        (("eval",), "missing from eagle3-jax eval: --draft DIR --shards PATH..."),
        (
            (),
            "expected one of {demo, eval, diagnose, convert, inspect, capture, trace, compare, "
            "doctor}.",
        ),
        (
            ("--foo",),
            "unrecognized options: --foo; available subcommands: demo, eval, diagnose, convert, "
            "inspect, capture, trace, compare, doctor",
        ),
        (
            (*EVAL, "--steps", "many"),
            "error parsing --steps: invalid literal for int() with base 10: 'many'",
        ),
        ((*EVAL, "--steps", "0"), "--steps is 0, expected 1 or more"),
        ((*EVAL, "--slots", "a,b"), "--slots is 'a,b', expected numbers from 0, like 0,1,2"),
        ((*EVAL, "--json", "shards"), "shards: found a directory, expected a file to write"),
        (
            (*EVAL, "--json", "no/r.json"),
            "no: no such directory, expected one to write r.json in",
        ),
    ],
)
def test_bad_arguments(here, capsys, arguments, message):
    assert error_of(capsys, *arguments) == message


def test_a_file_that_may_not_be_read(here, capsys, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)  # unlike a file without permissions, not readable by root either
    write_draft(tmp_path / "draft")
    (tmp_path / "draft/config.json").unlink()
    (tmp_path / "draft/config.json").symlink_to(loop)
    arguments = ("eval", "--draft", str(tmp_path / "draft"), "--shards", "shards")
    message = error_of(capsys, *arguments)
    assert message == f"{tmp_path / 'draft/config.json'}: Too many levels of symbolic links"


def test_debug_shows_the_traceback_wherever_it_stands(here, capsys):
    for arguments in (
        ("--debug", "eval", "--draft", "nowhere", "--shards", "shards"),
        ("eval", "--draft", "nowhere", "--shards", "shards", "--debug"),
    ):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("Traceback")
        assert err.splitlines()[-1] == (
            "error: nowhere: no such directory, expected a draft (config.json, weights)"
        )


def test_quiet_prints_nothing(here, capsys):
    assert main(["--quiet", *EVAL]) == 0
    assert capsys.readouterr() == ("", "")


def test_interrupts_and_defects(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert obey(interrupted, debug=False) == 130
    assert capsys.readouterr().err == "error: interrupted\n"

    def defect():
        raise ValueError("not the user's")

    with pytest.raises(ValueError, match="not the user's"):
        obey(defect, debug=False)


def test_messages_of_several_lines_become_one(capsys):
    complain("one\n  two")
    assert capsys.readouterr().err == "error: one two\n"


def demo_directory(root, *, wired=BOUNDARIES[:3]):
    draft = tiny_draft()
    write_draft(root / "draft", draft._replace(boundaries=wired))
    write_texts(root / "shards/held_out.safetensors", texts())
    (root / "card.json").write_text(json.dumps({"target": "a tiny target"}))
    return root


def run_demo(directory, **options):
    demo = Demo(steps=STEPS, **options)
    return obey(partial(demo.run, directory), debug=False)


def test_demo_tells_the_right_reading_from_the_wrong_one(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demo_directory(tmp_path / "demo")
    assert run_demo(tmp_path / "demo", json=Path("-"), picture=tmp_path / "demo.png") == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["picture"] == "demo.png"
    assert ["picture", "demo.png"] in rows(err)
    for name, slots in (("right", (0, 1, 2)), ("wrong", (1, 2, 3))):
        assert_same_steps(result[name]["steps"], counted_texts(slots))
    assert result["clearly_better"] is True
    assert result["card"] == {"target": "a tiny target"}
    lengths = [result[name]["tokens_per_round"] for name in ("right", "wrong")]
    assert lengths[0] > lengths[1]
    for right, wrong in zip(result["right"]["steps"], result["wrong"]["steps"], strict=True):
        shares = (one[name] for name in ("joint", "conditional") for one in (right, wrong))
        assert [str(right["step"]), *map(percent, shares)] in rows(err)
    assert ["tokens", "per", "round", *(f"{length:.2f}" for length in lengths)] in rows(err)
    assert f"nothing warned, and tokens per round went from {lengths[0]:.2f} to" in err
    picture = (tmp_path / "demo.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 10_000
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["demo.png"]


def test_demo_says_no_when_the_right_reading_is_not_clearly_better(tmp_path, capsys):
    # A draft whose config names the last three states: both readings are the same.
    demo_directory(tmp_path / "demo", wired=BOUNDARIES[1:])
    assert run_demo(tmp_path / "demo", picture=tmp_path / "demo.png", quiet=True) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("missing", ["draft", "shards", "card.json"])
def test_demo_without_its_data(tmp_path, capsys, monkeypatch, missing):
    monkeypatch.chdir(tmp_path)
    for name in {"draft", "shards", "card.json"} - {missing}:
        Path(name).mkdir()
    assert run_demo(tmp_path) == 2
    assert capsys.readouterr().err == (
        f"error: {missing}: not there, expected it in the package: the demo's draft, shards and "
        "card ship with eagle3-jax\n"
    )


def test_progress_where_no_bar_can_be_drawn(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    with progress.progress("documents", 5, quiet=False) as advance:
        advance(2)
        advance(3)  # within the pause: no second line
    assert capsys.readouterr() == ("", "documents: 2 of 5\n")
    with progress.progress("documents", 5, quiet=True) as advance:
        advance(2)
    assert capsys.readouterr() == ("", "")


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "eagle3_jax", *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_json_alone_is_on_stdout_of_a_real_process(shelf):
    done = run(*EVAL, "--json", "-", cwd=shelf)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 4
    assert "tokens per round" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_real_process_says_one_line_and_exits_with_2(shelf):
    done = run("eval", "--draft", "nowhere", "--shards", "shards", cwd=shelf)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: nowhere: no such directory, expected a draft (config.json, weights)\n"
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_real_process_suggests_the_nearest_option(tmp_path, encoding):
    arguments = ("eval", "--draft", "a", "--shards", "b", "--stps", "4")
    done = run(*arguments, cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: unrecognized options: --stps, 4; perhaps you meant --steps K\n"


def test_help_loads_nothing_heavy(tmp_path):
    code = (
        "import sys; from eagle3_jax.cli.main import main; code = main(['eval', '--help'])\n"
        "heavy = {'jax', 'flax', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "assert code == 0 and not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

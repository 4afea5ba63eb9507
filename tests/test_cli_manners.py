"""What every command does alike: help, suggestions, completion, version, colours, silence."""

import os
import pty
import re
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from eagle3_jax.cli.demo import SHIPPED
from eagle3_jax.cli.main import main
from tests.commands import error_of
from tests.samples import texts, tiny_draft, write_draft, write_texts

COMMANDS = (
    "demo",
    "eval",
    "diagnose",
    "convert",
    "inspect",
    "capture",
    "trace",
    "compare",
    "doctor",
)
LISTED = ", ".join(COMMANDS)
EAGLE = (sys.executable, "-W", "error", "-m", "eagle3_jax")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Everything under the names that the examples use, as far as they are to be run here."""
    root = tmp_path_factory.mktemp("shelf")
    write_draft(root / "my-draft", tiny_draft())
    write_texts(root / "shards/a.safetensors", texts()[:3])
    drafts = [str(root / name) for name in ("my-draft", "specforge-draft")]
    assert main(["convert", *drafts, "--to", "specforge", "--quiet"]) == 0
    return root


def examples(capsys, command):
    """What stands under `example:`, the rest of the help in front of it."""
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [line.split() for line in out.split("\nexample:\n")[1].splitlines()]


def test_help_lists_every_command_on_a_line_of_its_own(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    listed = out.split("(required)")[1].split("\nexample:")[0]
    rows = [row for row in listed.splitlines() if row.strip()]  # no border where no UTF-8 goes
    assert [re.match(r" +• (\w+) +\S", row)[1] for row in rows] == list(COMMANDS)
    assert "\nexample:\n  eagle3-jax demo" in out
    assert "--version" in out
    assert "--completion bash" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_whose_options_are_known(command, capsys):
    for example in examples(capsys, command):
        assert example[:2] == ["eagle3-jax", command]
        told = error_of(capsys, *example[1:], "--no-such-option")
        assert told == "unrecognized options: --no-such-option"


def test_the_examples_run(shelf, capsys, monkeypatch):
    monkeypatch.chdir(shelf)
    commands = ("eval", "inspect", "convert", "trace")
    for example in [one for command in commands for one in examples(capsys, command)]:
        assert main(example[1:]) == 0, capsys.readouterr().err
    assert (shelf / "vllm-draft/config.json").exists()
    assert (shelf / "ours.safetensors").exists()
    assert (shelf / "result.json").exists()


def test_converters_is_convert(shelf, tmp_path):
    shutil.copytree(shelf / "specforge-draft", tmp_path / "specforge-draft")
    program = (sys.executable, "-m", "converters")
    told = subprocess.run([*program, "--help"], capture_output=True, text=True, check=True).stdout
    example = told.rstrip("\n").splitlines()[-1].split()
    assert example[:2] == ["eagle3-jax", "convert"]
    subprocess.run([*program, *example[2:], "--quiet"], cwd=tmp_path, check=True)
    assert (tmp_path / "vllm-draft/config.json").exists()


@pytest.mark.parametrize("flag", ["--debug", "--quiet"])
def test_flags_of_every_command_may_stand_before_what_is_none(capsys, flag):
    assert main([flag, "--version"]) == 0
    assert capsys.readouterr().out.startswith("eagle3-jax ")
    assert main([flag, "--completion", "bash"]) == 0
    assert "--draft" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"), [("evl", "eval"), ("evaluate", "eval"), ("docter", "doctor"), ("xyz", None)]
)
def test_a_command_that_is_none(capsys, word, meant):
    near = f"; perhaps you meant {meant}" if meant else ""
    told = f"{word!r}: no such command, expected one of {LISTED}{near}"
    assert error_of(capsys, word, "--draft", "a") == told
    assert error_of(capsys, "--quiet", word) == told


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("demo --pictur p.png", "--picture FILE"),
        ("eval --draft a --shards b --max-bat 1", "--max-bad SHARE"),
        ("diagnose --draft a --shards b --reprot c", "--report DIR"),
        ("convert a b --to vllm --overwrit", "--overwrite"),
        ("inspect a --target-layer 3", "--target-layers L"),
        ("capture --target a --text b --output c --generat 3", "--generate N"),
        ("trace --draft a --shards b --out c --document 3", "--documents N"),
        ("compare a b --tolerence 3", "--tolerance X"),
        ("doctor --jsn -", "--json FILE"),
        ("--quite demo", "--quiet"),
    ],
)
def test_an_option_that_is_none(capsys, arguments, meant):
    told = error_of(capsys, *arguments.split())
    assert told.startswith("unrecognized options: --")
    assert told.endswith(f"; perhaps you meant {meant}")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr() == (f"eagle3-jax {version('eagle3-jax')}\n", "")
    assert error_of(capsys, "--version", "demo").startswith("unrecognized options: --version")


def completed(script, *words):
    """What bash would offer for the last of some words."""
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tyro_eagle3_jax; echo "${COMPREPLY[@]}"'
    return subprocess.run(
        ["bash", "-c", f"{script}\n{ask}", "bash", *words],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()


def test_bash_completes_commands_and_options(capsys):
    assert main(["--completion", "bash"]) == 0
    script, err = capsys.readouterr()
    assert err == ""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert set(completed(script, "eagle3-jax", "")) >= set(COMMANDS)
    assert completed(script, "eagle3-jax", "diag") == ["diagnose"]
    assert completed(script, "eagle3-jax", "eval", "--dra") == ["--draft", "--draft-ms"]
    precisions = completed(script, "eagle3-jax", "eval", "--precision", "")
    assert precisions == ["float32", "bfloat16"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells(capsys, shell):
    assert main(["--completion", shell]) == 0
    script, err = capsys.readouterr()
    assert err == ""
    for word in (*COMMANDS, "--draft"):
        assert f"'{word}'" in script
    assert "\nexample:\n" not in script


@pytest.mark.parametrize("shells", [(), ("tcsh",), ("bash", "zsh")])
def test_completion_for_a_shell_that_is_none(capsys, shells):
    told = f"--completion is {' '.join(shells)!r}, expected one of bash, zsh, fish"
    assert error_of(capsys, "--completion", *shells) == told


@pytest.mark.parametrize("arguments", [("--help",), ("eval", "--help"), ("--completion", "bash")])
def test_a_reader_that_has_gone_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*EAGLE, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def on_a_terminal(*arguments, **environment):
    """Exit code and output of a process whose stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "NO_COLOR": ""} | environment
    process = subprocess.Popen([*EAGLE, *arguments], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    said = b""
    with open(ours, "rb", buffering=0) as terminal:
        try:
            while piece := terminal.read(1 << 16):
                said += piece
        except OSError:  # Linux's way to say that the other side has closed
            pass
    return process.wait(), said.decode()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("--help", 0),
        ("eval --help", 0),
        ("eval --draft a --shards b --stps 4", 2),
        (f"inspect {SHIPPED / 'draft'}", 0),
    ],
)
def test_no_escape_codes_with_no_color(arguments, code):
    found, said = on_a_terminal(*arguments.split(), NO_COLOR="1")
    assert (found, "\x1b" in said) == (code, False)
    assert said


@pytest.mark.parametrize("arguments", ["--help", f"inspect {SHIPPED / 'draft'}"])
def test_escape_codes_on_a_terminal_alone(arguments):
    assert "\x1b[" in on_a_terminal(*arguments.split())[1]
    done = subprocess.run([*EAGLE, *arguments.split()], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout + done.stderr


def test_paths_are_relative_where_that_is_shorter(shelf, capsys, monkeypatch):
    monkeypatch.chdir(shelf)
    assert main(["inspect", str(shelf / "my-draft"), str(shelf / "specforge-draft")]) == 0
    out, _ = capsys.readouterr()
    assert "specforge-draft" in out
    assert str(shelf) not in out


def test_quiet_is_silent(shelf, capsys, monkeypatch):
    monkeypatch.chdir(shelf)
    for command in (
        "inspect my-draft --target-layers 32 --target-class llama",
        "convert my-draft quiet-draft --to native",
        "trace --draft my-draft --shards shards --out one.safetensors",
        "trace --draft my-draft --shards shards --out two.safetensors",
        "compare one.safetensors two.safetensors",
    ):
        assert main(["--quiet", *command.split()]) == 0
        assert capsys.readouterr() == ("", "")

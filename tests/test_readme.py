"""Every `eagle3-jax` command of the README, run as it is printed."""

import re
import shlex
from pathlib import Path

import pytest

from eagle3_jax.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b(PATH|DIR|TARGET|DRAFT|FILE)\b|chats\.jsonl")


def commands() -> list[str]:
    lines = [
        line
        for block in FENCE.findall((ROOT / "README.md").read_text())
        for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("eagle3-jax ")]


RUNNABLE = [command for command in commands() if not PLACEHOLDER.search(command)]
OTHERS = [command for command in commands() if PLACEHOLDER.search(command)]


@pytest.fixture(autouse=True)
def _checkout(tmp_path, monkeypatch):
    """A place that looks like a checkout, where a command may write."""
    (tmp_path / "eagle3_jax").symlink_to(ROOT / "eagle3_jax")
    monkeypatch.chdir(tmp_path)


def run(command: str) -> int:
    return main(shlex.split(command.replace("...", ""))[1:])


def test_there_are_commands_of_both_kinds():
    assert {command.split()[1] for command in RUNNABLE} >= {
        "demo",
        "inspect",
        "convert",
        "diagnose",
    }
    assert {command.split()[1] for command in OTHERS} >= {"eval", "capture"}


@pytest.mark.parametrize("command", RUNNABLE)
def test_a_command_runs_as_printed(command, capsys):
    code = run(command)
    out, err = capsys.readouterr()
    # A diagnosis that names a fault says no; everything else is fine.
    assert code == (1 if command.startswith("eagle3-jax diagnose") else 0), err
    assert "error" not in err
    assert out


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_with_places_to_fill_in_fails_for_want_of_them_alone(command, capsys):
    assert run(command) == 2
    error = capsys.readouterr().err
    assert re.search(r"no such|not there|matches no", error), error
    assert "unrecognized" not in error

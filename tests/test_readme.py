"""Every `eagle3-jax` command of the README, run as it is printed, says what stands under it."""

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from eagle3_jax.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"\b(PATH|DIR|TARGET|DRAFT|FILE)\b|chats\.jsonl")
SAYS_NO = ("diagnose", "compare")  # of a draft that is wired wrongly, and of two that differ


class Block(NamedTuple):
    """Commands that stand together, and the output that stands under them, where there is one."""

    commands: list[str]
    printed: str


def blocks() -> list[Block]:
    fences = [*FENCE.findall((ROOT / "README.md").read_text()), ("", "")]
    return [
        Block(
            [line for line in body.splitlines() if line.startswith("eagle3-jax ")],
            printed if language_of_next == "text" else "",
        )
        for (language, body), (language_of_next, printed) in pairwise(fences)
        if language == "sh"
    ]


def named(block: Block) -> str:
    return block.commands[-1].split()[1]


RUNNABLE = [
    block._replace(commands=[c for c in block.commands if not PLACEHOLDER.search(c)])
    for block in blocks()
    if not all(map(PLACEHOLDER.search, block.commands))
]
OTHERS = [c for block in blocks() for c in block.commands if PLACEHOLDER.search(c)]


@pytest.fixture(autouse=True)
def _checkout(tmp_path, monkeypatch):
    """A place that looks like a checkout, where a command may write."""
    (tmp_path / "eagle3_jax").symlink_to(ROOT / "eagle3_jax")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def run(command: str) -> int:
    return main(shlex.split(command.replace("...", ""))[1:])


def spaced(text: str) -> str:
    """Words alone: where a line was broken does not count."""
    return " ".join(text.split())


def test_there_are_commands_of_both_kinds():
    runnable = {command.split()[1] for block in RUNNABLE for command in block.commands}
    assert runnable >= {"demo", "inspect", "eval", "diagnose", "trace", "compare", "convert"}
    assert {command.split()[1] for command in OTHERS} >= {"eval", "capture"}
    assert {named(block) for block in RUNNABLE if block.printed} >= {
        "demo",
        "inspect",
        "eval",
        "diagnose",
        "compare",
    }


@pytest.mark.parametrize("block", RUNNABLE, ids=named)
def test_commands_run_and_say_what_is_printed(block, capsys):
    out = ""
    for command in block.commands:
        code = run(command)
        out, err = capsys.readouterr()
        assert code == (1 if command.split()[1] in SAYS_NO else 0), err
        assert "error" not in err
        assert out
    rest = spaced(out)
    for part in filter(None, map(spaced, block.printed.split("[...]"))):
        _, found, rest = rest.partition(part)
        assert found == part, f"{part!r} is not in what {named(block)} says, or not in this order"


@pytest.mark.parametrize("command", OTHERS)
def test_a_command_with_places_to_fill_in_fails_for_want_of_them_alone(command, capsys):
    assert run(command) == 2
    error = capsys.readouterr().err
    assert re.search(r"no such|not there|matches no", error), error
    assert "unrecognized" not in error

"""The `eagle3-jax` command: arguments in, exit code out.

Only names and types are imported here; what computes is imported by the command that runs, so
that `--help` answers at once.
"""

import contextlib
import difflib
import io
import os
import re
import sys
from collections.abc import Sequence
from functools import partial

import tyro

from eagle3_jax.cli.capture import Capture
from eagle3_jax.cli.compare import Compare
from eagle3_jax.cli.convert import Convert
from eagle3_jax.cli.demo import Demo
from eagle3_jax.cli.diagnose import Diagnose
from eagle3_jax.cli.doctor import PROGRAM, Doctor, own_version
from eagle3_jax.cli.eval import Eval
from eagle3_jax.cli.inspect import Inspect
from eagle3_jax.cli.manners import FINE, GLOBAL_FLAGS, obey
from eagle3_jax.cli.trace import Trace
from eagle3_jax.errors import InputError

Command = Demo | Eval | Diagnose | Convert | Inspect | Capture | Trace | Compare | Doctor
_EXAMPLES = {
    "demo": Demo.example,
    "eval": Eval.example,
    "diagnose": Diagnose.example,
    "convert": Convert.example,
    "inspect": Inspect.example,
    "capture": Capture.example,
    "trace": Trace.example,
    "compare": Compare.example,
    "doctor": Doctor.example,
}
_DESCRIPTION = "An exact, readable EAGLE-3 draft model in JAX: what a draft is worth, and why."
_SHELLS = ("bash", "zsh", "fish")
_BESIDES = (
    "\n\n--version tells which version this is; --completion bash (zsh, fish) prints a script by\n"
    "which that shell completes commands and options."
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; by default the process's own.

    Returns:
        0 fine, 1 the check itself says no, 2 bad input, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    return obey(partial(_run, arguments), debug="--debug" in arguments)


def _run(arguments: list[str]) -> int:
    command = parse(arguments)
    return FINE if command is None else command.run()


def parse(arguments: list[str]) -> Command | None:
    """Read arguments; print what is asked for instead of a command: help, version, completion.

    Args:
        arguments: those after the program's name.

    Returns:
        The command with its options, or nothing after what was printed.

    Raises:
        InputError: when they are no command of this program.
    """
    arguments = _flags_last(arguments)
    if arguments == ["--version"]:
        print(PROGRAM, own_version())
        return None
    if arguments[:1] == ["--completion"]:
        arguments = _completion(arguments[1:])
    _require_command(arguments)
    refused = io.StringIO()
    # tyro colours its help on every terminal; this switch is its own way to turn that off.
    tyro._experimental_options["ansi_codes"] = not os.environ.get("NO_COLOR")
    try:
        with contextlib.redirect_stderr(refused):
            return tyro.cli(
                Command,
                prog=PROGRAM,
                description=None if _named(arguments) else _DESCRIPTION,
                args=arguments,
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as leaving:
        if leaving.code:
            raise InputError(one_line(refused.getvalue())) from None
    if {"-h", "--help"} & set(arguments):
        named = _named(arguments)
        print(f"\nexample:\n  {_EXAMPLES[named or 'demo']}{'' if named else _BESIDES}")
    return None


def _completion(shells: list[str]) -> list[str]:
    """The arguments at which tyro prints the script for a shell."""
    if len(shells) != 1 or shells[0] not in _SHELLS:
        raise InputError(
            f"--completion is {' '.join(shells)!r}, expected one of {', '.join(_SHELLS)}"
        )
    return ["--tyro-write-completion", *shells, "-"]


def _require_command(arguments: list[str]) -> None:
    """Refuse a first word that names no command, with the one that it resembles."""
    for word in arguments[:1]:
        if not word.startswith("-") and word not in _EXAMPLES:
            near = difflib.get_close_matches(word, _EXAMPLES, n=1)
            raise InputError(
                f"{word!r}: no such command, expected one of {', '.join(_EXAMPLES)}"
                f"{f'; perhaps you meant {near[0]}' if near else ''}"
            )


def one_line(box: str) -> str:
    """What a parser's error box says, in one line.

    Its rows up to the first rule or blank row tell what is wrong; of what follows, the nearest
    option and the commands to choose from are worth a word. Rows that are indented twice explain
    an option, which `--help` does better.

    Args:
        box: drawn in Unicode, or with blanks and hyphens where stdout is not UTF-8.
    """
    lines = [_COLOUR.sub("", line) for line in box.splitlines()]
    # Inside the borders, or under the title and its rule; every row has a margin of two.
    framed = lines[1:-1] if lines[0].startswith("╭") else lines[2:]
    sections: list[list[str]] = [[]]
    for row in (line.rstrip("│ ")[2:] for line in framed):
        if set(row) <= set("─-"):
            sections.append([])
        elif not row.startswith(" " * 8):
            sections[-1].append(row.strip())
    said = " ".join(sections[0])
    for first, *rest in filter(None, sections[1:]):
        if first.startswith(("Perhaps you meant", "Arguments similar")):
            said += f"; perhaps you meant {rest[0]}" if rest and rest[0] not in said else ""
        elif first.startswith(("Available subcommands", "Unrecognized options")):
            said += "; " + " ".join([_lower(first), *rest])
    return _lower(said)


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _named(arguments: list[str]) -> str | None:
    return arguments[0] if arguments and arguments[0] in _EXAMPLES else None


def _flags_last(arguments: list[str]) -> list[str]:
    """Flags of every command may stand before its name: each command reads them behind it.

    What takes the place of a command has no use for them.
    """
    count = 0
    while count < len(arguments) and arguments[count] in GLOBAL_FLAGS:
        count += 1
    rest = arguments[count:]
    if rest[:1] in (["--version"], ["--completion"]):
        return rest
    return rest[:1] + arguments[:count] + rest[1:]

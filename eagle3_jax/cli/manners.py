"""What every command does alike: flags, exit codes, one-line errors, JSON, paths.

Results for people go to stdout, progress and errors to stderr. With `--json -` stdout carries
the JSON and nothing else, and what is meant for people moves to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from eagle3_jax.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

FINE, SAYS_NO, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
_PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended
GLOBAL_FLAGS = ("--debug", "--quiet")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every command."""

    json: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Write the figures as JSON; - writes them to stdout, and the tables to stderr."""
    debug: bool = False
    """Show the traceback of an error."""
    quiet: bool = False
    """Print no table and no progress: errors and --json only."""


def obey(work: Callable[[], int], *, debug: bool) -> int:
    """Run a command and turn what users can mend into one line on stderr.

    Args:
        work: the command; its result is the exit code.
        debug: show tracebacks too.

    Returns:
        The command's exit code, 2 after bad input, 130 after an interrupt.
    """
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; without this the interpreter complains once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except (InputError, OSError) as error:
        if debug:
            traceback.print_exception(error)
        complain(_told(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    return code


def complain(message: str) -> None:
    """One line on stderr."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)


def near(path: Path) -> Path:
    """The same path, relative to the working directory where that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def cache_directory() -> Path:
    """Where slow things are kept: `$EAGLE3_JAX_CACHE`, or `~/.cache/eagle3-jax`.

    Raises:
        InputError: when it is in the home of a user that the system does not know.
    """
    named = os.environ.get("EAGLE3_JAX_CACHE") or "~/.cache/eagle3-jax"
    try:
        return Path(named).expanduser()
    except RuntimeError:
        raise InputError(
            f"{named}: found no such home directory, expected EAGLE3_JAX_CACHE to name another one"
        ) from None


def people_console(options: Options) -> Console:
    """Where tables go: stdout, or stderr when stdout carries JSON; nowhere with `--quiet`."""
    from rich.console import Console

    return Console(
        stderr=_to_stdout(options.json),
        quiet=options.quiet,
        highlight=False,
        # Under NO_COLOR rich itself leaves bold and dim, which are escape codes, too.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def require_destination(path: Path | None) -> None:
    """Refuse a place for a file that cannot be written, before hours are spent on its contents.

    Raises:
        InputError: when it is a directory, or stands in none.
    """
    if path is None or _to_stdout(path):
        return
    if path.is_dir():
        raise InputError(f"{path}: found a directory, expected a file to write")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent}: no such directory, expected one to write {path.name} in")


def write_result(path: Path | None, value: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all, where `--json` says."""
    if path is None:
        return
    if _to_stdout(path):
        print(json.dumps(value, indent=2, allow_nan=False))
        return
    from converters.files import write_json

    write_json(path, value)


def _to_stdout(path: Path | None) -> bool:
    return path == Path("-")


def _told(error: InputError | OSError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)

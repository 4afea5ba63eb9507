"""A progress bar on stderr for work that takes long enough to wonder."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_PATIENCE = 2.0  # seconds before anything shows
_PAUSE = 10.0  # seconds between lines where no bar can be drawn


@contextmanager
def progress(what: str, total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how much of some work is done, once it has taken two seconds.

    On a terminal it is a bar that goes away at the end; elsewhere a line now and then.

    Args:
        what: the work and its unit, "documents".
        total: how many there are.
        quiet: show nothing.

    Yields:
        A function to call with the number of units done since its last call.
    """
    console = Console(stderr=True, quiet=quiet, highlight=False)
    shown = _bar(what, total, console) if console.is_terminal else _lines(what, total, console)
    with shown as advance:
        yield advance


@contextmanager
def _bar(what: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task = bar.add_task(what, total=total)
    # A timer, because the longest wait is the first: compilation, before any unit is done.
    starter = threading.Timer(_PATIENCE, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield lambda done: bar.advance(task, done)
    finally:
        starter.cancel()
        starter.join()
        bar.stop()


@contextmanager
def _lines(what: str, total: int, console: Console) -> Iterator[Callable[[int], None]]:
    finished = 0
    due = time.monotonic() + _PATIENCE

    def advance(done: int) -> None:
        nonlocal finished, due
        finished += done
        if time.monotonic() >= due:
            console.print(f"{what}: {finished} of {total}")
            due = time.monotonic() + _PAUSE

    yield advance

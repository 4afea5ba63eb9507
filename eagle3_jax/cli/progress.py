"""A progress bar on stderr for work that takes long enough to wonder."""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_PATIENCE = 2.0  # seconds before anything shows
_PAUSE = 10.0  # seconds between lines where no bar can be drawn


class Advance(Protocol):
    """Tells a progress bar what was done since its last call."""

    def __call__(self, done: int, amount: int = 0, /) -> None:
        """Count units of work, and an amount of what the rate is told in."""


@contextmanager
def progress(
    what: str, total: int | None, *, quiet: bool, rate: str | None = None
) -> Iterator[Advance]:
    """Show how much of some work is done, once it has taken two seconds.

    On a terminal it is a bar that goes away at the end; elsewhere a line now and then.

    Args:
        what: the work and its unit, "documents".
        total: how many there are; `None` where nobody knows.
        quiet: show nothing.
        rate: what comes in amounts, whose rate is shown too, "tokens".

    Yields:
        A function to call with the number of units done since its last call, and their amount.
    """
    console = Console(stderr=True, quiet=quiet, highlight=False)
    draw = _bar if console.is_terminal else _lines
    shown: AbstractContextManager[Advance] = draw(what, total, console, _Rate(rate))
    with shown as advance:
        yield advance


class _Rate:
    """An amount by the time that it took, from the beginning on."""

    def __init__(self, unit: str | None) -> None:
        self.unit, self.amount, self.begun = unit, 0, time.monotonic()

    def told(self) -> str:
        if self.unit is None or not self.amount:
            return ""
        return f"{self.amount / max(time.monotonic() - self.begun, 1e-9):,.0f} {self.unit}/s"


@contextmanager
def _bar(what: str, total: int | None, console: Console, rate: _Rate) -> Iterator[Advance]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task = bar.add_task(what, total=total, rate="")

    def advance(done: int, amount: int = 0, /) -> None:
        rate.amount += amount
        bar.update(task, advance=done, rate=rate.told())

    # A timer, because the longest wait is the first: compilation, before any unit is done.
    starter = threading.Timer(_PATIENCE, bar.start)
    starter.daemon = True
    starter.start()
    try:
        yield advance
    finally:
        starter.cancel()
        starter.join()
        bar.stop()


@contextmanager
def _lines(what: str, total: int | None, console: Console, rate: _Rate) -> Iterator[Advance]:
    finished = 0
    due = time.monotonic() + _PATIENCE

    def advance(done: int, amount: int = 0, /) -> None:
        nonlocal finished, due
        finished += done
        rate.amount += amount
        if time.monotonic() >= due:
            told = rate.told()
            whole = "" if total is None else f" of {total}"
            console.print(f"{what}: {finished}{whole}{f', {told}' if told else ''}")
            due = time.monotonic() + _PAUSE

    yield advance

"""Scores as tables for people."""

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from converters.feeding import Capture
from converters.listing import listed
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.lines import print_lines
from eagle3_jax.cli.manners import near
from eagle3_jax.cli.scoring import Score

_HEADINGS = {
    "teacher_forced": "teacher-\nforced",
    "conditional": "condi-\ntional",
    "top_4": "top-4",
    "top_8": "top-8",
    "agreement": "agree-\nment",
}
_LENGTHS = ("walked tokens\nper round", "95%")
_GROUPS = 20  # rows of a table of groups


def print_score(console: Console, inputs: Inputs, score: Score) -> None:
    """One evaluation: a row a step, then what it amounts to, and what was read."""
    shares = ["coverage", "teacher_forced", "joint", "conditional", "top_4", "top_8"]
    shares += ["agreement"] if inputs.target_head is not None else []
    table = _figures("step", "columns", *(_HEADINGS.get(name, name) for name in shares))
    for step in score.figures["steps"]:
        table.add_row(
            str(step["step"]), f"{step['total']:,}", *(_percent(step[name]) for name in shares)
        )
    console.print(table)
    ranges = score.figures["intervals"]
    walked = score.figures["walked"]
    lines = {
        "accepted per round": f"{score.figures['accepted_per_round']:.3f} draft tokens",
        "tokens per round": (
            f"{score.figures['tokens_per_round']:.3f} (accepted + 1), the mean over columns"
            f"{_range(ranges['tokens_per_round'])}"
        ),
        "walked": (
            f"{_length(walked['tokens_per_round'])} tokens per round over the "
            f"{walked['rounds']:,} rounds of a server{_range(ranges['walked_tokens_per_round'])}"
        ),
        "due": inputs.due,
        "capture": described(inputs, score.capture),
        "embeddings": inputs.embeddings,
        "head": inputs.head,
        "documents": read(inputs, score),
    }
    bad = tuple(f"left out: {told}" for told in score.bad)
    print_lines(console, lines, (*inputs.draft.notes, *bad))


def print_groups(console: Console, score: Score) -> None:
    """A row for each path given, where there are several."""
    groups = score.groups
    if len(groups) < 2:
        return
    console.print()
    table = _figures("shards", "documents", "joint\nstep 0", "95%", *_LENGTHS)
    table.columns[0].justify = "left"
    table.columns[0].overflow = "fold"  # a path stays whole, to be told from another
    for group in groups[:_GROUPS]:
        ranges = group.get("intervals", {})
        table.add_row(
            Text(group["path"]),  # brackets of a pattern are no markup
            f"{group['documents']:,}",
            _percent(group.get("joint_0")),
            _between(ranges.get("joint_0"), _percent),
            _length(group.get("walked_tokens_per_round")),
            _between(ranges.get("walked_tokens_per_round"), _length),
        )
    console.print(table)
    if len(groups) > _GROUPS:
        console.print(f"and {len(groups) - _GROUPS} more, which --json has")


def print_speeds(console: Console, speed: dict[str, Any]) -> None:
    """A row for each number of draft steps, and which is best."""
    console.print()
    table = _figures(
        "draft\nsteps", "tokens\nper round", "ms\nper round", "tokens\nper second", "speed-up"
    )
    for step in speed["by_steps"]:
        best = "*" if step["steps"] == speed["best_steps"] else " "
        shown = ("tokens_per_round", "round_ms", "tokens_per_second", "speedup")
        table.add_row(f"{best}{step['steps']}", *(_length(step[name]) for name in shown))
    console.print(table)
    print_lines(console, {"best": _best(speed)}, ())


def _best(speed: dict[str, Any]) -> str:
    """The best number of draft steps, in words."""
    best = speed["best_steps"]
    if best is None:
        return "not known: no answer is long enough for a round"
    if best == 0:
        return "0 draft steps: no draft at all is as fast as any number of them"
    gain = speed["by_steps"][best]["speedup"]
    plural = "s" if best > 1 else ""
    return f"{best} draft step{plural}: {gain:.2f} times the tokens per second of no draft"


def print_reckoning(console: Console, found: dict[str, Any]) -> None:
    """A framework's figures, under its own names."""
    console.print()
    lines = {
        name: "-" if figure is None else f"{figure:.6f}"
        for name, figure in found["figures"].items()
    }
    print_lines(console, {f"as {found['framework']}": found["source"], **lines}, ())


def print_comparison(
    console: Console, right: Score, wrong: Score, lines: dict[str, str], notes: tuple[str, ...]
) -> None:
    """Two readings of the same shards, side by side."""
    table = _figures(
        "step", "joint\nright", "joint\nwrong", "conditional\nright", "conditional\nwrong"
    )
    for one, other in zip(right.figures["steps"], wrong.figures["steps"], strict=True):
        shares = (one["joint"], other["joint"], one["conditional"], other["conditional"])
        table.add_row(str(one["step"]), *map(_percent, shares))
    table.add_section()
    for name in ("accepted_per_round", "tokens_per_round"):
        lengths = (f"{score.figures[name]:.2f}" for score in (right, wrong))
        table.add_row(name.replace("_", " "), *lengths)
    console.print(table)
    print_lines(console, lines, notes)


def described(inputs: Inputs, capture: Capture) -> str:
    """A capture in words."""
    info, file = inputs.shards.info, inputs.shards.files[0]
    slots = f"slots {listed(capture.slots)}"
    if capture.boundaries is not None:
        slots = f"boundaries {listed(capture.boundaries)} ({slots})"
    stored = f"{file.states} states" if info.boundaries is None else listed(info.boundaries)
    last = {
        "pre_norm": ", the last before the final norm",
        "post_norm": ", the last after the final norm",
        "absent": ", no last state among them",
        None: "",
    }[info.last_state]
    return f"{slots}, by {capture.source}; stored are {stored}{last}"


def read(inputs: Inputs, score: Score) -> str:
    """What was read, in words."""
    files = inputs.shards.files
    names = ", ".join(str(near(file.path)) for file in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return (
        f"{score.documents:,}, tokens {score.tokens:,}, of which answer tokens "
        f"{score.answer_tokens:,}, from {names}{more}; {score.seconds:.1f} s"
    )


def _figures(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _percent(share: Any) -> str:
    return "-" if share is None else f"{share:.1%}"


def _length(tokens: float | None) -> str:
    return "-" if tokens is None else f"{tokens:.3f}"


def _range(interval: list[float] | None) -> str:
    """A 95% interval, where there is one."""
    return "" if interval is None else f"; 95%: {_between(interval, _length)}"


def _between(interval: list[float] | None, told: Callable[[float], str]) -> str:
    return "-" if interval is None else f"{told(interval[0])} to {told(interval[1])}"

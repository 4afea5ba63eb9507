"""Scores as tables for people."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eagle3_jax.cli.inputs import Inputs, listed
from eagle3_jax.cli.lines import print_lines
from eagle3_jax.cli.manners import near
from eagle3_jax.cli.scoring import Capture, Score


def print_score(console: Console, inputs: Inputs, score: Score) -> None:
    """One evaluation: a row a step, then what it amounts to, and what was read."""
    table = _figures("step", "columns", "coverage", "teacher-forced", "joint", "conditional")
    for step in score.figures["steps"]:
        shares = ("coverage", "teacher_forced", "joint", "conditional")
        table.add_row(
            str(step["step"]), f"{step['total']:,}", *(_percent(step[name]) for name in shares)
        )
    console.print(table)
    lines = {
        "accepted per round": f"{score.figures['accepted_per_round']:.3f} draft tokens",
        "tokens per round": f"{score.figures['tokens_per_round']:.3f} (accepted + 1)",
        "capture": described(inputs, score.capture),
        "embeddings": inputs.embeddings,
        "head": inputs.head,
        "documents": read(inputs, score),
    }
    print_lines(console, lines, inputs.draft.notes)


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
    info = inputs.shards[0].info
    last = "before" if info.last_state == "pre_norm" else "after"
    return (
        f"boundaries {listed(capture.boundaries)} (slots {listed(capture.slots)}), by "
        f"{capture.source}; stored are {listed(info.boundaries)}, the last {last} the final norm"
    )


def read(inputs: Inputs, score: Score) -> str:
    """What was read, in words."""
    names = ", ".join(str(near(shard.path)) for shard in inputs.shards[:3])
    more = f" and {len(inputs.shards) - 3} more" if len(inputs.shards) > 3 else ""
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

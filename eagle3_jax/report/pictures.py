"""Pictures of results, drawn without a display."""

import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter, StrMethodFormatter

_COLORS = ("#17457a", "#f0a24e")  # dark and light as well as blue and orange: apart in grey too
_PALE = "#b9c7d8"
_QUIET = "#555555"
_GRID = "#e4e4e4"
_BAR = 0.38
_LEFT = 0.025
_WIDE = 8.0  # inches, of every picture
_LINE = 0.17  # inches of a line of text
_LETTERS = 110  # of small text in a line
_BOLD_LETTERS = 90


class Bar(NamedTuple):
    """One reading among others.

    Attributes:
        told: which, in words.
        length: tokens per round.
        role: the best supported one, the configured one where that is another, or one beside them.
    """

    told: str
    length: float
    role: Literal["best", "configured", "other"]


class Spread(NamedTuple):
    """The norms of one slot's states; `None` where no state is there, or none is finite.

    Attributes:
        name: of the slot.
        median: past position 0.
        low: the 5% quantile, past position 0.
        high: the 95% quantile, past position 0.
        first: the median at position 0.
    """

    name: str
    median: float | None
    low: float | None
    high: float | None
    first: float | None


def draw_readings(readings: Mapping[str, Mapping[str, Any]], *, title: str, story: str) -> Figure:
    """Joint accuracy by step of one or two readings of the same states.

    Args:
        readings: name -> figures as `metrics.figures` has them, of as many steps each.
        title: what is seen, in words.
        story: a sentence or two under the title.

    Returns:
        The figure, on an Agg canvas.
    """
    figure = _blank(5.2)
    axes = figure.add_axes((0.09, 0.1, 0.88, 0.66))
    middle = (len(readings) - 1) / 2
    colors = _COLORS[: len(readings)]
    for place, ((name, found), color) in enumerate(zip(readings.items(), colors, strict=True)):
        _draw_bars(axes, name, found, color, (place - middle) * _BAR)
    _dress(axes, steps=max(len(found["steps"]) for found in readings.values()))
    _head(figure, title, story)
    return figure


def draw_lengths(bars: Sequence[Bar], *, title: str, story: str) -> Figure:
    """Tokens per round of readings, a bar each, in the order given.

    Args:
        bars: one or more.
        title: what is seen, in words.
        story: a sentence or two under the title.

    Returns:
        The figure, on an Agg canvas.
    """
    labels = [fill(bar.told, _BOLD_LETTERS) for bar in bars]
    lines = [label.count("\n") + 1 for label in labels]
    head, foot = 0.62 + _LINE * (_lines(story) + 0.5), 0.5
    tall = head + sum(_LINE * count + 0.27 for count in lines) + foot
    figure = _blank(tall)
    axes = figure.add_axes((_LEFT, foot / tall, 0.9, 1 - (head + foot) / tall))
    axes.set_ylim(tall - head - foot, 0)  # inches from the top, so that labels have their place
    axes.set_xlim(0, max(bar.length for bar in bars) * 1.02)
    colors = {"best": _COLORS[0], "configured": _COLORS[1], "other": _PALE}
    top = 0.0
    for bar, label, count in zip(bars, labels, lines, strict=True):
        weight = "normal" if bar.role == "other" else "bold"
        top += _LINE * count
        axes.text(0, top - 0.03, label, fontsize=9.5, weight=weight, va="bottom", parse_math=False)
        drawn = axes.barh(top + 0.07, bar.length, height=0.13, color=colors[bar.role])
        axes.bar_label(drawn, [f"{bar.length:.2f}"], padding=4, fontsize=9.5, weight=weight)
        top += 0.27
    axes.set_yticks([])
    axes.set_xlabel("tokens per round: accepted draft tokens and the target's own", color=_QUIET)
    _quieten(axes, along="x")
    _head(figure, title, story)
    return figure


def draw_norms(slots: Sequence[Spread], *, title: str, story: str) -> Figure:
    """Norms of stored states, slot by slot, on a log scale; position 0 apart.

    Args:
        slots: one or more, from the top.
        title: what is seen, in words.
        story: a sentence or two under the title.

    Returns:
        The figure, on an Agg canvas.
    """
    head, foot = 0.95 + _LINE * (_lines(story) + 0.5), 0.5
    tall = head + 0.5 * len(slots) + foot
    figure = _blank(tall)
    axes = figure.add_axes((0.2, foot / tall, 0.73, 1 - (head + foot) / tall))
    axes.set_ylim(len(slots) - 0.5, -0.5)
    axes.set_xscale("log")
    drawn = [norm for slot in slots for norm in slot[1:] if norm] or [1.0]
    # Whole decades, with air at both ends: there are ticks however near the norms lie.
    ends = math.floor(math.log10(min(drawn) / 1.2)), math.ceil(math.log10(max(drawn) * 1.2))
    axes.set_xlim(10.0 ** ends[0], 10.0 ** ends[1])
    for row, slot in enumerate(slots):
        _draw_spread(axes, row, slot)
    axes.set_yticks(range(len(slots)), [fill(slot.name, 18) for slot in slots])
    axes.set_xlabel("norm of the state, log scale", color=_QUIET)
    axes.xaxis.set_major_locator(LogLocator(base=10))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    _quieten(axes, along="x")
    _explain_spreads(axes)
    _head(figure, title, story)
    return figure


def draw_likeness(pairs: Sequence[tuple[str, float | None]], *, title: str, story: str) -> Figure:
    """How alike neighbouring slots are, a bar each: cosines from -1 to 1.

    Args:
        pairs: (which two, their cosine), one or more, from the top; `None` where there is none.
        title: what is seen, in words.
        story: a sentence or two under the title.

    Returns:
        The figure, on an Agg canvas.
    """
    head, foot = 0.62 + _LINE * (_lines(story) + 0.5), 0.5
    tall = head + 0.5 * len(pairs) + foot
    figure = _blank(tall)
    axes = figure.add_axes((0.2, foot / tall, 0.73, 1 - (head + foot) / tall))
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_xlim(min([-0.05, *(cosine for _, cosine in pairs if cosine is not None)]), 1.12)
    for row, (_, cosine) in enumerate(pairs):
        drawn = axes.barh(row, cosine or 0.0, height=0.4, color=_COLORS[0])
        told = "nothing to compare" if cosine is None else f"{cosine:.2f}"
        axes.bar_label(drawn, [told], padding=4, fontsize=9.5)
    axes.set_yticks(range(len(pairs)), [fill(name, 18) for name, _ in pairs])
    axes.set_xlabel("median cosine past position 0", color=_QUIET)
    _quieten(axes, along="x")
    _head(figure, title, story)
    return figure


def told_number(value: float) -> str:
    """A number in three digits or its whole part, as people write it: 0.0123, 63.2, 24,832."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def png_of(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    drawn = png_of(figure)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(drawn)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _blank(tall: float) -> Figure:
    figure = Figure(figsize=(_WIDE, tall), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _head(figure: Figure, title: str, story: str) -> None:
    """Title and story, as far from the top in a low picture as in a high one."""
    tall = figure.get_figheight()
    figure.text(_LEFT, 1 - 0.234 / tall, title, fontsize=14, fontweight="bold", va="top")
    told = fill(story, _LETTERS)
    figure.text(
        _LEFT, 1 - 0.572 / tall, told, fontsize=9.5, color=_QUIET, va="top", parse_math=False
    )


def _lines(story: str) -> int:
    return fill(story, _LETTERS).count("\n") + 1


def _draw_spread(axes: Axes, row: int, slot: Spread) -> None:
    if slot.first:
        axes.plot(slot.first, row, "D", color=_COLORS[1], markersize=6, zorder=3)
    if not slot.median:
        # A log scale has no place for nothing, nor for what is not a number.
        told = "no finite norm past position 0" if slot.median is None else "the median norm is 0"
        middle = (axes.get_xlim()[0] * axes.get_xlim()[1]) ** 0.5
        axes.text(middle, row - 0.22, told, fontsize=9, color=_QUIET, ha="center")
        return
    if slot.low and slot.high:
        axes.plot([slot.low, slot.high], [row, row], color=_PALE, linewidth=7)
    axes.plot(slot.median, row, "o", color=_COLORS[0], markersize=8)
    axes.annotate(
        told_number(slot.median),
        (slot.median, row),
        (0, 9),
        textcoords="offset points",
        ha="center",
        fontsize=9,
    )


def _explain_spreads(axes: Axes) -> None:
    axes.legend(
        handles=[
            Line2D([], [], color=_COLORS[0], marker="o", linestyle="", markersize=8),
            Line2D([], [], color=_PALE, linewidth=7),
            Line2D([], [], color=_COLORS[1], marker="D", linestyle="", markersize=6),
        ],
        labels=["median past position 0", "5% to 95%", "median at position 0"],
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        ncols=3,
        frameon=False,
        fontsize=9.5,
    )


def _quieten(axes: Axes, *, along: Literal["x", "y"]) -> None:
    """Let the data speak: a pale grid across one axis, no box, no ticks."""
    axes.grid(axis=along, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(which="both", colors=_QUIET, length=0)


def _draw_bars(axes: Axes, name: str, found: Mapping[str, Any], color: str, shift: float) -> None:
    # A step that no text is long enough for has no share: an empty place, not a zero.
    bars = [(s["step"] + shift, s["joint"]) for s in found["steps"] if s["joint"] is not None]
    drawn = axes.bar(
        [place for place, _ in bars],
        [share for _, share in bars],
        width=_BAR,
        color=color,
        label=f"{name}: {found['tokens_per_round']:.2f} tokens per round",
    )
    axes.bar_label(drawn, [f"{share:.0%}" for _, share in bars], padding=2, fontsize=9)


def _dress(axes: Axes, *, steps: int) -> None:
    axes.set_xlim(-0.6, max(steps, 3) - 0.4)
    axes.set_xticks(range(steps))
    axes.set_xlabel("draft step k", color=_QUIET)
    axes.set_ylim(0, max(axes.get_ylim()[1], 0.1))
    axes.set_ylabel("joint accuracy: steps 0 to k all right", color=_QUIET)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    _quieten(axes, along="y")
    # Joint accuracy only falls, so this corner is free.
    axes.legend(loc="upper right", frameon=False, fontsize=11, handlelength=1.2)

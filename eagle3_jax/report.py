"""Pictures of results, drawn without a display."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

_COLORS = ("#17457a", "#f0a24e")  # dark and light as well as blue and orange: apart in grey too
_QUIET = "#555555"
_BAR = 0.38
_LEFT = 0.025


def draw_readings(readings: Mapping[str, Mapping[str, Any]], *, title: str, story: str) -> Figure:
    """Joint accuracy by step of two readings of the same states.

    Args:
        readings: name -> figures as `metrics.figures` has them, of as many steps each.
        title: what is seen, in words.
        story: a sentence or two under the title.

    Returns:
        The figure, on an Agg canvas.
    """
    figure = Figure(figsize=(8.0, 5.2), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.09, 0.1, 0.88, 0.66))
    for place, ((name, found), color) in enumerate(zip(readings.items(), _COLORS, strict=True)):
        _draw_bars(axes, name, found, color, (place - 0.5) * _BAR)
    _dress(axes, steps=max(len(found["steps"]) for found in readings.values()))
    figure.text(_LEFT, 0.955, title, fontsize=14, fontweight="bold", va="top")
    figure.text(_LEFT, 0.89, fill(story, 110), fontsize=9.5, color=_QUIET, va="top")
    return figure


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(drawn.getvalue())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=_QUIET, length=0)
    # Joint accuracy only falls, so this corner is free.
    axes.legend(loc="upper right", frameon=False, fontsize=11, handlelength=1.2)

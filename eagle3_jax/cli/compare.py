"""`eagle3-jax compare`: the first stage at which two traces of a draft part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from tyro.conf import Positional, arg

from converters.listing import listed
from eagle3_jax.cli.manners import (
    FINE,
    SAYS_NO,
    Options,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from eagle3_jax.compare import Comparison

_LISTED = 12  # positions in one line


@dataclass(frozen=True, kw_only=True)
class Compare(Options):
    """Tell at which stage two traces part first; exit code 1 then."""

    example: ClassVar[str] = "eagle3-jax compare ours.safetensors theirs.pt"

    one: Positional[Annotated[Path, arg(metavar="FILE")]]
    """A trace: written by `eagle3-jax trace`, or by the recorder for PyTorch."""
    other: Positional[Annotated[Path, arg(metavar="FILE2")]]
    """Another trace of the same draft over the same texts."""
    tolerance: Annotated[float | None, arg(metavar="X", help_behavior_hint="")] = None
    """Relative; where it is not given, 1e-5 for float32 and 3e-2 for bfloat16."""

    def run(self) -> int:
        """Read both, print the table, write the JSON."""
        require_destination(self.json)
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise InputError(f"--tolerance is {self.tolerance}, expected 0 to below 1")
        from converters.traces import read_trace
        from eagle3_jax.compare import compare

        paths = near(self.one), near(self.other)
        try:
            result = compare(read_trace(paths[0]), read_trace(paths[1]), self.tolerance)
        except InputError as error:
            told = str(error)
            named = any(told.startswith(f"{path}: ") for path in paths)
            raise InputError(told if named else f"{paths[0]} and {paths[1]}: {told}") from None
        _print(people_console(self), result)
        write_result(self.json, _as_json(paths, result))
        return FINE if result.first is None else SAYS_NO


def _print(console: Console, result: Comparison) -> None:
    """The step at which the traces part, or the last one; then what that means."""
    from rich import box
    from rich.table import Table

    from eagle3_jax.cli.lines import print_lines

    shown = result.found[-1].step if result.first is None else result.first.step
    table = Table(box=box.SIMPLE_HEAD, title=f"step {shown}", title_justify="left")
    table.add_column("stage", no_wrap=True)
    for heading in ("columns", "parted", "largest", "relative", "cosine"):
        table.add_column(heading, justify="right")
    for found in result.found:
        if found.step == shown:
            table.add_row(
                found.stage,
                str(found.columns),
                str(len(found.parted)),
                f"{found.largest:.2e}",
                f"{found.relative:.2e}",
                f"{found.cosine:.4f}",
            )
    console.print(table)
    if result.first is None:
        worst = max(result.found, key=lambda found: found.relative)
        lines = {
            "agree": f"{len(result.found)} stages at a tolerance of {result.tolerance:g}",
            "most apart": f"{worst.stage} at step {worst.step}, relative {worst.relative:.2e}",
        }
    else:
        first = result.first
        lines = {
            "first parting": (
                f"{first.stage} at step {first.step}: largest {first.largest:.2e}, relative "
                f"{first.relative:.2e} (tolerance {result.tolerance:g}), cosine {first.cosine:.6f}"
            ),
            "positions": _places(result),
            "suspicion": result.suspicion,
        }
    print_lines(console, lines, result.notes)


def _places(result: Comparison) -> str:
    """Which columns part, text by text."""
    told = []
    for row in sorted(set(result.rows.tolist())):
        positions = result.positions[result.rows == row].tolist()
        told.append(f"{listed(positions, _LISTED)} of text {row}")
        if len(told) == _LISTED:
            break
    return "; ".join(told)


def _as_json(paths: tuple[Path, Path], result: Comparison) -> dict[str, Any]:
    def finite(value: float) -> float | None:
        return value if abs(value) < float("inf") else None

    stages = [
        {
            "step": found.step,
            "stage": found.stage,
            "columns": found.columns,
            "parted": len(found.parted),
            "largest": finite(found.largest),
            "relative": finite(found.relative),
            "cosine": found.cosine,
        }
        for found in result.found
    ]
    first = None
    if result.first is not None:
        first = next(
            stage
            for stage in stages
            if (stage["step"], stage["stage"]) == (result.first.step, result.first.stage)
        ) | {
            "rows": result.rows.tolist(),
            "positions": result.positions.tolist(),
            "suspicion": result.suspicion,
        }
    return {
        "traces": [str(path) for path in paths],
        "tolerance": result.tolerance,
        "agree": first is None,
        "first": first,
        "stages": stages,
        "notes": list(result.notes),
    }

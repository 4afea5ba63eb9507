"""What a draft is and what became of its tensors, as tables for people and as JSON."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from converters.conversion import Fitted
from converters.description import numbered_captures, values_of, vocabulary_facts
from converters.drafts import OpenDraft
from converters.writing import Row, weights_dtype
from eagle3_jax.cli.lines import print_lines

_NOTHING, _WIDEST = "-", 4096


def print_conversion(
    console: Console,
    source: Path,
    destination: Path,
    draft: OpenDraft,
    fitted: Fitted,
    rows: list[Row],
    notes: tuple[str, ...],
) -> None:
    """A row for every tensor, then whose draft it was and what was assumed."""
    table = _table("tensor", "becomes", "shape", "type", "because")
    for row in rows:
        becomes = row.written or "dropped"
        table.add_row(
            row.source or f"({row.fate})",
            "=" if row.fate == "written" else becomes,
            " x ".join(map(str, row.shape)),
            row.dtype,
            row.reason or ("" if row.fate in ("written", "renamed") else row.fate),
        )
    _show(console, table)
    boundaries = fitted.draft.boundaries
    lines = {
        "read": f"{source}, {draft.dialect.title}: {'; '.join(draft.evidence)}",
        "written": f"{destination}, for {fitted.draft.dialect.title}",
        "capture": "unknown" if boundaries is None else f"boundaries {list(boundaries)}",
    }
    print_lines(console, lines, notes)


def as_json(draft: OpenDraft, path: Path, target_layers: int | None) -> dict[str, Any]:
    """Everything that is known of a draft.

    Raises:
        ValueError: when the target is too shallow for a default capture.
    """
    knobs = {
        name: {"value": value, "source": draft.sources.get(name, "the file")}
        for name, value in values_of(draft.config).items()
    }
    captures = numbered_captures(draft.boundaries, target_layers)
    return {
        "path": str(path),
        "dialect": draft.dialect.name,
        "title": draft.dialect.title,
        "evidence": list(draft.evidence),
        "dtype": weights_dtype(draft.tensors),
        "parameters": sum(tensor.size for tensor in draft.tensors.values()),
        "own_embeddings": draft.embeddings is not None,
        "knobs": knobs,
        "boundaries": None if draft.boundaries is None else list(draft.boundaries),
        "boundaries_source": draft.sources.get("boundaries"),
        "target_layers": target_layers,
        "captures": [capture._asdict() for capture in captures],
        "vocabulary": {
            "source": draft.sources.get("vocabulary"),
            **vocabulary_facts(draft.vocab),
        },
        "notes": list(draft.notes),
    }


def print_draft(console: Console, told: dict[str, Any]) -> None:
    """Knobs with their sources, the capture in every numbering, the rest in lines."""
    table = _table("knob", "value", "source")
    for name, knob in told["knobs"].items():
        table.add_row(name, _word(knob["value"]), knob["source"])
    _show(console, table)
    table = _table("framework", "layer ids", "stated in")
    for capture in told["captures"]:
        ids = _NOTHING if capture["ids"] is None else str(capture["ids"])
        unfit = " (not this draft's)" if capture["fits"] is False else ""
        table.add_row(capture["dialect"], ids, capture["place"] + unfit)
    _show(console, table)
    vocabulary = told["vocabulary"]
    capture = "unknown" if told["boundaries"] is None else f"boundaries {told['boundaries']}"
    lines = {
        "draft": f"{told['path']}, {told['parameters']:,} parameters in {told['dtype']}",
        "dialect": f"{told['dialect']} ({told['title']}): {'; '.join(told['evidence'])}",
        "capture": f"{capture}, by {told['boundaries_source'] or 'nobody'}",
        "vocabulary": (
            f"{vocabulary['draft_vocab_size']:,} of {vocabulary['vocab_size']:,} ids "
            f"({vocabulary['share']:.1%}), {vocabulary['lowest_id']:,} to "
            f"{vocabulary['highest_id']:,}, by {vocabulary['source'] or 'the file'}"
        ),
        "embeddings": "the draft's own" if told["own_embeddings"] else "the target's",
    }
    print_lines(console, lines, tuple(told["notes"]))


def print_differences(
    console: Console, one: Path, other: Path, rows: list[tuple[str, Any, Any]]
) -> None:
    """A row for everything that tells two drafts apart."""
    if not rows:
        console.print(f"{one} and {other}: the same draft", soft_wrap=True, markup=False)
        return
    table = _table("", str(one), str(other))
    for what, first, second in rows:
        table.add_row(what, _word(first), _word(second))
    _show(console, table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _show(console: Console, table: Table) -> None:
    """Print a table; where no terminal sets a width, none of its words is broken."""
    if not console.is_terminal:
        needed = Measurement.get(console, console.options.update_width(_WIDEST), table).maximum
        console.width = max(console.width, needed)
    console.print(table)


def _word(value: Any) -> str:
    match value:
        case None:
            return _NOTHING
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case dict():
            return ", ".join(f"{name} {_word(part)}" for name, part in value.items())
        case list() | tuple():
            return ", ".join(map(_word, value))
        case _:
            return str(value)

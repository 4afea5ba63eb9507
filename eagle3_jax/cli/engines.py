"""How engines would serve a draft, as rows of JSON and as a table."""

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from converters.drafts import OpenDraft
from converters.engines import Served, serve_all
from converters.files import read_json
from converters.targets import OpenTarget
from eagle3_jax.cli.lines import print_lines

ASSUMED = "llama"  # where nobody says the target's class: the rule that most classes share


def served_by_all(
    path: Path, draft: OpenDraft, layers: int, target_class: str | None, target: OpenTarget | None
) -> list[Served]:
    """Every engine's way with a draft; nothing where its files are no engine's.

    Args:
        path: the draft's directory.
        draft: the same, opened.
        layers: L of the target.
        target_class: its model_type, where the user says it.
        target: the target, whose config says it otherwise.
    """
    if native(path):
        return []
    return serve_all(
        path,
        draft,
        target_layers=layers,
        target_class=class_of(target_class, target),
        target_hidden_size=draft.config.target_hidden_size,
    )


def native(path: Path) -> bool:
    """Whether a draft is in this project's own form, which no engine reads."""
    return not (path / "config.json").exists()


def class_of(target_class: str | None, target: OpenTarget | None) -> str:
    """The target's model_type: as the user says, as its config says, or `ASSUMED`."""
    if target_class is not None:
        return target_class
    if target is None:
        return ASSUMED
    stated = read_json(target.directory / "config.json").get("model_type")
    return stated if isinstance(stated, str) else ASSUMED


def engine_row(one: Served) -> dict[str, Any]:
    """One engine for machines."""
    return {
        "engine": one.engine,
        "version": one.version,
        "boundaries": list(one.boundaries),
        "capture": one.capture,
        "refused": one.refused,
        "differences": list(one.differences),
        "dropped": one.dropped,
        "missing": list(one.missing),
        "flags": list(one.flags),
        "rules": list(one.rules),
    }


def print_engines(console: Console, rows: list[dict[str, Any]]) -> None:
    """A row an engine, and what it has otherwise than the training under them.

    Rows that were scored have `tokens_per_round`, or `not_scored` with the reason.
    """
    if not rows:
        return
    scored = any("tokens_per_round" in row for row in rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("engine", "version", "boundaries", *(["tokens per round"] if scored else [])):
        table.add_column(column)
    lines = {}
    for row in rows:
        boundaries = ", ".join(map(str, row["boundaries"])) or "-"
        tokens = row.get("tokens_per_round")
        told = [*row["differences"]]
        if row["refused"] is not None:
            told = [f"refused: {row['refused']}"]
        elif tokens is None and scored:
            told.append(f"not scored: {row['not_scored']}")
        length = "-" if tokens is None else f"{tokens:.2f}"
        table.add_row(row["engine"], row["version"], boundaries, *([length] if scored else []))
        lines[row["engine"]] = "; ".join(told) or "as trained"
    console.print(table)
    print_lines(console, lines, ())

"""A diagnosis as tables for people."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from eagle3_jax.cli.engines import print_engines
from eagle3_jax.cli.lines import print_lines

_SHOWN = 6  # readings


def print_diagnosis(console: Console, found: dict[str, Any]) -> None:
    """The verdict first, then what it rests on."""
    verdict = found["verdict"]
    console.print(f"[bold]{verdict['kind']}[/bold]: ", end="")
    console.print(verdict["told"], soft_wrap=True, markup=False)
    for tie in verdict["ties"]:
        told = "; ".join(f"{part['axis']}: {part['choice']}" for part in tie)
        console.print(f"  as good: {told}", soft_wrap=True, markup=False)
    if found["correction"] is not None:
        _print_correction(console, found["correction"], tied=bool(verdict["ties"]))
    _print_findings(console, "the draft's tensors", found["weights"])
    _print_findings(console, "stored states", found["slots"]["findings"])
    for dump in found["serving"]:
        _print_findings(console, f"served states, document {dump['document']}", dump["findings"])
    if found["readings"]:
        _print_readings(console, found)
    if found["engines"]:
        print_engines(console, found["engines"])
    configured = found["configured"]
    told = configured["boundaries"] or f"slots {configured['slots']}"
    lines = {
        "configured capture": f"{told}, by {configured['source']}",
        "documents": f"{found['documents']} from {len(found['shards'])} files, {found['layout']}",
    }
    bad = [f"left out: {told}" for told in found["bad"]]
    console.print()
    print_lines(console, lines, (*found["notes"], *bad))
    if verdict["undecided"]:
        console.print("\nmakes no difference on these texts, and may be either way")
        width = max(map(len, verdict["undecided"]))
        for axis, choices in verdict["undecided"].items():
            console.print(f"  {axis:<{width}}  {'; '.join(choices)}", soft_wrap=True, markup=False)


def _print_correction(console: Console, correction: dict[str, Any], *, tied: bool) -> None:
    """Keys to change, where a config can say it at all."""
    if tied:
        console.print("\nfor the first of those that are as good:")
    keys = [key for config in correction["configs"] for key in config["keys"]]
    refused = [config for config in correction["configs"] if config["refused"] is not None]
    if not (keys or refused or correction["outside_the_config"]):
        console.print("no key to change: the config is right, and what fed the draft is not")
    table = _table("framework", "key", "now", "right")
    for config in correction["configs"]:
        if config["refused"] is not None:
            table.add_row(config["framework"], "-", "-", f"cannot: {config['refused']}")
        for number, key in enumerate(config["keys"]):
            name = "" if number else config["framework"]
            table.add_row(name, key["key"], str(key["now"]), str(key["right"]))
    if table.row_count:
        console.print(table)
    for told in correction["outside_the_config"]:
        console.print(f"no config says: {told}", soft_wrap=True, markup=False)


def _print_findings(console: Console, what: str, findings: list[dict[str, str]]) -> None:
    """Each claim with how sure it is, and what it rests on under it."""
    if not findings:
        return
    console.print(f"\n{what}")
    for finding in findings:
        console.print(f"  {finding['strength']:<9} ", end="")
        console.print(finding["claim"], soft_wrap=True, markup=False)
        console.print(
            f"            {finding['evidence']}", style="dim", soft_wrap=True, markup=False
        )


def _print_readings(console: Console, found: dict[str, Any]) -> None:
    steps = len(found["readings"][0]["joint"])
    table = _table("reading", "tokens per round", *(f"joint {k}" for k in range(steps)))
    rows = found["readings"][:_SHOWN]
    plain = next(row for row in found["readings"] if not row["changes"])
    for row in rows if plain in rows else [*rows, plain]:
        joint = (f"{share:.1%}" for share in row["joint"])
        told = _shortened(row, found["verdict"]["reading"])
        table.add_row(told, f"{row['tokens_per_round']:.2f}", *joint)
    console.print(table)


def _shortened(row: dict[str, Any], best: list[dict[str, str]]) -> str:
    """A reading in words; of one that adds to the verdict's, what it adds."""
    more = [part for part in row["changes"] if part not in best]
    if not best or not more or len(more) + len(best) != len(row["changes"]):
        return row["reading"]
    return "the verdict's; " + "; ".join(f"{part['axis']}: {part['choice']}" for part in more)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table

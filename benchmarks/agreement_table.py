"""The tables of `agreement.md`: which case stands in which column, and how a cell is written.

`SURVEY` is what an earlier survey of the frameworks found, in the same words, by another way: each
one's own modules against a forward in float64, before this project had one. Where both have a cell
they have to say the same; the page lists what does not.
"""

from collections.abc import Iterable
from typing import Any

# A column's label -> the names of its case; frameworks may name it differently.
_ASKED_OF_ALL = {
    "head_dim = D/N": ("head_dim=D_by_N",),
    "theta 5e5": ("theta",),
    "head_dim != D/N": ("plain",),
    "llama3 rope": ("llama3",),
    "norm_before_residual": ("norm_before_residual",),
    "fc_norm": ("fc_norm",),
    "norm_output": ("norm_output",),
    "fc_norm + norm_output": ("fc_norm+output", "norm_output+fc_norm"),
    "norm_before_fc": ("norm_before_fc",),
}
TABLES = {
    "What every framework was asked": _ASKED_OF_ALL,
    "Norms and biases together": {
        "norm_before_residual + norm_before_fc": ("residual+before_fc",),
        "norm_before_residual + fc_norm": ("residual+fc_norm",),
        "norm_before_residual + norm_output": ("residual+output",),
        "norm_before_fc + norm_output": ("before_fc+output",),
        "norm_output: false": ("no_final_norm",),
        "norm_output: false, fc_norm": ("no_final_norm+fc_norm",),
        "eps 1e-2": ("large_eps",),
        "attention_bias": ("attention_bias",),
        "mlp_bias": ("mlp_bias",),
        "fc bias": ("fc_bias",),
        "qk_norm": ("qk_norm",),
    },
    "Shapes": {
        "N kv heads": ("mha",),
        "one kv head": ("mqa",),
        "1 aux state": ("aux1",),
        "2 aux states": ("aux2",),
        "4 aux states": ("aux4",),
        "4 aux states, fc_norm": ("aux4+fc_norm",),
        "wider target (sglang: with fc_norm)": ("wide_target",),
        "wider target, fc_norm": ("wide_target+fc_norm",),
        "whole vocabulary": ("whole_vocabulary",),
        "target's head": ("head_of_the_target",),
        "2 layers": ("two_layers",),
        "2 layers, residual + output": ("two_layers+residual+output",),
        "2 layers, qk_norm, bias": ("qk_norm+bias+two_layers",),
        "2 layers, mlp_bias": ("mlp_bias+two_layers",),
        "3 layers, norm_output": ("three_layers+output",),
    },
    "Rotation and distance": {
        "linear": ("linear",),
        "yarn": ("yarn",),
        "yarn in the file only": ("added_yarn",),
        "dynamic": ("dynamic",),
        "longrope": ("longrope",),
        "400 columns": ("long",),
        "400 columns, llama3": ("long+llama3",),
        "position 20,000": ("far",),
        "position 20,000, llama3": ("far+llama3",),
        "sdpa": ("sdpa",),
        "stated capture": ("stated_capture",),
    },
    "Positions 0..64 and 20000..20064": {
        f"{places}, {kind}": (f"{where}:{kind}",)
        for kind in ("default", "linear", "llama3", "yarn", "longrope")
        for where, places in (("near", "0..64"), ("afar", "20000..20064"))
    },
    "Padding and sliding window": {
        "batch of 14, 9 and 5 columns": ("padded",),
        "the same, 2 layers": ("padded+two_layers",),
        "window of 5": ("window",),
    },
    "bfloat16": {
        "plain": ("bfloat16",),
        "norms": ("bfloat16+norms", "bfloat16+fc_norm"),
        "2 layers": ("bfloat16+two_layers",),
        "position 20,000": ("bfloat16+far",),
    },
}
TOLD = {  # under the heading of a table
    "Positions 0..64 and 20000..20064": "SpecForge takes no position beyond the length of its row; "
    "at 20000 it was made to read its own table of angles further on. SGLang's YaRN goes as far "
    "as the factor says, here to 32768.",
    "Padding and sliding window": "The padding holds noise. speculators packs the texts of a batch "
    "in one row and pads behind them; SpecForge and ModelOpt pad each row on the right; SGLang "
    "pads nothing, its requests lie side by side. ModelOpt has no window: with the keys of one in "
    "its config its trainer ends with an error at the second step.",
    "bfloat16": "`1.0 x 9e-03` is a root mean square difference of 1.0 times the framework's own "
    "distance, 9e-03, between its bfloat16 and its float32 of the same numbers. Two roundings of "
    "that size, independent of each other, are 1.4 of it apart; up to 2 is taken for rounding, "
    "where ours has rounded, too. `norms` are norm_before_fc and norm_output, with speculators "
    "norm_before_residual as well, with SpecForge fc_norm; its `2 layers` have fc_norm, too, but "
    "with ModelOpt.",
}
CASES = {name for table in TABLES.values() for names in table.values() for name in names}

SURVEY = {  # in the order of the first table; "-" where it has no cell
    "speculators": ("ok",) * 9,
    "specforge": ("ok", "ok", "ok", "ok", "X", "ok", "X", "X", "X"),
    "sglang": ("ok", "ok", "ok", "ok", "X", "ok", "ok", "ok", "ok"),
    "modelopt": ("X", "-", "X", "-", "-", "-", "-", "-", "-"),
}


def render(figures: dict[str, Any]) -> str:
    """The page.

    Args:
        figures: what `agreement.json` holds.
    """
    rows, ours = figures["rows"], figures["ours"]
    with_ours = ", ".join(f"{name} {number}" for name, number in ours.items())
    notes: list[tuple[str, str]] = []
    parts = [
        "# Agreement with the frameworks, knob by knob",
        "Generated by `python -m benchmarks.agreement`; the figures are in `agreement.json`. Each "
        "framework runs its own code on a tiny random draft, norm weights random too, in float32. "
        "A number is the largest difference from the knob's usual meaning (`DraftConfig`), over "
        "the fused features, three steps of logits and the states fed back, relative to 1 + the "
        f"size of the framework's number. Ours ran with {with_ours}.",
        "`X` is a difference that is no rounding: the note says how the framework reads the knob, "
        "and how far it is from us read so. `-`: the framework has no such knob, or was not asked. "
        "At position 20,000 one rounding of a rotation's frequency turns a head by up to 2e-3.",
        _table(("framework", "version", "torch", "transformers", "measured"), _versions(rows)),
    ]
    for title, columns in TABLES.items():
        shown = {
            label: names
            for label, names in columns.items()
            if any(_cell(row, names) for row in rows.values())
        }
        body = [
            (name, *(_written(name, _cell(row, names), notes) for names in shown.values()))
            for name, row in rows.items()
        ]
        told = [TOLD[title]] if title in TOLD else []
        parts += [f"## {title}", *told, _table(("framework", *shown), body)]
    parts += ["## Notes", *(_note(n, note, rows) for n, note in enumerate(notes, 1))]
    parts += ["## Against the earlier survey", _compared(rows)]
    return "\n\n".join(parts) + "\n"


def disagreements(rows: dict[str, Any]) -> tuple[int, list[str]]:
    """How many cells both have, and those in which they say otherwise, in words."""
    both, other = 0, []
    for framework, row in rows.items():
        for (label, names), said in zip(_ASKED_OF_ALL.items(), SURVEY[framework], strict=True):
            cell = _cell(row, names)
            if cell is None or said == "-":
                continue
            both += 1
            found = "ok" if cell["says"] is None else "X"
            if found != said:
                other.append(f"{framework}, {label}: {found} here, {said} there")
    return both, other


def _cell(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
    return next((row["cells"][name] for name in names if name in row["cells"]), None)


def _written(framework: str, cell: dict[str, Any] | None, notes: list[tuple[str, str]]) -> str:
    if cell is None:
        return "-"
    rounding = cell["rounding"]
    if cell["says"] is None:
        told = f"{cell['difference']:.0e}"
        return told if rounding is None else f"{cell['difference']:.1f} x {rounding:.0e}"
    note = (framework, cell["says"])
    if note not in notes:
        notes.append(note)
    number = notes.index(note) + 1
    if rounding is not None:
        told = f"X {cell['difference']:.0f}, as read {cell['as_read']:.1f}"
        return f"{told} x {rounding:.0e} ({number})"
    return f"X {cell['difference']:.1f} ({number})"


def _note(number: int, note: tuple[str, str], rows: dict[str, Any]) -> str:
    framework, says = note
    cells = [cell for cell in rows[framework]["cells"].values() if cell["says"] == says]
    far = max(cell["as_read"] for cell in cells if cell["allowed"] < 1e-4)
    return f"({number}) {framework}: {says}. Read so, it is within {far:.0e} of ours."


def _compared(rows: dict[str, Any]) -> str:
    both, other = disagreements(rows)
    if not other:
        return f"All {both} cells that both have say the same."
    return f"Of {both} cells that both have, these say otherwise: {'; '.join(other)}."


def _versions(rows: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            row["versions"][name],
            row["versions"]["torch"],
            row["versions"]["transformers"],
            row["date"],
        )
        for name, row in rows.items()
    ]


def _table(heads: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

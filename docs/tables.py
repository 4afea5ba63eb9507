"""Writes the tables of these pages and of the README from the code: `python docs/tables.py`.

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from converters.config_keys import IDS, NESTED
from converters.description import Numbered, numbered_captures
from converters.dialects import DIALECTS
from converters.engines import ENGINES, Engine
from converters.engines.capturing import read_capture
from converters.engines.views import View
from converters.shards import LAYOUTS
from eagle3_jax.capture import default_boundaries, from_ids, to_ids

DOCS = Path(__file__).parent
PAGES = (*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md")
_MEASURED = DOCS.parent / "benchmarks" / "agreement.json"
DEPTHS = (28, 30, 32, 36, 48, 61, 64, 80, 94)
_SHOWN = 36  # layers, where one depth stands for all
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
# Classes that take SGLang's general rule, and classes with one of their own, each at some depth.
_CLASSES = (
    ("llama", 32),
    ("qwen3", 36),
    ("deepseek_v3", 61),
    ("glm4_moe_lite", 48),
    ("gpt_oss", 36),
    ("minimax_m3_vl", 60),
)


def render(page: str) -> str:
    """A page with its tables made anew.

    Raises:
        KeyError: for a table that nobody makes.
    """
    return _MARKED.sub(lambda m: f"{m[1]}\n{TABLES[m[2]]()}\n\n{m[3]}", page)


def depths() -> str:
    """The usual capture of each depth, in both numberings."""
    rows = []
    for layers in DEPTHS:
        usual = default_boundaries(layers)
        old = from_ids([2, layers // 2, layers - 3, layers - 1], "output", layers)
        rows.append(
            (
                str(layers),
                _ids(usual),
                _ids(to_ids(usual, "output")),
                _ids(to_ids((*usual, layers), "boundary")),
                _ids(old),
            )
        )
    heads = (
        "layers",
        "boundaries",
        "ids as outputs",
        "ids as boundaries, with the last state",
        "boundaries of outputs 2, L/2, L-3, L-1",
    )
    return _table(heads, rows)


def frameworks() -> str:
    """Where each dialect states its capture, and as what."""
    rows = []
    for one in numbered_captures(default_boundaries(_SHOWN), _SHOWN):
        rows.append((f"`{one.dialect}`", _place(one), _numbering(one), _ids(one.ids or ())))
    return _table(("framework", "place", "ids are", f"of a target of {_SHOWN} layers"), rows)


def engines() -> str:
    """What each engine captures for a llama target, by what the config states and where."""
    usual = default_boundaries(_SHOWN)
    outputs = to_ids(usual, "output")
    configs = {
        "no ids": View({}, {}, "", "", "llama", ()),
        f"`{NESTED}` {outputs}": View({}, {IDS: outputs}, "", "", "llama", ()),
        f"top {outputs}": View({IDS: outputs}, {}, "", "", "llama", ()),
        f"top {list(usual)}": View({IDS: list(usual)}, {}, "", "", "llama", ()),
    }
    rows = [
        (
            f"`{engine.name}`",
            engine.version,
            *(_captured(view, engine, _SHOWN, "llama", usual) for view in configs.values()),
        )
        for engine in ENGINES.values()
    ]
    return _table(("engine", "version", *configs), rows)


def classes() -> str:
    """What SGLang captures by the class of the target."""
    sglang = ENGINES["sglang"]
    rows = []
    for name, layers in _CLASSES:
        usual = default_boundaries(layers)
        cells = [f"`{name}`", str(layers)]
        for ids in (to_ids(usual, "output"), list(usual), []):
            view = View({}, {IDS: ids}, "", "", "llama", ())
            told = _captured(view, sglang, layers, name, usual)
            cells.append(f"{ids} → {told}" if ids else told)
        rows.append(cells)
    return _table(("target class", "layers", "ids as outputs", "ids as boundaries", "none"), rows)


def layouts() -> str:
    """Layouts of shards, by their keys."""
    told = {
        "pre_norm": "before the final norm",
        "post_norm": "after the final norm",
        "absent": "not stored",
        None: "said by the file, or by `--last-state`",
    }
    rows = [
        (
            f"`{layout.name}`",
            layout.title,
            ", ".join(f"`{key}`" for key in sorted(layout.keys)),
            told[layout.last_state],
        )
        for layout in LAYOUTS.values()
    ]
    return _table(("layout", "whose", "keys", "last state"), rows)


def dialects() -> str:
    """Who writes and reads drafts, and which framework was run to check it."""
    measured = json.loads(_MEASURED.read_text())["rows"]
    rows = []
    for one in DIALECTS.values():
        witness = "-"
        if one.witness is not None:
            witness = f"{one.witness} {measured[one.witness]['versions'][one.witness]}"
        rows.append((f"`{one.name}`", one.title, "yes", "yes" if one.writable else "-", witness))
    return _table(("dialect", "whose", "read", "written", "witness"), rows)


TABLES = {
    "depths": depths,
    "frameworks": frameworks,
    "engines": engines,
    "classes": classes,
    "layouts": layouts,
    "dialects": dialects,
}


def _captured(
    view: View, engine: Engine, layers: int, target_class: str, usual: tuple[int, ...]
) -> str:
    found = read_capture(view, engine, layers, target_class)
    told = _ids(found.boundaries)
    if found.refused is not None:
        return f"{told}: refused"
    return told if found.boundaries == usual else f"**{told}**"


def _place(one: Numbered) -> str:
    return "-" if one.ids is None else f"`{one.place}`" if one.place == NESTED else one.place


def _numbering(one: Numbered) -> str:
    if one.ids is None:
        return "not stated: 2, L//2, L-3 are taken"
    usual = default_boundaries(_SHOWN)
    return "boundaries" if one.ids == to_ids(usual, "boundary") else "outputs"


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids)) or "-"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    for path in PAGES:
        page = path.read_text()
        if (made := render(page)) != page:
            path.write_text(made)

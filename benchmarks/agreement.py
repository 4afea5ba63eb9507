"""Which frameworks compute our draft, knob by knob: one table, generated from their own runs.

    python -m benchmarks.agreement                      every framework: 10 minutes on two cores
    python -m benchmarks.agreement speculators          one of them, the others' rows as they were

The cases, their random drafts and the comparison are those of `tests/witness`; what is told here is
the number. A cell is the largest difference from the draft's usual meaning, as `DraftConfig` has
it, over the fused features, three steps of logits and the states fed back; relative to 1 + the size
of the framework's number. Where a framework means something else by a knob, or nothing, the cell is
an X with that difference, and a note says which reading agrees, which is measured, too.

`agreement.json` holds the figures and `agreement.md` the table that is made of them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.agreement_table import CASES, render
from benchmarks.witness_env import WitnessError, python_of
from eagle3_jax.config import DraftConfig
from tests.witness.cases import DRAFTS, STEPS
from tests.witness.frameworks import (
    Run,
    describe,
    describe_specforge,
    draw_weights,
    forward,
    largest_difference,
    run_cases,
    run_script,
    tolerance,
)

HERE = Path(__file__).parent
PACKAGES = {  # the distribution of each framework
    "speculators": "speculators",
    "specforge": "specforge",
    "sglang": "sglang",
    "modelopt": "nvidia-modelopt",
}
LEFT_OUT = {"modelopt": ("bfloat16",)}  # not float32


class Reading(NamedTuple):
    """What a framework makes of a knob when it is not the usual.

    Attributes:
        says: in words.
        config: the same in ours.
    """

    says: str
    config: Callable[[Run], DraftConfig]


def _ignores(knob: str, says: str) -> Reading:
    return Reading(says, lambda run: describe(run, **{knob: False}))


_RAW_FEEDBACK = Reading(
    "`norm_output` is whether the head reads the state through the norm (true where it is absent); "
    "the raw state is fed back in any case",
    describe_specforge,
)
_NORMED_TWICE = Reading(
    "the hidden half is normed twice, by `input_layernorm` and by `hidden_norm`",
    lambda run: describe(run, double_norm=True),
)
READINGS: dict[str, dict[str, Reading]] = {
    "specforge": {
        "norm_output": _RAW_FEEDBACK,
        "norm_output+fc_norm": _RAW_FEEDBACK,
        "no_final_norm": _RAW_FEEDBACK,
        "no_final_norm+fc_norm": _RAW_FEEDBACK,
    },
    "modelopt": dict.fromkeys(DRAFTS["modelopt"], _NORMED_TWICE),
}
# Keys that a config may hold and the framework does not read; with them it says what it says
# without, to the bit.
UNREAD = {"specforge": ("norm_before_residual", "norm_before_fc")}
# SGLang's runner writes its config itself and has no place for this key, which its sources do not
# name: it is compared with the run that has none.
UNNAMED = {"sglang": ("norm_before_residual",)}


class Cell(NamedTuple):
    """How far a framework is from us with one knob.

    Attributes:
        difference: from the knob's usual meaning.
        allowed: what rounding may make of it.
        says: the framework's reading, where the difference is larger; and
        as_read: the difference from that reading.
    """

    difference: float
    allowed: float
    says: str | None = None
    as_read: float | None = None


def measure(framework: str, folder: Path) -> dict[str, Any]:
    """Run a framework's cases and compare them.

    Args:
        framework: one of `PACKAGES`.
        folder: an empty directory.

    Returns:
        Its row: versions, date and cells by case.

    Raises:
        SystemExit: when a difference is larger than rounding and no reading explains it, or a knob
            that is known not to be read is.
    """
    runs = run_cases(framework, folder)
    cells = {
        name: compare(run, READINGS.get(framework, {}).get(name))
        for name, run in runs.items()
        if name not in LEFT_OUT.get(framework, ())
    }
    for knob in UNREAD.get(framework, ()):
        said = run_with_key(framework, runs["plain"], knob, folder)
        same = all(np.array_equal(said[name], told) for name, told in runs["plain"].outputs.items())
        if not same:
            raise SystemExit(f"error: {framework} reads {knob}, expected it not to")
        cells[knob] = compare(_with(runs["plain"], knob), _ignores(knob, "the key is not read"))
    for knob in UNNAMED.get(framework, ()):
        reading = _ignores(knob, "no such key; the run is that of `plain`")
        cells[knob] = compare(_with(runs["plain"], knob), reading)
    return {
        "versions": versions(framework),
        "date": datetime.now(UTC).date().isoformat(),
        "cells": {name: cell._asdict() for name, cell in cells.items()},
    }


def compare(run: Run, reading: Reading | None) -> Cell:
    """A case's cell.

    Args:
        run: what the framework said.
        reading: what it means, where that is not the usual.

    Raises:
        SystemExit: when nothing explains the difference, or there is none to explain.
    """
    found = Cell(largest_difference(run, forward(run, describe(run))), tolerance(run))
    where = f"error: {run.folder.name} {run.name}"
    if reading is None:
        if found.difference > found.allowed:
            raise SystemExit(f"{where} differs by {found.difference}, which no reading explains")
        return found
    config = reading.config(run)
    if config == describe(run):
        return found  # the knob is not touched by this reading
    as_read = largest_difference(run, forward(run, config))
    if as_read > found.allowed or found.difference < 0.1:
        raise SystemExit(f"{where} differs by {found.difference}, and by {as_read} as it is read")
    return found._replace(says=reading.says, as_read=as_read)


def run_with_key(framework: str, plain: Run, knob: str, folder: Path) -> dict[str, np.ndarray]:
    """What a framework says of the plain draft with one more key in its config."""
    job = folder / knob
    job.mkdir()
    for kind in ("weights", "inputs"):
        tensors = load_file(plain.file(f"{kind}.safetensors"))
        save_file(tensors, job / f"{knob}.{kind}.safetensors")
    case = plain.knobs | {"name": knob, "mode": "write", "steps": STEPS, "also": {knob: True}}
    run_script(framework, f"run_{framework}.py", job, [case])
    return load_file(job / f"{knob}.out.safetensors")


def _with(plain: Run, knob: str) -> Run:
    """The plain run as it would be with a knob set: the tensors that go with it are drawn."""
    knobs = plain.knobs | {knob: True}
    drawn = draw_weights(knobs, np.random.default_rng(0))
    return plain._replace(name=knob, knobs=knobs, weights=drawn | plain.weights)


def versions(framework: str) -> dict[str, str]:
    """Of the framework and of what it computes with, as they are installed."""
    names = {framework: PACKAGES[framework], "torch": "torch", "transformers": "transformers"}
    code = "import json, sys; from importlib.metadata import version; "
    code += "print(json.dumps([version(name) for name in sys.argv[1:]]))"
    command = [str(python_of(framework)), "-I", "-c", code, *names.values()]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return dict(zip(names, json.loads(said), strict=True))


def main() -> int:
    """Measure, write both files and say where they are."""
    parser = argparse.ArgumentParser(
        description="Measure which frameworks compute our draft, knob by knob.",
        epilog="example: python -m benchmarks.agreement speculators specforge",
    )
    parser.add_argument("frameworks", nargs="*", help=f"of {', '.join(PACKAGES)}; by default all")
    wanted = parser.parse_args().frameworks or list(PACKAGES)
    unknown = sorted(set(wanted) - PACKAGES.keys())
    if unknown:
        parser.error(f"framework {unknown[0]!r} is unknown, expected one of {', '.join(PACKAGES)}")
    kept = HERE / "agreement.json"
    rows = json.loads(kept.read_text())["rows"] if kept.is_file() else {}
    for framework in wanted:
        try:
            python_of(framework)
        except WitnessError as error:
            print(f"{framework} is left out: {error}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory) / framework
            folder.mkdir()
            rows[framework] = measure(framework, folder)
        strange = rows[framework]["cells"].keys() - CASES
        if strange:
            raise SystemExit(f"error: case {min(strange)} has no column in agreement_table.py")
        ours = {name: version(name) for name in ("jax", "flax")}
        ordered = {name: rows[name] for name in PACKAGES if name in rows}
        figures = {"ours": ours, "rows": ordered}
        kept.write_text(json.dumps(figures, indent=1) + "\n")
        (HERE / "agreement.md").write_text(render(figures))
        print(f"{framework}: {len(rows[framework]['cells'])} cells, see {HERE / 'agreement.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

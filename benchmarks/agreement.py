"""Which frameworks compute our draft, knob by knob: one table, generated from their own runs.

    python -m benchmarks.agreement                      every framework: 10 minutes on two cores
    python -m benchmarks.agreement speculators          one of them, the others' rows as they were

The cases, their random drafts and the comparison are those of `tests/witness`; what is told here is
the number. A cell is the largest difference from the draft's usual meaning, as `DraftConfig` has
it, over the fused features, three steps of logits and the states fed back; relative to 1 + the size
of the framework's number. In bfloat16 it is the root mean square, of the framework's own distance
from its float32. Where a framework means something else by a knob, or nothing, the cell is an X
with that difference, and a note says which reading agrees, which is measured, too.

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
import pytest
from safetensors.numpy import load_file, save_file

from benchmarks.agreement_table import CASES, render
from benchmarks.witness_env import WitnessError, python_of
from eagle3_jax.config import DraftConfig
from tests.witness.cases import CONDITIONS, DRAFTS, STEPS, WINDOW
from tests.witness.conditions import (
    ALLOWED_APART,
    compare_rounding,
    forward_with_a_window_that_stays,
)
from tests.witness.drawing import draw_weights
from tests.witness.frameworks import (
    Run,
    Steps,
    describe,
    describe_specforge,
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


class Reading(NamedTuple):
    """What a framework makes of a knob when it is not the usual.

    Attributes:
        says: in words.
        config: the same in ours.
        forward: how ours is run, where no config says it.
    """

    says: str
    config: Callable[[Run], DraftConfig]
    forward: Callable[[Run, DraftConfig], Steps] | None = None


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
    "modelopt": dict.fromkeys(DRAFTS["modelopt"] | CONDITIONS["modelopt"], _NORMED_TWICE),
    "speculators": {
        "window": Reading(
            "the window counts from the column at every step, so that it does not move on with the "
            "drafted tokens as a server's does",
            describe,
            forward_with_a_window_that_stays,
        )
    },
}
# Keys that a config may hold and the framework does not read; with them it says what it says
# without, to the bit. Its case -> the knobs, and the keys that ask for them.
_WINDOW_KEYS = WINDOW | {"use_sliding_window": True, "layer_types": ["sliding_attention"]}
_WINDOW_UNREAD = (WINDOW, _WINDOW_KEYS)
UNREAD: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "specforge": {
        "norm_before_residual": ({"norm_before_residual": True},) * 2,
        "norm_before_fc": ({"norm_before_fc": True},) * 2,
        "window": _WINDOW_UNREAD,
    },
    "sglang": {
        "norm_before_residual": ({"norm_before_residual": True},) * 2,
        "window": _WINDOW_UNREAD,
    },
}
# What the note says, where it is more.
UNREAD_SAYS = {
    "sglang": {
        "window": "the key is not read; a window is an option of its server, whose attention "
        "kernels are not run here"
    },
}
# Keys with which a framework ends with an error, which the page tells: a window is for ModelOpt's
# cache alone, whose length does not fit its mask at the second step then.
STOPPED_BY = {"modelopt": {"window": _WINDOW_KEYS}}


class Cell(NamedTuple):
    """How far a framework is from us with one knob.

    Attributes:
        difference: from the knob's usual meaning; in bfloat16, of `rounding`.
        allowed: what rounding may make of it.
        rounding: in bfloat16, how far the framework is from its own float32.
        says: the framework's reading, where the difference is larger; and
        as_read: the difference from that reading.
    """

    difference: float
    allowed: float
    says: str | None = None
    as_read: float | None = None
    rounding: float | None = None


def measure(framework: str, folder: Path) -> dict[str, Any]:
    """Run a framework's cases and compare them.

    Args:
        framework: one of `PACKAGES`.
        folder: an empty directory.

    Returns:
        Its row: versions, date and cells by case.

    Raises:
        SystemExit: when a difference is larger than rounding and no reading explains it, a knob
            that is known not to be read is, or one that is known to end a run does not.
    """
    runs = run_cases(framework, folder)
    cells = {
        name: compare(run, READINGS.get(framework, {}).get(name)) for name, run in runs.items()
    }
    plain = runs["plain"]
    for name, (knobs, keys) in UNREAD.get(framework, {}).items():
        said = run_with_keys(framework, plain, name, keys, folder)
        same = all(np.array_equal(said[part], told) for part, told in plain.outputs.items())
        if not same:
            raise SystemExit(f"error: {framework} reads {name}, expected it not to")
        says = UNREAD_SAYS.get(framework, {}).get(name, "the key is not read")
        cells[name] = compare(_with(plain, name, knobs), _reads_as(plain, says))
    for name, keys in STOPPED_BY.get(framework, {}).items():
        try:
            run_with_keys(framework, plain, name, keys, folder)
        except pytest.fail.Exception:
            continue
        raise SystemExit(f"error: {framework} runs with {name}, expected it to stop")
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
    usual = describe(run)
    found = _cell(run, usual, forward)
    where = f"error: {run.folder.name} {run.name}"
    if reading is None:
        if found.difference > found.allowed:
            raise SystemExit(f"{where} differs by {found.difference}, which no reading explains")
        return found
    config = reading.config(run)
    if config == usual and reading.forward is None:
        return found  # the knob is not touched by this reading
    as_read = _cell(run, config, reading.forward or forward).difference
    if as_read > found.allowed or found.difference * (found.rounding or 1.0) < 0.1:
        raise SystemExit(f"{where} differs by {found.difference}, and by {as_read} as it is read")
    return found._replace(says=reading.says, as_read=as_read)


def _cell(run: Run, config: DraftConfig, ours: Callable[[Run, DraftConfig], Steps]) -> Cell:
    """How far a run is from one reading of its knobs."""
    if run.exact is None:
        return Cell(largest_difference(run, ours(run, config)), tolerance(run))
    found = compare_rounding(run, config)
    if not found.is_rounding:
        raise SystemExit(f"error: {run.folder.name} {run.name} is not bfloat16 in both: {found}")
    return Cell(found.apart, ALLOWED_APART, rounding=found.theirs)


def run_with_keys(
    framework: str, plain: Run, name: str, keys: dict[str, Any], folder: Path
) -> dict[str, np.ndarray]:
    """What a framework says of the plain draft with more keys in its config."""
    job = folder / name
    job.mkdir()
    for kind in ("weights", "inputs"):
        tensors = load_file(plain.file(f"{kind}.safetensors"))
        save_file(tensors, job / f"{name}.{kind}.safetensors")
    case = plain.knobs | {"name": name, "mode": "run", "steps": STEPS, "also": keys}
    run_script(framework, f"run_{framework}.py", job, [case])
    return load_file(job / f"{name}.out.safetensors")


def _reads_as(plain: Run, says: str) -> Reading:
    """The reading of whoever takes a draft for the plain one."""
    return Reading(says, lambda _: describe(plain))


def _with(plain: Run, name: str, changed: dict[str, Any]) -> Run:
    """The plain run as it would be with knobs set: the tensors that go with them are drawn."""
    knobs = plain.knobs | changed
    drawn = draw_weights(knobs, np.random.default_rng(0))
    return plain._replace(name=name, knobs=knobs, weights=drawn | plain.weights)


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

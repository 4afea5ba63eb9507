"""Notebooks run from top to bottom as they stand, and their kept outputs are of that text."""

import ast
import json
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))
MEGABYTE = 1 << 20
each = pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)


def cells(notebook):
    """The cells of a percent file as a notebook has them: type and source."""
    _, *parts = re.split(r"^# %%", notebook.read_text(), flags=re.MULTILINE)
    for part in parts:
        first, _, body = part.partition("\n")
        if first == " [markdown]":
            yield "markdown", re.sub(r"^# ?", "", body, flags=re.MULTILINE).strip()
        else:
            yield "code", body.strip()


def test_there_are_notebooks():
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"acceptance_length", "explore_logits", "find_a_wiring_bug"}


@each
def test_notebook_runs(notebook):
    plt.switch_backend("agg")
    try:
        runpy.run_path(str(notebook))
    finally:
        plt.close("all")


@each
def test_notebooks_import_and_never_define(notebook):
    tree = ast.parse(notebook.read_text())
    defined = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    assert not [node.name for node in defined]


@each
def test_kept_outputs_are_of_this_text(notebook):
    kept = json.loads(notebook.with_suffix(".ipynb").read_text())["cells"]
    found = [(cell["cell_type"], "".join(cell["source"]).strip()) for cell in kept]
    assert found == list(cells(notebook)), (
        f"run jupytext --to ipynb --execute notebooks/{notebook.name}"
    )


@each
def test_kept_outputs_are_whole_and_small(notebook):
    path = notebook.with_suffix(".ipynb")
    kept = json.loads(path.read_text())["cells"]
    outputs = [output for cell in kept for output in cell.get("outputs", ())]
    assert all(cell["execution_count"] for cell in kept if cell["cell_type"] == "code")
    assert any("image/png" in output.get("data", ()) for output in outputs)
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert path.stat().st_size < MEGABYTE

"""The committed table of agreement: made of the committed figures, and of every case."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from benchmarks.agreement_table import CASES, SURVEY, disagreements, render
from tests.witness.cases import CONDITIONS, DRAFTS, PLAIN
from tests.witness.conditions import Rounding
from tests.witness.frameworks import Run

KEPT = Path(__file__).resolve().parents[1] / "benchmarks" / "agreement.json"
ASKED_OF_ALL = {"padded", "window", "bfloat16", "bfloat16+far"} | {
    f"{where}:{kind}"
    for where in ("near", "afar")
    for kind in ("default", "linear", "llama3", "yarn")
}


@pytest.fixture
def figures() -> dict[str, Any]:
    """What was measured."""
    return json.loads(KEPT.read_text())


def test_the_page_is_made_of_the_figures(figures):
    assert KEPT.with_suffix(".md").read_text() == render(figures)


def test_every_case_has_a_column_and_was_measured(figures):
    for framework, cases in DRAFTS.items():
        names = cases.keys() | CONDITIONS[framework].keys() | ASKED_OF_ALL
        names -= agreement.STOPPED_BY.get(framework, {}).keys()
        assert names <= CASES
        assert names <= figures["rows"][framework]["cells"].keys()


def test_a_cell_in_bfloat16_is_told_by_the_frameworks_own_rounding(figures):
    for row in figures["rows"].values():
        for name, cell in row["cells"].items():
            assert (cell["rounding"] is not None) == name.startswith("bfloat16")
            assert cell["rounding"] is None or 1e-3 < cell["rounding"] < 0.05
            # What is no rounding is far from it.
            assert cell["says"] is None or cell["difference"] > 10 * cell["allowed"]
    page = render(figures)
    cell = figures["rows"]["speculators"]["cells"]["bfloat16"]
    assert f"| speculators | {cell['difference']:.1f} x {cell['rounding']:.0e} |" in page
    read = figures["rows"]["modelopt"]["cells"]["bfloat16"]
    told = f"X {read['difference']:.0f}, as read {read['as_read']:.1f} x {read['rounding']:.0e} ("
    assert f"| modelopt | {told}" in page


def test_a_cell_is_rounding_or_a_reading_that_is_rounding(figures):
    for row in figures["rows"].values():
        for cell in row["cells"].values():
            assert (cell["says"] is None) == (cell["difference"] < cell["allowed"])
            assert (cell["difference"] if cell["says"] is None else cell["as_read"]) < cell[
                "allowed"
            ]


def test_the_survey_says_the_same(figures):
    both, other = disagreements(figures["rows"])
    assert both == sum(said != "-" for cells in SURVEY.values() for said in cells)
    assert not other


def test_what_the_survey_says_otherwise_is_told(figures):
    changed = deepcopy(figures)
    changed["rows"]["sglang"]["cells"]["llama3"] |= {"difference": 1.5, "says": "no scaling"}
    changed["rows"]["sglang"]["cells"]["llama3"]["as_read"] = 1e-6
    page = render(changed)
    assert "these say otherwise: sglang, llama3 rope: X here, ok there." in page
    assert "sglang: no scaling. Read so, it is within 1e-06 of ours." in page


def run_of(differences: list[float], monkeypatch) -> Run:
    """A run that differs by so much from each reading, in the order in which they are compared."""
    monkeypatch.setattr(agreement, "forward", lambda run, config: config)
    monkeypatch.setattr(agreement, "largest_difference", lambda run, config: differences.pop(0))
    knobs = PLAIN | {"norm_output": True}
    return Run("norm_output", knobs, {}, {}, {}, Path("specforge"))


RAW = agreement.READINGS["specforge"]["norm_output"]


def test_rounding_is_a_cell(monkeypatch):
    cell = agreement.compare(run_of([1e-6], monkeypatch), None)
    assert cell == agreement.Cell(1e-6, 1e-5)


def test_a_difference_with_its_reading_is_a_cell(monkeypatch):
    cell = agreement.compare(run_of([0.9, 2e-6], monkeypatch), RAW)
    assert cell == agreement.Cell(0.9, 1e-5, RAW.says, 2e-6)


@pytest.mark.parametrize(
    ("differences", "reading", "message"),
    [
        ([0.5], None, "error: specforge norm_output differs by 0.5, which no reading explains"),
        ([0.9, 0.5], RAW, "error: specforge norm_output differs by 0.9, and by 0.5 as it is read"),
        (
            [0.05, 1e-6],
            RAW,
            "error: specforge norm_output differs by 0.05, and by 1e-06 as it is read",
        ),
    ],
)
def test_a_difference_that_nothing_explains_ends_the_run(
    monkeypatch, differences, reading, message
):
    with pytest.raises(SystemExit) as caught:
        agreement.compare(run_of(differences, monkeypatch), reading)
    assert caught.value.args == (message,)


HALF = [Rounding(0.01, 1.0, 90.0), Rounding(0.01, 1.1, 0.8)]


def half_run(found: list[Rounding], monkeypatch) -> Run:
    """The same in bfloat16."""
    monkeypatch.setattr(agreement, "compare_rounding", lambda run, config: found.pop(0))
    return run_of([], monkeypatch)._replace(exact={})


def test_a_difference_in_bfloat16_is_told_in_roundings(monkeypatch):
    cell = agreement.compare(half_run([*HALF], monkeypatch), RAW)
    assert cell == agreement.Cell(90.0, 2.0, RAW.says, 0.8, 0.01)
    assert agreement.compare(half_run(HALF[1:], monkeypatch), None) == agreement.Cell(
        0.8, 2.0, rounding=0.01
    )


@pytest.mark.parametrize(
    ("found", "reading", "message"),
    [
        (HALF[:1], None, "differs by 90.0, which no reading explains"),
        ([HALF[0], HALF[0]], RAW, "differs by 90.0, and by 90.0 as it is read"),
        ([HALF[1], HALF[1]], RAW, "differs by 0.8, and by 0.8 as it is read"),
        (
            [Rounding(0.01, 0.0, 1.0)],
            None,
            "is not bfloat16 in both: Rounding(theirs=0.01, ours=0.0, apart=1.0)",
        ),
    ],
)
def test_what_is_no_rounding_in_bfloat16_ends_the_run(monkeypatch, found, reading, message):
    with pytest.raises(SystemExit) as caught:
        agreement.compare(half_run([*found], monkeypatch), reading)
    assert caught.value.args == (f"error: specforge norm_output {message}",)


def test_an_unknown_framework_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["agreement", "vllm"])
    with pytest.raises(SystemExit) as caught:
        agreement.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    known = "speculators, specforge, sglang, modelopt"
    assert f"framework 'vllm' is unknown, expected one of {known}" in said

"""The committed table of agreement: made of the committed figures, and of every case."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from benchmarks.agreement_table import CASES, SURVEY, disagreements, render
from tests.witness.cases import DRAFTS, PLAIN
from tests.witness.frameworks import Run

KEPT = Path(__file__).resolve().parents[1] / "benchmarks" / "agreement.json"
ELSEWHERE = {"bfloat16"}  # not float32


@pytest.fixture
def figures() -> dict[str, Any]:
    """What was measured."""
    return json.loads(KEPT.read_text())


def test_the_page_is_made_of_the_figures(figures):
    assert KEPT.with_suffix(".md").read_text() == render(figures)


def test_every_case_has_a_column_and_was_measured(figures):
    for framework, cases in DRAFTS.items():
        assert cases.keys() - ELSEWHERE <= CASES
        assert cases.keys() - ELSEWHERE <= figures["rows"][framework]["cells"].keys()


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


def test_an_unknown_framework_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["agreement", "vllm"])
    with pytest.raises(SystemExit) as caught:
        agreement.main()
    assert caught.value.code == 2
    said = capsys.readouterr().err
    known = "speculators, specforge, sglang, modelopt"
    assert f"framework 'vllm' is unknown, expected one of {known}" in said

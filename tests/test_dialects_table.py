"""Which framework checks a dialect: the field says what `tests/witness` runs, and no more."""

import json
import re
from pathlib import Path

from converters.dialects import DIALECTS
from tests.witness import test_framework_files as files

MEASURED = Path(__file__).parents[1] / "benchmarks" / "agreement.json"


def test_dialects_with_a_witness_are_those_whose_files_go_to_a_framework_or_come_from_one():
    source = Path(files.__file__).read_text()
    opened = {
        name
        for line in source.splitlines()
        if "dialect.name ==" in line
        for name in re.findall(r'"([\w.-]+)"', line)
    }
    journeys = (*files.TO_SPECULATORS, *files.TO_SPECFORGE, *files.TO_SGLANG)
    written = {journey.to for journey in journeys}
    assert {name for name, one in DIALECTS.items() if one.witness} == opened | written


def test_a_witness_was_measured():
    measured = json.loads(MEASURED.read_text())["rows"]
    assert {one.witness for one in DIALECTS.values() if one.witness} <= measured.keys()

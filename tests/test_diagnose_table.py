"""The page of planted faults: every case is counted once, and what fell short is named."""

from benchmarks.diagnose_table import counted, render, seconds_of

CASE = {
    "draft": "small-a",
    "family": "pair",
    "name": "one + other",
    "outcome": "named",
    "verdict": "another reading",
    "reading": "halves: swapped",
    "accepted": (0.25, 1.5, 1.25),
    "cpu_seconds": 9.0,
}
CASES = [
    CASE | {"family": "healthy", "outcome": "quiet", "cpu_seconds": 30.0},
    CASE | {"cpu_seconds": 70.0},
    CASE,
    CASE | {"outcome": "missed", "name": "third", "cpu_seconds": 11.0},
]


def test_outcomes_are_counted_by_family_and_healthy_ones_come_last():
    found = counted(CASES)
    assert list(found) == ["pair", "healthy"]
    assert {name: count for name, count in found["pair"].items() if count} == {
        "named": 2,
        "missed": 1,
    }


def test_the_first_search_which_compiles_is_timed_apart():
    assert seconds_of(CASES)["small-a"] == {
        "first": 30.0,
        "median": 11.0,
        "slowest": 70.0,
        "under the limit": 2 / 3,
    }


def test_what_fell_short_is_named_with_its_figures():
    page = render(CASES)
    assert "3 planted, 1 healthy, over small-a." in page
    (line,) = [line for line in page.splitlines() if line.startswith("- small-a")]
    assert "pair: third: missed; the verdict is another reading: halves: swapped" in line
    assert "as configured 0.25, as trained 1.50, by the verdict 1.25" in line
    assert render(CASES[:3]).endswith("## What fell short\n\nNothing.\n")

"""Tokens per second, from the times that a user gives: worked by hand, and through `eval`."""

import io
import json
import re

import pytest
from rich.console import Console

from eagle3_jax.cli import progress
from eagle3_jax.cli.main import main
from eagle3_jax.cli.speeds import Costs, costs_of, reckon_speeds
from eagle3_jax.cli.tables import print_speeds
from eagle3_jax.errors import InputError
from tests.samples import texts, tiny_draft, write_draft, write_texts

OPTIONS = "--draft-ms, --verify-ms, --baseline-ms"


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch):
    monkeypatch.setattr(progress, "_PATIENCE", 3600.0)


def walks(*tokens_per_round):
    return [
        {"steps": k, "rounds": 1, "tokens": 2, "tokens_per_round": tokens}
        for k, tokens in enumerate(tokens_per_round, 1)
    ]


def test_speeds_by_hand():
    found = reckon_speeds(walks(1.5, 1.8, 2.0), Costs(draft=2.0, verify=10.0, baseline=8.0))
    assert found == {
        "draft_ms": 2.0,
        "verify_ms": 10.0,
        "baseline_ms": 8.0,
        "by_steps": [
            {"steps": k, "tokens_per_round": tokens, "round_ms": ms}
            | {"tokens_per_second": pytest.approx(speed), "speedup": pytest.approx(gain)}
            for k, tokens, ms, speed, gain in (
                (0, 1.0, 8.0, 125.0, 1.0),
                (1, 1.5, 12.0, 125.0, 1.0),
                (2, 1.8, 14.0, 1800 / 14, 1800 / 14 / 125),
                (3, 2.0, 16.0, 125.0, 1.0),
            )
        ],
        "best_steps": 2,
    }


def test_a_draft_may_be_slower_than_none():
    """Met in the field: 1.9 tokens a round at 16 draft tokens, and slower than without a draft."""
    found = reckon_speeds(walks(*[1.9] * 16), Costs(draft=1.5, verify=25.0, baseline=20.0))
    assert found["by_steps"][16]["speedup"] < 1 < found["by_steps"][1]["speedup"]
    assert found["best_steps"] == 1
    found = reckon_speeds(walks(*[1.9] * 16), Costs(draft=20.0, verify=25.0, baseline=20.0))
    assert found["best_steps"] == 0


def test_among_equals_the_fewest_steps_are_best():
    found = reckon_speeds(walks(2.0, 3.0), Costs(draft=1.0, verify=1.0, baseline=1.0))
    assert [step["speedup"] for step in found["by_steps"]] == [1.0, 1.0, 1.0]
    assert found["best_steps"] == 0


def test_no_round_tells_nothing():
    found = reckon_speeds(walks(None, None), Costs(1.0, 1.0, 1.0))
    assert found["best_steps"] is None
    assert found["by_steps"][2]["tokens_per_second"] is None
    assert found["by_steps"][2]["speedup"] is None


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((1.0, None, None), "--verify-ms and --baseline-ms missing"),
        ((None, 1.0, None), "--draft-ms and --baseline-ms missing"),
        ((1.0, 1.0, None), "--baseline-ms missing"),
        ((None, 1.0, 1.0), "--draft-ms missing"),
    ],
)
def test_a_time_that_is_missing(times, message):
    with pytest.raises(InputError, match=f"^{message}, expected all three or none of {OPTIONS}$"):
        costs_of(*times)
    assert costs_of(None, None, None) is None


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e-7, 1e10])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_time_that_is_none(value, place):
    times = [1.0, 1e-6, 1e9]
    assert costs_of(*times) == Costs(*times)
    times[place] = value
    option = OPTIONS.split(", ")[place]
    message = f"{option} is {value}, expected milliseconds from 1e-06 to 1e+09"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        costs_of(*times)


def test_eval_reckons_with_the_walk_of_each_number_of_steps(tmp_path, capsys):
    draft = write_draft(tmp_path / "draft", tiny_draft(embeddings=True))
    shard = write_texts(tmp_path / "a.safetensors", texts())
    arguments = ["eval", "--draft", str(draft), "--shards", str(shard), "--json", "-"]
    times = ["--draft-ms", "1", "--verify-ms", "10", "--baseline-ms", "9"]
    assert main([*arguments, *times, "--steps", "3"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    speed = found["speed"]
    assert speed == reckon_speeds(found["walked_by_steps"], Costs(1.0, 10.0, 9.0))
    assert found["walked_by_steps"][-1] == {"steps": 3} | found["walked"]
    assert main([*arguments, "--steps", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert "speed" not in alone
    assert alone["walked_by_steps"] == found["walked_by_steps"][:1]
    best = speed["best_steps"]
    assert best == 1
    said = " ".join(err.split())
    for step in speed["by_steps"]:
        star = "*" if step["steps"] == best else " "
        assert (
            f"{star}{step['steps']} {step['tokens_per_round']:.3f} {step['round_ms']:.3f} "
            f"{step['tokens_per_second']:.3f} {step['speedup']:.3f}"
        ) in said
    gain = speed["by_steps"][best]["speedup"]
    assert f"best 1 draft step: {gain:.2f} times the tokens per second of no draft" in said


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((1.5, 1.6), "best  1 draft step: 1.25 times the tokens per second of no draft"),
        ((1.5, 2.8), "best  2 draft steps: 2.00 times the tokens per second of no draft"),
        ((1.2, 1.4), "best  0 draft steps: no draft at all is as fast as any number of them"),
        ((None, None), "best  not known: no answer is long enough for a round"),
    ],
)
def test_the_best_number_of_steps_is_told_in_words(tokens, message):
    told = io.StringIO()
    speed = reckon_speeds(walks(*tokens), Costs(draft=2.0, verify=10.0, baseline=10.0))
    print_speeds(Console(file=told, width=100), speed)
    assert told.getvalue().splitlines()[-1] == message
    assert ("-" in told.getvalue().splitlines()[-3]) == (tokens[0] is None)


def test_times_are_refused_in_one_line_before_anything_is_read(capsys):
    assert main(["eval", "--draft", "nowhere", "--shards", "x", "--draft-ms", "1"]) == 2
    assert capsys.readouterr().err == (
        f"error: --verify-ms and --baseline-ms missing, expected all three or none of {OPTIONS}\n"
    )

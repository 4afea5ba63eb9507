"""What a diagnosis prints: what is right, what to change, what else may be."""

import io

from rich.console import Console

from eagle3_jax.cli.diagnosis_tables import print_diagnosis

MOVED = {"axis": "states", "choice": "slot 0, slot 1, slot 2 (all moved by -1)"}
DROPPED = {"axis": "tensors", "choice": "fc_norm.0.weight dropped"}
KEY = {"key": "aux_hidden_state_layer_ids", "now": [3, 16, 28], "right": [2, 15, 27]}


def row(*changes, tokens):
    told = "; ".join(f"{part['axis']}: {part['choice']}" for part in changes)
    return {
        "reading": told or "as configured",
        "changes": list(changes),
        "tokens_per_round": tokens,
        "joint": [0.5],
    }


def correction(keys=(), refused=None, outside=()):
    config = {"framework": "vllm", "keys": list(keys), "refused": refused}
    return {"boundaries": None, "configs": [config], "outside_the_config": list(outside)}


def printed(*, verdict=None, **changes):
    told = {
        "kind": "another reading",
        "told": "moved gets more",
        "reading": [MOVED],
        "ties": [],
        "undecided": {},
    }
    found = {
        "verdict": told | (verdict or {}),
        "correction": correction(),
        "weights": [],
        "slots": {"findings": []},
        "serving": [],
        "readings": [row(MOVED, tokens=2.25), row(MOVED, DROPPED, tokens=2.24), row(tokens=1.5)],
        "engines": [],
        "configured": {"boundaries": [3, 16, 28], "slots": [1, 2, 3], "source": "--slots"},
        "documents": 9,
        "shards": ["one.safetensors"],
        "layout": "specforge",
        "notes": [],
        "bad": [],
    }
    stream = io.StringIO()
    print_diagnosis(Console(file=stream, width=200), found | changes)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def lines_with(lines, text):
    return [" ".join(line.split()) for line in lines if text in line]


def test_a_reading_that_adds_to_the_verdicts_is_told_by_what_it_adds():
    lines = printed()
    assert lines_with(lines, "2.24") == [
        "the verdict's; tensors: fc_norm.0.weight dropped 2.24 50.0%"
    ]
    (moved,) = lines_with(lines, "2.25")
    assert moved.startswith("states: slot 0, slot 1")
    assert lines_with(lines, "1.50") == ["as configured 1.50 50.0%"]


def test_a_config_that_is_right_has_no_key_to_change():
    told = "no key to change: the config is right, and what fed the draft is not"
    assert told in printed()
    for other in (
        correction([KEY]),
        correction(refused="it has no such norm"),
        correction(outside=["states' norm: each divided by its root mean square"]),
    ):
        assert told not in printed(correction=other)


def test_keys_to_change_are_told_with_what_they_are():
    lines = printed(correction=correction([KEY]))
    assert lines_with(lines, "aux_hidden_state") == [
        "vllm aux_hidden_state_layer_ids [3, 16, 28] [2, 15, 27]"
    ]
    assert "for the first of those that are as good:" not in lines


def test_of_readings_that_tie_the_first_is_corrected():
    lines = printed(verdict={"ties": [[DROPPED]]}, correction=correction([KEY]))
    assert "  as good: tensors: fc_norm.0.weight dropped" in lines
    assert "for the first of those that are as good:" in lines


def test_what_is_undecided_has_a_line_for_each_choice_that_may_be_otherwise():
    undecided = {"position base": ["1, as speculators counts"], "tensors": ["a", "b"]}
    lines = printed(verdict={"undecided": undecided})
    begin = lines.index("makes no difference on these texts, and may be either way")
    assert lines[begin + 1 :] == [
        "  position base  1, as speculators counts",
        "  tensors        a; b",
    ]
    assert not [line for line in printed() if "makes no difference" in line]

"""How servers read a checkpoint: every expectation is written by hand from the servers' code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.drafts import open_draft
from converters.engines import ENGINES, engine_of, serve_all
from converters.engines.capturing import read_capture
from converters.engines.views import View
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap
from tests import engine_knobs, engine_ropes, engine_shapes, engine_tensors
from tests.engine_samples import opened, served_by
from tests.raw_drafts import ABSENT, LAYER_IDS, write_raw

TRAPS = [
    *engine_knobs.TRAPS,
    *engine_ropes.TRAPS,
    *engine_tensors.TRAPS,
    *engine_shapes.TRAPS,
]
DEMO = Path(__file__).resolve().parents[1] / "eagle3_jax/demo/draft"
# Layers ids of a config -> what each engine captures: ids at the draft's `eagle_config`.
DEFAULT = [name for name in ENGINES if name not in ("sglang", "vllm")]
CAPTURES: list[tuple[str, list[int] | None, int, str, dict[str, tuple[int, ...]]]] = [
    ("a 30-layer llama", [1, 14, 26], 30, "llama", {
        "sglang": (2, 15, 27), "vllm": (1, 14, 26), **dict.fromkeys(DEFAULT, (2, 15, 27)),
    }),
    ("Kimi, ids as boundaries", [2, 30, 58], 61, "kimi_k2", {
        "sglang": (2, 30, 58), "vllm": (2, 30, 58), **dict.fromkeys(DEFAULT, (2, 30, 58)),
    }),
    ("Kimi, ids as outputs", [1, 29, 57], 61, "kimi_k25", {
        "sglang": (2, 30, 58), "vllm": (1, 29, 57), **dict.fromkeys(DEFAULT, (2, 30, 58)),
    }),
    ("Kimi's list, another class", [2, 30, 58], 61, "qwen3_moe", {"sglang": (3, 31, 59)}),
    ("the embedding, as an output", [-1, 2, 30], 61, "llama", {
        "sglang": (0, 3, 31), "vllm": (2, 30), **dict.fromkeys(DEFAULT, (2, 30, 58)),
    }),
    ("the embedding, as no boundary", [-1, 2, 30], 61, "deepseek_v3", {"sglang": (2, 30)}),
    ("the embedding, as a boundary", [0, 2, 30], 61, "deepseek_v2", {
        "sglang": (0, 2, 30), "vllm": (0, 2, 30),
    }),
    ("GLM's rule is DeepSeek's", [2, 23, 44], 47, "glm4_moe_lite", {"sglang": (2, 23, 44)}),
    ("GLM's rule, outputs", [1, 22, 43], 47, "glm4_moe_lite", {"sglang": (2, 23, 44)}),
    ("gpt-oss up to the end", [24, 30, 36], 36, "gpt_oss", {
        "sglang": (24, 30, 36), "vllm": (24, 30, 36), "llama.cpp": (2, 18, 33),
    }),
    ("gpt-oss, outputs", [1, 17, 33], 36, "gpt_oss", {"sglang": (2, 18, 34)}),
    ("the end as an output", [23, 29, 35], 36, "gpt_oss", {"sglang": (24, 30, 36)}),
    ("the end, which llama never meets", [23, 29, 35], 36, "llama", {"sglang": (24, 30)}),
    ("no ids", None, 61, "deepseek_v3", {
        "sglang": (2, 30, 58), "vllm": (2, 30, 58), **dict.fromkeys(DEFAULT, (2, 30, 58)),
    }),
    ("no ids, MiniMax adds one", None, 40, "minimax_m3_vl", {"sglang": (3, 21, 38)}),
    ("MiniMax, outputs", [1, 19, 36], 40, "minimax_m3_vl", {"sglang": (2, 20, 37)}),
    ("order does not matter", [33, 1, 17], 36, "qwen3", {"sglang": (2, 18, 34)}),
    ("duplicates collapse", [1, 1, 9], 12, "qwen2", {"sglang": (2, 10), "vllm": (1, 9)}),
    ("a shallow target collapses", None, 6, "llama", {"sglang": (2, 3), "vllm": (2, 3)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "layers", "target_class", "expected"),
    [row[1:] for row in CAPTURES],
    ids=[row[0] for row in CAPTURES],
)
def test_captures(ids, layers, target_class, expected):
    view = View({}, {} if ids is None else {LAYER_IDS: ids}, "config.json", "", None, ())
    found = {
        name: read_capture(view, engine_of(name), layers, target_class).boundaries
        for name in expected
    }
    assert found == expected


@pytest.mark.parametrize(
    ("engine", "target_class", "ids", "told"),
    [
        ("sglang", "llama", [1, 14, 26], "eagle_config ids [1, 14, 26] read as outputs"),
        ("vllm", "llama", [1, 14, 26], "eagle_config ids [1, 14, 26] read as boundaries"),
        (
            "vllm-new-runner",
            "llama",
            [1, 14, 26],
            "config ignored: eagle_config ids [1, 14, 26] unread: default 2, L//2, L-3",
        ),
        ("sglang", "llama", None, "no layer ids: default 2, L//2, L-3"),
        (
            "sglang",
            "deepseek_v3",
            [1, 14, 26],
            "eagle_config ids [1, 14, 26] read as outputs, since ids[0] is 1 (deepseek_v3's rule, "
            "srt/models/deepseek_v2.py:3458-3473)",
        ),
        (
            "sglang",
            "kimi_k2",
            [2, 14, 26],
            "eagle_config ids [2, 14, 26] read as boundaries, since ids[0] is not 1 (kimi_k2's "
            "rule, srt/models/deepseek_v2.py:3458-3473)",
        ),
        (
            "sglang",
            "gpt_oss",
            [10, 20, 30],
            "eagle_config ids [10, 20, 30] read as boundaries, since the largest is 30, the "
            "target's depth (gpt_oss's rule, srt/models/gpt_oss.py:1337-1352,732-736)",
        ),
        (
            "sglang",
            "minimax_m3_vl",
            None,
            "no layer ids: default 2, L//2, L-3, each 1 later (minimax_m3_vl's rule, "
            "srt/models/minimax_m3_vl.py:246-263)",
        ),
        (
            "sglang",
            "step3p5",
            [4, 20, 25],
            "eagle_config ids [4, 20, 25] read as outputs (class 'step3p5' is unknown here: the "
            "general rule, srt/models/llama.py:929-941)",
        ),
        (
            "sglang",
            "qwen3",
            [-1, 14, 14],
            "eagle_config ids [-1, 14, 14] read as outputs; id -1 is the embedding; 3 ids, 2 "
            "different ones",
        ),
    ],
)
def test_why_is_told(engine, target_class, ids, told):
    view = View({}, {} if ids is None else {LAYER_IDS: ids}, "config.json", "", None, ())
    assert read_capture(view, engine_of(engine), 30, target_class).told == told


@pytest.mark.parametrize(
    ("engine", "target_class", "ids", "refused"),
    [
        ("sglang", "kimi_k2", [-1, 2, 30], "boundary -1 never met in 61 layers, 0 to 60 are"),
        ("vllm", "llama", [-1, 2, 30], "boundary -1 never met in 61 layers, 0 to 61 are"),
        ("vllm", "llama", [2, 62, 63], "boundaries 62, 63 never met in 61 layers, 0 to 61 are"),
        ("sglang", "llama", [1, 2, 60], "boundary 61 never met in 61 layers, 0 to 60 are"),
        ("sglang", "gemma4", [1, 2, 60], None),
        ("vllm", "llama", [2, 30, 61], None),
    ],
)
def test_a_boundary_that_is_none(engine, target_class, ids, refused):
    view = View({}, {LAYER_IDS: ids}, "config.json", "", None, ())
    assert read_capture(view, engine_of(engine), 61, target_class).refused == refused


def test_places_of_ids(tmp_path):
    places = {"top": [3, 5, 8], "eagle_config": [2, 4, 7], "layer_ids": [4, 6, 9]}
    nested = {LAYER_IDS: places["eagle_config"], "layer_ids": places["layer_ids"]}
    found = {}
    for name, keys in {
        "all": {LAYER_IDS: places["top"], "eagle_config": nested},
        "nested": {"eagle_config": nested},
    }.items():
        draft = opened(tmp_path / name, {"eagle_config": ABSENT})
        write_raw(tmp_path / name, keys)
        for engine in ENGINES:
            found[name, engine] = served_by(engine, tmp_path / name, draft).boundaries
    usual = (2, 6, 9)
    assert found == {
        **{(name, engine): usual for name in ("all", "nested") for engine in ENGINES},
        ("all", "sglang"): (3, 5, 8),
        ("nested", "sglang"): (3, 5, 8),
        ("all", "vllm"): (3, 5, 8),
        ("nested", "vllm"): (2, 4, 7),
        ("all", "vllm-new-runner"): (3, 5, 8),
        ("nested", "vllm-new-runner"): (4, 6, 9),
        ("all", "speculators"): (3, 5, 8),
        ("all", "llama.cpp"): (3, 5, 8),
    }


def test_the_demo_draft_on_every_engine():
    rows = serve_all(DEMO, open_draft(DEMO), target_layers=30, target_class="llama")
    assert {row.engine: row.boundaries for row in rows} == {
        name: (1, 14, 26) if name == "vllm" else (2, 15, 27) for name in ENGINES
    }
    by_name = {row.engine: row for row in rows}
    loaded = {name for name, row in by_name.items() if row.refused is None}
    vllms = {"vllm", "vllm-new-runner"}
    assert loaded == vllms | {"safeailab", "sglang", "tensorrt-llm", "sglang-jax"}
    exact = {name for name in loaded if not by_name[name].differences}
    assert exact == {"sglang", "vllm-new-runner", "tensorrt-llm"}
    assert by_name["vllm"].differences == (
        "capture: boundaries [1, 14, 26], trained on [2, 15, 27]",
    )
    assert (
        "layer ids [2, 15, 27] at the top of config.json would make it capture [2, 15, 27]"
        in by_name["vllm"].rules
    )


@pytest.mark.parametrize("trap", TRAPS, ids=[trap.told for trap in TRAPS])
def test_traps(trap, tmp_path):
    draft = opened(
        tmp_path / "draft", trap.keys, trap.tensors, dialect=trap.dialect, **trap.settings
    )
    for engines, expected in trap.expected.items():
        for engine in engines.split():
            served = served_by(engine, tmp_path / "draft", draft, **trap.options)
            for name, value in expected.items():
                assert_holds(served, name, value, f"{engine} {name}")


def assert_holds(served: Any, name: str, expected: Any, where: str) -> None:
    """A field of the config, an exact field, or texts that some entries contain."""
    if name.startswith("config."):
        found = served.config
        for part in name.split(".")[1:]:
            found = getattr(found, part)
        assert found == expected, where
    elif name == "vocab":
        assert isinstance(served.vocab, VocabMap) == (expected[0] == "map"), where
        ids = served.vocab.target_ids if isinstance(served.vocab, VocabMap) else served.vocab
        np.testing.assert_array_equal(ids, expected[1], err_msg=where)
    elif name == "dropped":
        found = {key: why for key, why in served.dropped.items() if key != "t2d"}
        assert found == expected, where
    elif name == "refused" and expected is not None:
        assert served.refused is not None, where
        assert expected in served.refused.split("; "), f"{where}: {served.refused}"
    elif name in ("differences", "rules", "flags") and expected:
        for text in [expected] if isinstance(expected, str) else expected:
            assert text in getattr(served, name), f"{where}: {getattr(served, name)}"
    else:
        assert getattr(served, name) == expected, where


def test_a_rule_only_where_it_bites(tmp_path):
    pruned = served_by("sglang", tmp_path / "a", opened(tmp_path / "a"))
    asked = "--speculative-use-rejection-sampling"
    assert any(rule.startswith(asked) for rule in pruned.rules)
    assert not any("window" in text for text in (*pruned.rules, *pruned.flags))
    whole = {"d2t": None, "t2d": None, "lm_head.weight": np.ones((32, 8), np.float32)}
    draft = opened(tmp_path / "b", {"draft_vocab_size": 32}, whole)
    assert not any(
        rule.startswith(asked) for rule in served_by("sglang", tmp_path / "b", draft).rules
    )


def test_no_ids_capture_it(tmp_path):
    draft = opened(tmp_path / "draft", {"eagle_config": {LAYER_IDS: [2, 4, 11]}})
    told = served_by("sglang", tmp_path / "draft", draft).rules[-1]
    assert told == "no layer ids make it capture boundaries [3, 5, 12] of this target"


def test_bad_input(tmp_path):
    draft = opened(tmp_path / "draft")
    write_raw(tmp_path / "draft", {"eagle_config": {LAYER_IDS: "1,2"}})
    where = tmp_path / "draft/config.json"
    with pytest.raises(InputError) as raised:
        served_by("sglang", tmp_path / "draft", draft)
    assert str(raised.value) == (
        f"{where}: eagle_config.{LAYER_IDS} is '1,2', expected a list of integers"
    )
    with pytest.raises(InputError) as raised:
        engine_of("vllm-0")
    assert str(raised.value) == (
        f"engine 'vllm-0' is unknown, expected one of {', '.join(ENGINES)}"
    )

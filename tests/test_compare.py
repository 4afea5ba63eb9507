"""`compare` finds the stage at which two traces part first, and says what that looks like."""

import dataclasses
import json
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from converters.traces import read_trace, write_trace
from eagle3_jax.cli.main import main
from eagle3_jax.compare import compare
from eagle3_jax.config import AttentionConfig, LinearScaling, RopeConfig
from eagle3_jax.errors import InputError
from eagle3_jax.model import head_kernel
from eagle3_jax.stages import ONCE, Step, Trace, stage_names
from eagle3_jax.trace import trace
from tests.conftest import random_params, random_text, tiny_config
from tests.torch_files import tensor, write_torch

COLUMNS, STEPS, ROWS = 8, 2, 2
HEADS = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4)
CONFIG = tiny_config(attention=HEADS)
EVERY = tiny_config(num_layers=2, fc_norm=True, attention=dataclasses.replace(HEADS, qk_norm=True))


def traced(config, params=None, *, steps=STEPS, columns=COLUMNS):
    """Our trace of a random text, as the command writes it."""
    params = random_params(config) if params is None else params
    aux, embeddings = random_text(config, columns=columns, rows=ROWS)
    found = _traced(config, params, aux, embeddings, steps)
    tokens = np.random.default_rng(5).integers(0, 32, (ROWS, columns + steps))
    made = []
    for k in range(steps):
        stages = {name: np.asarray(stage[k]) for name, stage in found.steps.items()}
        if k == 0:
            stages |= {name: np.asarray(stage) for name, stage in found.once.items()}
        stages["token"] = tokens[:, 1 + k : 1 + k + columns, None]
        flat = {name: stage.reshape(ROWS * columns, -1) for name, stage in stages.items()}
        rows, places = np.divmod(np.arange(ROWS * columns), columns)
        made.append(Step(rows, places, flat))
    return Trace(tuple(made), {"head_dim": str(config.attention.head_dim)})


def _traced(config, params, aux, embeddings, steps):
    columns, kernel = jnp.arange(aux.shape[1]), head_kernel(config, params)
    # Operation by operation: configurations of the same shapes share what is compiled.
    with jax.default_matmul_precision("highest"), jax.disable_jit():
        return trace(config, params, kernel, aux, embeddings, steps=steps, columns=columns)


@cache
def plain():
    return traced(CONFIG)


@cache
def every():
    return traced(EVERY)


def changed(found, change):
    """A trace whose stages went through `change(step, stage, array)`."""
    steps = [
        step._replace(
            stages={name: change(k, name, part.copy()) for name, part in step.stages.items()}
        )
        for k, step in enumerate(found.steps)
    ]
    return found._replace(steps=tuple(steps))


PLACES = [(k, name) for k in range(STEPS) for name in stage_names(2) if not k or name not in ONCE]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0]}.{place[1]}")
def test_a_planted_parting_is_found_at_its_stage(place):
    """The stage and all that is computed after it are changed, at two columns of one text."""
    number = PLACES.index(place)

    def plant(k, name, part):
        if (k, name) not in PLACES[number:]:
            return part
        if part.dtype.kind == "i":
            part[[11, 12]] += 1
        else:
            part[[11, 12]] *= 1.1
        return part

    result = compare(every(), changed(every(), plant))
    assert (result.first.step, result.first.stage) == place
    assert result.rows.tolist() == [1, 1]
    assert result.positions.tolist() == [3 + place[0], 4 + place[0]]
    assert result.suspicion
    assert [(found.step, found.stage) for found in result.found] == PLACES
    assert not any(len(found.parted) for found in result.found[:number])


def test_equal_traces_agree():
    result = compare(plain(), plain())
    assert result.first is None
    assert result.suspicion == ""
    assert result.tolerance == 1e-5
    assert {found.largest for found in result.found} == {0.0}


def test_rounding_is_no_parting_and_ten_times_as_much_is():
    noise = np.random.default_rng(3)

    def shaken(size):
        def change(_, __, part):
            if part.dtype.kind == "i":
                return part
            return (part * (1 + size * noise.uniform(-1, 1, part.shape))).astype(part.dtype)

        return change

    assert compare(plain(), changed(plain(), shaken(8e-6))).first is None
    assert compare(plain(), changed(plain(), shaken(1e-4))).first.stage == "aux"
    assert compare(plain(), changed(plain(), shaken(1e-4)), 1e-3).first is None
    assert compare(plain(), changed(plain(), shaken(8e-6)), 1e-7).first.stage == "aux"


def test_what_is_measured():
    def change(k, name, part):
        if (k, name) == (0, "fc"):
            part[3] = -2 * part[3]
        return part

    result = compare(plain(), changed(plain(), change))
    whole = plain().steps[0].stages["fc"][3]
    assert result.first.largest == pytest.approx(3 * np.abs(whole).max())
    assert result.first.relative == pytest.approx(1.5)
    assert result.first.cosine == pytest.approx(-1.0)
    assert result.first.columns == ROWS * COLUMNS


def test_a_nearly_empty_column_is_measured_by_the_usual_size():
    def small(_, name, part):
        if name == "fc":
            part[2] *= 1e-7
        return part

    def other(_, name, part):
        part = small(_, name, part)
        if name == "fc":
            part[2] *= 3
        return part

    assert compare(changed(plain(), small), changed(plain(), other)).first is None


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_none(value):
    def spoil(k, name, part):
        if (k, name) == (1, "layers.0.mlp"):
            part[4, 1] = value
        return part

    spoilt = changed(plain(), spoil)
    result = compare(plain(), spoilt)
    assert (result.first.step, result.first.stage) == (1, "layers.0.mlp")
    assert result.first.largest == np.inf
    assert (compare(spoilt, spoilt).first is None) == np.isinf(value)


def narrowed(found, dtype):
    def change(_, __, part):
        return part if part.dtype.kind == "i" else part.astype(dtype)

    return changed(found, change)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(ml_dtypes.bfloat16, 3e-2), (np.float16, 4e-3), (np.float64, 1e-5)]
)
def test_the_tolerance_is_that_of_the_coarsest_type(dtype, tolerance):
    result = compare(plain(), narrowed(plain(), dtype))
    assert result.tolerance == tolerance
    assert result.first is None
    assert compare(narrowed(plain(), dtype), plain()).tolerance == tolerance


def test_a_best_id_may_be_another_where_two_logits_are_equal():
    def swapped(step, name, part):
        if name == "top_ids":
            part[:, [0, 1]] = part[:, [1, 0]]
        return part

    def even(step, name, part):
        if name == "top_logits":
            part[:, 1] = part[:, 0] * (1 + 1e-6)
        return part

    assert compare(plain(), changed(plain(), swapped)).first.stage == "top_ids"
    tied = changed(plain(), even)
    assert compare(tied, changed(tied, swapped)).first is None


# Real faults


def first_and_suspicion(params=None, **changes):
    result = compare(plain(), traced(dataclasses.replace(CONFIG, **changes), params))
    return (result.first.step, result.first.stage), result


def test_theta():
    place, result = first_and_suspicion(rope=RopeConfig(theta=5e5))
    assert place == (0, "layers.0.q_rotated")
    assert result.suspicion == (
        "q is equal before RoPE, not after: theta or scaling (pairs keep their length); equal at "
        "positions below 1 only"
    )


def test_rope_scaling():
    place, result = first_and_suspicion(rope=RopeConfig(scaling=LinearScaling(4.0)))
    assert place == (0, "layers.0.q_rotated")
    assert "theta or scaling" in result.suspicion


def with_params(change):
    params = jax.tree.map(np.array, random_params(CONFIG))
    change(params, params["layers_0"], params["layers_0"]["self_attn"])
    return jax.tree.map(jnp.asarray, params)


def swap(tree, one, other):
    tree[one], tree[other] = tree[other], tree[one]


def permute(tree, rows):
    tree["kernel"] = tree["kernel"][:, rows]


HEADS_OF_V = [4, 5, 6, 7, 0, 1, 2, 3]
FAULTS = {
    "k and v": (
        lambda _, __, attention: swap(attention, "k_proj", "v_proj"),
        "layers.0.k",
        "k of one is v of the other: the fused matrix is split otherwise",
    ),
    "heads of v": (
        lambda _, __, attention: permute(attention["v_proj"], HEADS_OF_V),
        "layers.0.v",
        "v has the same numbers in another order: heads or rows of the matrix are permuted",
    ),
    "v alone": (
        lambda _, __, attention: attention.update(
            v_proj={"kernel": attention["v_proj"]["kernel"] * 1.5}
        ),
        "layers.0.v",
        "q and k are equal, v is not: the fused matrix's split, or a bias",
    ),
    "halves": (
        lambda _, __, attention: [
            attention.update({name: {"kernel": np.roll(attention[name]["kernel"], 8, axis=0)}})
            for name in ("q_proj", "k_proj", "v_proj")
        ],
        "layers.0.q",
        "the normed halves are equal, q, k and v are not: the order of the halves (the "
        "embedding's comes first), or their weights or biases",
    ),
    "norms of the halves": (
        lambda _, layer, __: swap(layer, "input_layernorm", "hidden_norm"),
        "layers.0.embedding_normed",
        "the weights of input_layernorm and hidden_norm are swapped",
    ),
    "the norm after attention": (
        lambda _, layer, __: swap(layer, "post_attention_layernorm", "hidden_norm"),
        "layers.0.hidden_normed",
        "the hidden half is equal, the normed one is not: only its weights differ, by one factor "
        "for each channel",
    ),
    "the final norm": (
        lambda params, _, __: params["norm"].update(scale=params["norm"]["scale"] + 1),
        "head_input",
        "the last layer's output is equal, what the head reads is not: only its weights differ, by "
        "one factor for each channel",
    ),
    "gate and up": (
        lambda _, layer, __: swap(layer["mlp"], "gate_proj", "up_proj"),
        "layers.0.gate",
        "gate of one is up of the other: the fused matrix is split otherwise",
    ),
    "o_proj": (
        lambda _, __, attention: attention["o_proj"].update(
            kernel=attention["o_proj"]["kernel"][::-1]
        ),
        "layers.0.attention_out",
        "the mixed values are equal, o_proj's output is not: its weights or its bias",
    ),
    "the states before fc": (
        lambda params, _, __: params["fc"].update(kernel=np.roll(params["fc"]["kernel"], 8, 0)),
        "fc",
        "what fc reads is equal, its output is not: its weights or its bias, or the target's "
        "states in another order",
    ),
    "rows of the head": (
        lambda params, _, __: permute(params["lm_head"], np.roll(np.arange(12), 1)),
        "logits",
        "logits has the same numbers in another order: the rows of the head are permuted",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_weights(name):
    change, stage, suspicion = FAULTS[name]
    place, result = first_and_suspicion(with_params(change))
    assert place == (0, stage)
    assert result.suspicion == suspicion


def test_norm_output():
    place, result = first_and_suspicion(norm_output=True)
    assert place == (0, "state")
    assert result.suspicion == (
        "what the head reads is equal, what the next step is fed is not: norm_output"
    )


def without(found, *stages):
    """A trace by somebody who cannot hear these stages, of any layer."""
    steps = [
        step._replace(
            stages={
                name: part
                for name, part in step.stages.items()
                if name.rpartition(".")[2] not in stages
            }
        )
        for step in found.steps
    ]
    return found._replace(steps=tuple(steps))


def test_norm_output_where_the_state_is_not_recorded():
    theirs = without(traced(dataclasses.replace(CONFIG, norm_output=True)), "state")
    result = compare(plain(), theirs)
    assert (result.first.step, result.first.stage) == (1, "hidden")
    assert result.suspicion == (
        "the step before is equal, what this one is fed is not: norm_output (the raw state against "
        "the normed one)"
    )
    assert result.notes == ("in the first trace alone: state",)


def test_norm_before_residual():
    place, result = first_and_suspicion(norm_before_residual=True)
    assert place == (0, "layers.0.residual")
    assert "norm_before_residual" in result.suspicion


def test_epsilon():
    place, result = first_and_suspicion(rms_norm_eps=0.1)
    assert place == (0, "layers.0.embedding_normed")
    assert result.suspicion == (
        "the embedding is equal, the normed one is not: input_layernorm's weights or epsilon"
    )


def test_a_window():
    window = dataclasses.replace(HEADS, sliding_window=4)
    place, result = first_and_suspicion(attention=window)
    assert place == (0, "layers.0.scores_lse")  # the largest score may be a near one
    assert result.suspicion == (
        "q and k are equal after RoPE, their scores are not: the scale, the mask, or keys that the "
        "cache has lost; equal at positions below 4 only: sliding window or rope scaling"
    )


def test_theta_where_nobody_hears_rope():
    between = ("q_rotated", "k_rotated", "scores_max", "scores_lse")
    theirs = without(traced(dataclasses.replace(CONFIG, rope=RopeConfig(theta=5e5))), *between)
    result = compare(plain(), theirs)
    assert (result.first.step, result.first.stage) == (0, "layers.0.attention")
    assert result.suspicion == (
        "q, k and v are equal, the mixed values are not, and one trace has no stage between: RoPE "
        "(theta, scaling, pairing), the scale, or the mask; equal at positions below 1 only"
    )


def turned(found, pairs, by):
    """Queries and keys turned from those before RoPE, in pairs of one's own, at other positions."""

    def change(step, k):
        stages = dict(step.stages)
        for name in "qk":
            heads = stages[f"layers.0.{name}"].reshape(len(step.rows), -1, 4)
            angles = (step.columns + k + by)[:, None] * np.array([1.0, 1e-2])
            out = np.empty_like(heads)
            for i, (one, other) in enumerate(pairs):
                cos, sin = np.cos(angles[:, i, None]), np.sin(angles[:, i, None])
                out[..., one] = heads[..., one] * cos - heads[..., other] * sin
                out[..., other] = heads[..., other] * cos + heads[..., one] * sin
            stages[f"layers.0.{name}_rotated"] = out.reshape(len(step.rows), -1)
        return step._replace(stages=stages)

    return found._replace(steps=tuple(change(step, k) for k, step in enumerate(found.steps)))


HALVES, NEIGHBOURS = ((0, 2), (1, 3)), ((0, 1), (2, 3))


def test_pairing_and_positions():
    assert compare(plain(), turned(plain(), HALVES, 0)).first is None
    result = compare(plain(), turned(plain(), NEIGHBOURS, 0))
    assert result.first.stage == "layers.0.q_rotated"
    assert result.suspicion == (
        "q is equal before RoPE, not after: pairing of dimensions (halves or neighbours), how many "
        "of them turn, or the scaling's magnitude (pairs change their length); equal at positions "
        "below 1 only"
    )
    result = compare(plain(), turned(plain(), HALVES, 1))
    assert result.suspicion == (
        "q is equal before RoPE, not after: positions (pairs keep their length, and position 0 is "
        "turned)"
    )
    unknown = plain()._replace(metadata={})
    result = compare(unknown, turned(unknown, HALVES, 1))
    assert result.suspicion == "q is equal before RoPE, not after: theta, scaling or pairing"


def test_the_order_of_the_target_states():
    def rolled(_, name, part):
        return np.roll(part, 8, axis=1) if name == "aux" else part

    result = compare(plain(), changed(plain(), rolled))
    assert result.suspicion == (
        "aux has the same numbers in another order: the target's states are permuted"
    )


def test_a_text_that_is_counted_from_one():
    steps = [step._replace(columns=step.columns + 1) for step in plain().steps]
    result = compare(plain(), plain()._replace(steps=tuple(steps)))
    assert (result.first.step, result.first.stage) == (0, "aux")
    told = without(plain(), "aux", "fc", "fc_input")
    steps = [step._replace(columns=step.columns + 1) for step in told.steps]
    result = compare(told, told._replace(steps=tuple(steps)))
    assert (result.first.step, result.first.stage) == (0, "token")


def test_tokens():
    def other(k, name, part):
        return part + 1 if name == "token" and k else part

    result = compare(plain(), changed(plain(), other))
    assert (result.first.step, result.first.stage) == (1, "token")
    assert result.suspicion.startswith("the same states, other tokens: one goes on with the text's")

    one = first_rows(plain(), 1)
    for by in (1, -1):

        def shifted(k, name, part, by=by):
            return np.roll(part, by, axis=0) if name == "token" else part

        result = compare(one, changed(one, shifted))
        assert (result.first.step, result.first.stage) == (0, "token")
        assert result.suspicion.startswith("the same text, one position apart")
    result = compare(plain(), changed(plain(), lambda k, n, p: p + 1 if n == "token" else p))
    assert result.suspicion.startswith("the two read other tokens")


def picked(step, kept):
    stages = {name: part[kept] for name, part in step.stages.items()}
    return Step(step.rows[kept], step.columns[kept], stages)


def first_rows(found, count):
    steps = tuple(picked(step, step.rows < count) for step in found.steps)
    return found._replace(steps=steps)


# Alignment


def test_columns_are_aligned_by_text_and_position():
    """A server: the last column of each text at later steps, in another order."""
    mine = plain()
    first = picked(mine.steps[0], np.random.default_rng(0).permutation(ROWS * COLUMNS))
    last = picked(mine.steps[1], np.flatnonzero(mine.steps[1].columns == COLUMNS - 1)[::-1])
    result = compare(mine, mine._replace(steps=(first, last)))
    assert result.first is None
    assert {found.columns for found in result.found if found.step == 1} == {ROWS}
    assert result.notes == (f"step 1: {ROWS * COLUMNS - ROWS} columns are in one trace alone",)
    last.stages["layers.0.mlp"][1] += 1
    result = compare(mine, mine._replace(steps=(first, last)))
    assert (result.rows.tolist(), result.positions.tolist()) == ([0], [COLUMNS])


def test_notes():
    fewer = plain()._replace(steps=plain().steps[:1], metadata={"draft": "a"})
    result = compare(plain()._replace(metadata={"draft": "b"}), fewer)
    assert result.first is None
    assert result.notes == (
        "2 steps against 1: the first 1 are compared",
        "the traces are of two drafts: weights or configs differ",
    )
    later = plain().steps[1]._replace(columns=plain().steps[1].columns + 100)
    result = compare(plain(), plain()._replace(steps=(plain().steps[0], later)))
    assert result.notes == ("step 1: no column in common",)


def test_what_cannot_be_compared():
    far = [step._replace(columns=step.columns + 100) for step in plain().steps]
    with pytest.raises(InputError) as error:
        compare(plain(), plain()._replace(steps=tuple(far)))
    assert str(error.value) == (
        "the traces have no column in common at step 0: found positions 0 to 7 of 2 texts and 100 "
        "to 107 of 2 texts, expected some alike"
    )
    wide = changed(plain(), lambda _, n, p: np.tile(p, 2) if n == "fc" else p)
    with pytest.raises(InputError) as error:
        compare(plain(), wide)
    assert str(error.value) == (
        "fc is 8 wide in the first trace and 16 in the second, expected traces of one draft"
    )
    empty = plain()._replace(steps=tuple(step._replace(stages={}) for step in plain().steps))
    with pytest.raises(InputError) as error:
        compare(plain(), empty)
    assert str(error.value) == "the traces have no stage in common, expected at least one"


# Files and the command


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_pt(path, found, **metadata):
    """What the recorder for PyTorch writes."""
    tensors = {}
    for k, step in enumerate(found.steps):
        parts = {"row": step.rows, "column": step.columns} | step.stages
        tensors |= {f"{k}.{name}": tensor(np.ascontiguousarray(p)) for name, p in parts.items()}
    known = {"schema": "eagle3-jax-trace", "version": "1", "steps": str(len(found.steps))}
    write_torch(Path(path), {"metadata": known | metadata, "tensors": tensors})


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_both_forms_of_file(dtype):
    found = narrowed(plain(), dtype)
    write_trace(Path("a.safetensors"), found)
    write_pt("b.pt", found)
    for name in ("a.safetensors", "b.pt"):
        again = read_trace(Path(name))
        for mine, theirs in zip(found.steps, again.steps, strict=True):
            assert mine.stages.keys() == theirs.stages.keys()
            for stage, part in mine.stages.items():
                assert theirs.stages[stage].dtype == part.dtype
                np.testing.assert_array_equal(theirs.stages[stage], part)
            np.testing.assert_array_equal(theirs.rows, mine.rows)
            np.testing.assert_array_equal(theirs.columns, mine.columns)
    assert read_trace(Path("a.safetensors")).metadata["head_dim"] == "4"


def test_of_a_column_that_is_there_twice_the_later_one_counts():
    step = plain().steps[0]
    again = np.array([3, 0, 1, 2, 3])
    twice = picked(step, again)
    twice.stages["fc"][0] = 99
    write_trace(Path("a.safetensors"), Trace((twice,), {}))
    (found,) = read_trace(Path("a.safetensors")).steps
    np.testing.assert_array_equal(found.columns, [0, 1, 2, 3])
    np.testing.assert_array_equal(found.stages["fc"], step.stages["fc"][:4])


def compared(capsys, *arguments):
    code = main(["compare", *arguments, "--json", "-"])
    return code, json.loads(capsys.readouterr().out)


def test_exit_codes_and_json(capsys):
    write_trace(Path("a.safetensors"), plain())
    write_pt("b.pt", plain())
    code, told = compared(capsys, "a.safetensors", "b.pt")
    assert code == 0
    assert told["agree"]
    assert told["first"] is None
    assert told["traces"] == ["a.safetensors", "b.pt"]

    def change(k, name, part):
        if k and name == "layers.0.mlp":
            part[2] = np.nan
        return part

    write_trace(Path("c.safetensors"), changed(plain(), change))
    code, told = compared(capsys, "a.safetensors", "c.safetensors")
    assert code == 1
    assert not told["agree"]
    first = told["first"]
    assert (first["step"], first["stage"], first["parted"]) == (1, "layers.0.mlp", 1)
    assert (first["rows"], first["positions"]) == ([0], [3])
    assert first["largest"] is None  # not a number
    assert first["suspicion"].startswith("gate and up are equal")


def test_what_is_printed(capsys):
    write_trace(Path("a.safetensors"), plain())
    theta = traced(dataclasses.replace(CONFIG, rope=RopeConfig(theta=5e5)))
    write_trace(Path("b.safetensors"), theta)
    assert main(["compare", "a.safetensors", "b.safetensors"]) == 1
    out = capsys.readouterr().out
    assert "first parting  layers.0.q_rotated at step 0: largest " in out
    assert "positions      1, 2, 3, 4, 5, 6, 7 of text 0; 1, 2, 3, 4, 5, 6, 7 of text 1" in out
    assert "suspicion      q is equal before RoPE, not after: theta or scaling" in out
    assert main(["compare", "a.safetensors", "a.safetensors"]) == 0
    out = capsys.readouterr().out
    assert "agree       55 stages at a tolerance of 1e-05" in out
    assert main(["compare", "a.safetensors", "b.safetensors", "--tolerance", "0.9"]) == 0


def test_compare_needs_no_jax(capsys):
    import subprocess
    import sys

    write_trace(Path("a.safetensors"), plain())
    code = (
        "import sys; from eagle3_jax.cli.main import main; "
        "code = main(['compare', 'a.safetensors', 'a.safetensors', '--quiet']); "
        "sys.exit(code or 'jax' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def refused(capsys, *arguments):
    assert main(["compare", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("error: ").rstrip("\n")


def tensors_of(found):
    write_trace(Path("whole.safetensors"), found)
    from safetensors.numpy import load_file

    return load_file("whole.safetensors")


KNOWN = {"schema": "eagle3-jax-trace", "version": "1", "steps": "2"}
BROKEN = {
    "no schema": ({"schema": None}, {}, "found schema none, expected a trace, eagle3-jax-trace"),
    "another version": ({"version": "2"}, {}, "is a trace of version 2, expected 1"),
    "no steps": ({"steps": "0"}, {}, "steps is 0, expected 1 or more"),
    "a step too many": (
        {"steps": "1"},
        {},
        "tensor 1.attn is of no step, expected {k}.STAGE with k below 1",
    ),
    "no row": ({}, {"0.row": None}, "tensor 0.row is none, expected integers [N]"),
    "a row of floats": (
        {},
        {"0.row": np.zeros(16, np.float32)},
        "tensor 0.row is float32 [16], expected integers [N]",
    ),
    "fewer columns": (
        {},
        {"1.column": np.arange(4)},
        "tensor 1.column has 4 entries, expected 16, as many as 1.row",
    ),
    "an unknown stage": (
        {},
        {"0.layers.0.query": np.zeros((16, 2), np.float32)},
        "tensor 0.layers.0.query is of no stage that is known",
    ),
    "a stage of another length": (
        {},
        {"0.fc": np.zeros((4, 8), np.float32)},
        "tensor 0.fc is float32 [4, 8], expected floats [16, width]",
    ),
    "a stage of integers": (
        {},
        {"0.fc": np.zeros((16, 8), np.int32)},
        "tensor 0.fc is int32 [16, 8], expected floats [16, width]",
    ),
    "tokens of floats": (
        {},
        {"0.token": np.zeros((16, 1), np.float32)},
        "tensor 0.token is float32 [16, 1], expected integers [16, width]",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_bad_files(capsys, name):
    from safetensors.numpy import save_file

    write_trace(Path("a.safetensors"), plain())
    metadata, tensors, told = BROKEN[name]
    known = {key: value for key, value in (KNOWN | metadata).items() if value is not None}
    held = {key: part for key, part in (tensors_of(plain()) | tensors).items() if part is not None}
    if name == "a step too many":
        held = {key: part for key, part in held.items() if key.startswith("0.")}
        held["1.attn"] = np.zeros((1, 1), np.float32)
    save_file(held, "bad.safetensors", metadata=known)
    assert refused(capsys, "a.safetensors", "bad.safetensors") == f"bad.safetensors: {told}"


@pytest.mark.parametrize(
    "content", [[1, 2], {"metadata": {}}, {"metadata": {"a": 1}, "tensors": {}}]
)
def test_torch_files_that_are_no_trace(capsys, content):
    write_torch(Path("bad.pt"), content)
    assert refused(capsys, "bad.pt", "bad.pt") == (
        "bad.pt: found no dict of metadata and tensors, expected a trace, eagle3-jax-trace"
    )


def test_other_bad_input(capsys):
    write_trace(Path("a.safetensors"), plain())
    assert refused(capsys, "a.safetensors", "b.safetensors") == (
        "b.safetensors: no such file, expected a safetensors file"
    )
    far = [step._replace(columns=step.columns + 100) for step in plain().steps]
    write_trace(Path("far.safetensors"), plain()._replace(steps=tuple(far)))
    assert refused(capsys, "a.safetensors", "far.safetensors").startswith(
        "a.safetensors and far.safetensors: the traces have no column in common at step 0"
    )
    assert refused(capsys, "a.safetensors", "a.safetensors", "--tolerance", "1") == (
        "--tolerance is 1.0, expected 0 to below 1"
    )

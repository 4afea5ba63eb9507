"""States captured inside a server: how dumps are read, and told from those of training."""

from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from converters.dumps import read_dumps
from converters.shards import open_shards, read_documents
from eagle3_jax.diagnose.serving import align, match
from eagle3_jax.errors import InputError
from eagle3_jax.ops import rms_norm
from eagle3_jax.structs import Document
from tests.shard_samples import WRITERS, documents, torch_value
from tests.torch_files import write_torch

SHARDS = Path(__file__).parents[1] / "eagle3_jax/demo/shards"
TOKENS, SLOTS, WIDTH = 20, 3, 8


def text(seed=0, tokens=TOKENS, slots=SLOTS, width=WIDTH):
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(tokens, slots, width)).astype(np.float32)
    states[0, :, 5] = 4000 * np.arange(1, slots + 1)  # a massive activation at position 0
    return Document(
        rng.permutation(100)[:tokens].astype(np.int32), np.ones(tokens, bool), states, None
    )


def served(training, *slots, start=0, stop=None):
    """What a server would dump: some slots of some tokens."""
    part = slice(start, stop)
    return training._replace(
        ids=training.ids[part],
        answer=training.answer[part],
        states=training.states[part][:, list(slots)].copy(),
    )


def said(found, strength=None):
    return [f.claim for f in found.findings if strength in (None, f.strength)]


def shipped():
    (file, *_) = open_shards([SHARDS]).files
    return next(iter(read_documents(file)))


# Slots.


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_storage_types_make_no_difference(kind):
    training = text()
    other = served(training, 0, 1, 2)
    found = match(training, other._replace(states=other.states.astype(kind)))
    assert found.same
    assert said(found) == ["the server's states are those of training: 3 slots, the same order"]
    assert found.findings[0].strength == "proved"
    assert found.findings[0].evidence == (
        "every state is equal up to rounding along 20 tokens from token 0 of training, 0 as served"
    )
    assert [slot.equal for slot in found.slots] == [20, 20, 20]


def test_the_field_story():
    """Three states and the last were trained on; the server hands over the last three."""
    training = shipped()
    found = match(training, served(training, 1, 2, 3))
    assert not found.same
    assert said(found, "proved") == [
        "the server's slot 0 is training slot 1",
        "the server's slot 1 is training slot 2",
        "the server's slot 2 is training slot 3",
        "training slot 0 is never served",
    ]
    assert found.unserved == (0,)


def test_slots_in_another_order():
    training = text()
    found = match(training, served(training, 1, 0, 2))
    assert said(found, "proved")[-1] == "the server's slots stand in another order"
    assert found.findings[-1].evidence == "served slots 0 to 2 are training slots 1, 0, 2"
    assert not found.same
    straight = match(training, served(training, 0, 2))
    assert "the server's slots stand in another order" not in said(straight)


def test_a_slot_that_is_served_twice():
    training = text()
    found = match(training, served(training, 1, 1, 2))
    assert "training slots 1 are served more than once" in said(found, "proved")
    assert "training slot 0 is never served" in said(found, "proved")


def test_training_slots_that_hold_the_same_are_ties():
    training = text()
    training.states[:, 2] = training.states[:, 1]
    found = match(training, served(training, 0, 2))
    assert [slot.training for slot in found.slots] == [0, 1]
    assert found.slots[1].ties == (2,)
    assert found.findings[1].evidence.endswith("; training slots 2 hold the same states")
    assert found.unserved == ()
    assert match(training, served(training, 0, 1, 2)).same


@pytest.mark.parametrize(("shift", "word"), [(1, "later"), (-1, "earlier")])
def test_states_of_a_neighbouring_token(shift, word):
    training = text()
    rolled = np.roll(training.states, -shift, axis=0)
    rolled[-1 if shift > 0 else 0] = 7  # a token that training has not
    found = match(training, training._replace(states=rolled))
    assert [slot.shift for slot in found.slots] == [shift] * 3
    assert said(found, "proved") == [
        *(f"the server's slot {s} is training slot {s}, one token {word}" for s in range(3)),
        f"the server's states are those of one token {word}",
    ]
    # One slot alone is no shift of all.
    mixed = training.states.copy()
    mixed[:, 1] = rolled[:, 1]
    claims = said(match(training, training._replace(states=mixed)))
    assert f"the server's slot 1 is training slot 1, one token {word}" in claims
    assert f"the server's states are those of one token {word}" not in claims


@pytest.mark.parametrize("kind", [np.float32, ml_dtypes.bfloat16])
def test_a_slot_after_a_norm(kind):
    training = text()
    weight = jnp.asarray(np.random.default_rng(3).normal(1, 0.3, WIDTH), jnp.float32)
    other = served(training, 0, 1, 2)
    other.states[:, 2] = rms_norm(jnp.asarray(training.states[:, 2]), weight, 1e-6)
    other = other._replace(states=other.states.astype(kind))
    found = match(training, other)
    assert "the server's slot 2 is training slot 2 after a norm" in said(found, "proved")
    assert not found.same
    back = match(other, training)
    assert "the server's slot 2 is training slot 2 before a norm" in said(back, "proved")


def test_what_is_only_near_is_not_called_equal():
    training = text()
    rng = np.random.default_rng(1)
    other = served(training, 0, 1, 2)
    other.states[:, 0] *= 1 + 0.02 * rng.normal(size=(TOKENS, WIDTH))
    other.states[:, 1] += 3 * rng.normal(size=(TOKENS, WIDTH))
    found = match(training, other)
    assert not found.same
    assert "the server's slot 0 is nearest to training slot 0, not equal" in said(found, "measured")
    near = [
        c for c in said(found, "suggested") if c.startswith("the server's slot 1 is nearest to")
    ]
    assert len(near) == 1
    assert said(found, "proved") == ["the server's slot 2 is training slot 2"]
    assert 0.01 < found.slots[0].error < 0.04
    # What rests on the weakest of them is no surer than it.
    fewer = match(training, served(training._replace(states=other.states), 1))
    assert set(said(fewer, "proved")) == set()


def test_the_error_leaves_out_position_0():
    training = text()
    other = served(training, 0, 1, 2)
    other.states[1:] *= 1.01
    found = match(training, other)
    assert found.slots[0].error == pytest.approx(0.01, rel=1e-3)
    assert found.slots[0].equal == 1
    two = match(training, served(training._replace(states=other.states), 0, stop=2))
    assert two.slots[0].error == pytest.approx(0.01, rel=1e-3)


def test_of_shifts_that_fit_alike_none_is_taken():
    training = text()
    training.states[1:, 1] = training.states[1, 1]
    found = match(training, served(training, 1, start=2))
    assert (found.slots[0].training, found.slots[0].shift) == (1, 0)


def test_values_that_are_not_finite_are_not_called_equal():
    training = text()
    other = served(training, 0, 1, 2)
    other.states[4, 1, 2] = np.inf
    other.states[:, 2] = np.nan
    found = match(training, other)
    assert not found.same
    assert (found.slots[1].equal, found.slots[1].compared) == (19, 19)
    assert "the server's slot 1 is training slot 1" in said(found, "proved")
    assert "the server's slot 2 holds no state that can be compared" in said(found, "proved")
    assert found.slots[2].training is None
    one = served(training, 0, 1, 2)
    one.states[4, 1, 2] = np.inf
    partly = match(training, one)
    assert not partly.same
    assert "; 1 of 20 tokens could not be compared" in partly.findings[1].evidence


# Texts.


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 12), (5, None), (3, 9)], ids=["prefix", "offset", "middle"]
)
def test_a_part_of_the_text(start, stop):
    training = text()
    found = match(training, served(training, 0, 1, 2, start=start, stop=stop))
    assert found.same
    assert found.run == (start, 0, (stop or TOKENS) - start)


def test_a_system_prompt_before_the_text():
    training, prompt = text(), text(seed=7, tokens=4)
    other = Document(
        np.concatenate([prompt.ids + 100, training.ids]),
        np.ones(24, bool),
        np.concatenate([prompt.states, 1.3 * training.states + 0.3]),
        None,
    )
    found = match(training, other)
    assert found.run == (0, 4, 20)
    assert not said(found, "proved")
    assert all(
        f.evidence.endswith("; other tokens stand before it, on which states depend")
        for f in found.findings[:3]
    )


def test_the_longest_run_is_found_among_repeats():
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 3, 300)
    assert align(ids, ids[40:260]) == (40, 0, 220)
    assert align(ids, np.concatenate([ids[:30], [9], ids[30:200]])) == (30, 31, 170)


def test_texts_that_share_nothing_are_refused():
    training = text()
    other = training._replace(ids=training.ids + 200)
    with pytest.raises(InputError) as caught:
        match(training, other)
    assert str(caught.value) == (
        "the served text shares a run of 0 tokens with the training text, expected 2 or more: the "
        "same prompt on both sides"
    )


def test_states_of_another_width_are_refused():
    training = text()
    with pytest.raises(InputError) as caught:
        match(training, training._replace(states=training.states[:, :, :6]))
    assert str(caught.value) == "the served states have width 6, expected 8 as in training"


# Files.


@pytest.mark.parametrize("name", ["eagle3-jax", "specforge in gzip", "vllm", "a list of states"])
def test_dumps_in_a_layout_of_shards(tmp_path, name):
    written = WRITERS[name](tmp_path, documents())
    found = list(read_dumps(tmp_path, width=WIDTH))
    assert len(found) == 3
    for one, other in zip(found, written.documents, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.states.tolist() == other.states.tolist()


LOOSE = {
    "[T,n,Dt]": lambda states: states,
    "[1,T,n,Dt]": lambda states: states[None],
    "[n,T,Dt]": lambda states: states.transpose(1, 0, 2),
    "[1,n,T,Dt]": lambda states: states.transpose(1, 0, 2)[None],
    "[T,n*Dt]": lambda states: states.reshape(len(states), -1),
    "[1,T,n*Dt]": lambda states: states.reshape(1, len(states), -1),
}


@pytest.mark.parametrize("ids", ["input_ids", "token_ids", "ids"])
@pytest.mark.parametrize("shape", LOOSE)
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_loose_dump_is_told_by_its_shapes(tmp_path, shape, ids, ending):
    training = text()
    states = np.ascontiguousarray(LOOSE[shape](training.states))
    content = {ids: training.ids.astype(np.int64), "captured": states}
    path = tmp_path / f"dump.{ending}"
    if ending == "pt":
        write_torch(path, torch_value(content))
    else:
        save_file(content, path)
    (found,) = read_dumps(path, width=WIDTH)
    assert found.ids.tolist() == training.ids.tolist()
    assert found.answer.all()
    assert found.states.tolist() == training.states.tolist()
    assert match(training, found).same


@pytest.mark.parametrize("batch", [False, True])
def test_a_list_of_states_beside_a_list_of_ids(tmp_path, batch):
    training = text()
    states = [np.ascontiguousarray(training.states[:, slot]) for slot in range(SLOTS)]
    content = {
        "ids": training.ids.tolist(),
        "aux": torch_value([state[None] for state in states] if batch else states),
        "prompt": "a text",
        "positions": torch_value(np.arange(TOKENS)),
    }
    (found,) = read_dumps(write_torch(tmp_path / "dump.pt", content), width=WIDTH)
    assert found.states.tolist() == training.states.tolist()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("shape", LOOSE)
def test_one_token_is_a_dump_too(tmp_path, shape, slots):
    training = text(tokens=1, slots=slots)
    if slots == 1 or shape not in ("[n,T,Dt]", "[1,n,T,Dt]"):
        states = np.ascontiguousarray(LOOSE[shape](training.states))
        save_file({"ids": training.ids, "states": states}, tmp_path / "dump.safetensors")
        (found,) = read_dumps(tmp_path, width=WIDTH)
        assert found.states.tolist() == training.states.tolist()


def test_one_state_and_the_hidden_states_that_no_layout_has(tmp_path):
    training = text(slots=1)
    content = {"input_ids": training.ids, "hidden_states": training.states[:, 0]}
    save_file({k: np.ascontiguousarray(v) for k, v in content.items()}, tmp_path / "a.safetensors")
    (found,) = read_dumps(tmp_path, width=WIDTH)
    assert found.states.tolist() == training.states.tolist()


STATES = np.zeros((TOKENS, SLOTS, WIDTH), np.float32)
IDS = np.zeros(TOKENS, np.int32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"states": STATES}, "found states [20, 3, 8]: nothing with ids, expected"),
        (
            {"ids": IDS, "input_ids": IDS, "states": STATES},
            "found ids [20], input_ids [20], states [20, 3, 8]: input_ids and ids with ids, "
            "expected",
        ),
        (
            {"ids": IDS, "one": STATES, "other": STATES},
            "found ids [20], one [20, 3, 8], other [20, 3, 8]: one and other with states of 20 "
            "tokens, expected",
        ),
        (
            {"ids": IDS, "states": STATES[:19]},
            "found ids [20], states [19, 3, 8]: nothing with states of 20 tokens, expected",
        ),
        (
            {"ids": IDS, "states": np.zeros((TOKENS, TOKENS, WIDTH), np.float32)},
            "found ids [20], states [20, 20, 8]: nothing with states of 20 tokens, expected",
        ),
        (
            {"ids": IDS, "states": np.zeros((TOKENS, 12), np.float32)},
            "found ids [20], states [20, 12]: nothing with states of 20 tokens, expected",
        ),
        (
            {"ids": IDS, "states": STATES.astype(np.int32)},
            "found ids [20], states [20, 3, 8]: nothing with states of 20 tokens, expected",
        ),
    ],
)
def test_what_is_no_dump_is_told_by_its_keys(tmp_path, content, message):
    path = tmp_path / "dump.safetensors"
    save_file(content, path)
    with pytest.raises(InputError) as caught:
        list(read_dumps(path, width=WIDTH))
    told = str(caught.value)
    assert told.startswith(f"{path}: {message} ids under one of input_ids, token_ids, ids and one ")
    assert (
        "one array [T, states, 8], [states, T, 8] or [T, states x 8], or a list of [T, 8]; nor is "
        "it a shard: found "
    ) in told
    assert "\n" not in told


def test_missing_broken_and_lone_files(tmp_path):
    missing = tmp_path / "none.pt"
    with pytest.raises(InputError) as caught:
        list(read_dumps(missing, width=WIDTH))
    assert str(caught.value) == f"{missing}: no such file or directory, expected shards"
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(InputError) as caught:
        list(read_dumps(broken, width=WIDTH))
    assert str(caught.value).startswith(f"{broken}: found 7 bytes that are not whole safetensors")
    lone = write_torch(tmp_path / "lone.pt", torch_value([STATES]))
    with pytest.raises(InputError) as caught:
        list(read_dumps(lone, width=WIDTH))
    assert str(caught.value) == (
        f"{lone}: found a list, expected a dict: states without their tokens (input_ids) are no "
        "shard"
    )

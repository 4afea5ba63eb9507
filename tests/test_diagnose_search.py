"""Readings of a tiny draft: a planted fault is undone, a healthy draft is left alone."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.diagnose.cases import Case, Scores, Setting, said_ids, score
from eagle3_jax.diagnose.draft import diagnose_draft
from eagle3_jax.diagnose.readings import (
    Known,
    Option,
    axes_of,
    change,
    configured,
    ropes_of,
    state_axis,
)
from eagle3_jax.diagnose.rewiring import repair_rope, swap_halves, swap_norms
from eagle3_jax.diagnose.sampling import sample
from eagle3_jax.diagnose.search import Found, Tried, accepted_difference, search
from eagle3_jax.diagnose.served import served_case
from eagle3_jax.diagnose.verdict import Verdict, judge, judge_guess, told_reading
from eagle3_jax.drafts import place_draft
from eagle3_jax.structs import Document
from tests.samples import TABLE, VOCAB, text_of, tiny_draft

PLACES = ("slot 0", "slot 1", "slot 2", "slot 3", "the embedding")
RIGHT = (0, 1, 2)
DRAFT = tiny_draft(fc_norm=True)
IDS = DRAFT.vocab.target_ids
ROWS = np.arange(len(IDS))
CHANCE = 2 / VOCAB


@cache
def documents() -> tuple[Document, ...]:
    return tuple(text_of(DRAFT, 60, seed) for seed in range(14))


@cache
def setting() -> Setting:
    return Setting(DRAFT.config, ropes_of(DRAFT.config, Known()), 1)


@cache
def right() -> Case:
    params = jax.tree.map(jnp.asarray, DRAFT.params)
    return configured(DRAFT.config, params, params["lm_head"]["kernel"], IDS, None, RIGHT)


def search_from(case: Case, slots=RIGHT, texts=None) -> Found:
    data = sample(texts or documents(), table=TABLE)
    axes = axes_of(setting(), case, Known())
    return search(setting(), case, axes, data, slots=slots, places=PLACES)


def moved(by: int) -> tuple[Document, ...]:
    """Documents whose states are stored `by` tokens late."""
    return tuple(
        document._replace(states=np.roll(document.states, by, axis=0)) for document in documents()
    )


def with_params(fault) -> Case:
    return right()._replace(params=fault(right().params))


def with_ids(ids) -> Case:
    return right()._replace(target_ids=jnp.asarray(ids, jnp.int32))


def fed(*slots: int) -> tuple[Case, tuple[int, ...]]:
    return right()._replace(slots=jnp.asarray(slots, jnp.int32)), slots


def test_a_healthy_draft_is_left_alone():
    found = search_from(right())
    verdict = judge(found, chance=CHANCE)
    assert verdict.kind == "wired as configured"
    assert verdict.reading == ()
    assert found.finalists[0].scores.first() > 0.5
    assert found.compared > 40


FAULTS: dict[str, list[tuple[Case, tuple[int, ...]]]] = {
    "states: slot 0, slot 1, slot 2 (all moved by -1)": [fed(1, 2, 3)],
    "states: slot 0, slot 1, slot 2": [fed(2, 1, 0), fed(0, 1, 4), fed(1, 0, 3)],
    "norms before attention: swapped": [(with_params(swap_norms), RIGHT)],
    "halves: the hidden state first": [(with_params(swap_halves), RIGHT)],
    "vocabulary: d2t holds offsets, not ids": [(with_ids(IDS - ROWS), RIGHT)],
    "vocabulary: d2t holds ids, not offsets": [(with_ids(IDS + ROWS), RIGHT)],
}


@pytest.mark.parametrize(
    ("name", "case", "slots"),
    [(name, case, slots) for name, plants in FAULTS.items() for case, slots in plants],
)
def test_a_planted_fault_is_named(name, case, slots):
    verdict = judge(search_from(case, slots), chance=CHANCE)
    assert verdict.kind == "another reading", verdict
    assert told_reading(verdict.reading) == name
    assert verdict.interval[0] > 0
    assert verdict.difference > 0.3


@pytest.mark.parametrize(
    ("by", "name"),
    [
        (1, "pairing: the state of the same token its embedding's"),
        (-1, "pairing: the state two tokens before its embedding's"),
    ],
)
def test_states_of_other_tokens_are_named(by, name):
    verdict = judge(search_from(right(), texts=moved(by)), chance=CHANCE)
    assert told_reading(verdict.reading) == name


def test_two_faults_of_which_each_hides_the_other_are_both_named():
    case, slots = fed(2, 3, 0)
    case = case._replace(target_ids=jnp.asarray(IDS + ROWS, jnp.int32))
    verdict = judge(search_from(case, slots), chance=CHANCE)
    assert {str(option) for option in verdict.reading} == {
        "states: slot 0, slot 1, slot 2",
        "vocabulary: d2t holds ids, not offsets",
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_states_one_layer_on_among_many_are_all_moved_back(seed):
    """BaldEagle#18: states {1,17,32} for a draft trained on {2,18,33}."""
    rng = np.random.default_rng(seed)
    width, right_slots = DRAFT.config.hidden_size, (2, 18, 33)
    deep = []
    for document in documents():
        states = rng.normal(size=(len(document.ids), 36, width)).astype(np.float32)
        states[:, right_slots] = document.states[:, RIGHT]
        deep.append(document._replace(states=states))
    places = (*(f"boundary {b}" for b in range(36)), "the embedding")
    slots = tuple(slot - 1 for slot in right_slots)
    case = right()._replace(slots=jnp.asarray(slots, jnp.int32))
    axes = axes_of(setting(), case, Known())
    data = sample(deep, table=TABLE)
    found = search(setting(), case, axes, data, slots=slots, places=places)
    verdict = judge(found, chance=CHANCE)
    named = "states: boundary 2, boundary 18, boundary 33 (all moved by +1)"
    assert told_reading(verdict.reading) == named
    plain, best = found.finalists[0].scores, verdict.difference
    assert f"{plain.accepted() + best:.2f}" in verdict.told
    assert f"{plain.accepted():.2f}" in verdict.told


def test_a_lost_vocabulary_is_learned_from_the_text():
    shuffled = np.random.default_rng(3).permutation(VOCAB)[: len(IDS)]
    verdict = judge(search_from(with_ids(shuffled)), chance=CHANCE)
    assert told_reading(verdict.reading) == "vocabulary: another d2t, learned from the text"
    assert verdict.difference > 0.1


def test_no_pairs_are_tried_where_the_vocabulary_alone_explains_it():
    shuffled = np.random.default_rng(3).permutation(VOCAB)[: len(IDS)]
    singles = search_from(right()).compared
    assert search_from(with_ids(shuffled)).compared < 4 * singles


@pytest.mark.parametrize(("by", "pairing"), [(0, 1), (1, 0), (2, -1)])
def test_a_pairing_that_may_see_the_due_token_is_credited_as_the_step_after_it(by, pairing):
    """These texts were made so that step 0 is mostly right, and step 1 by chance alone."""
    steps = Setting(DRAFT.config, ropes_of(DRAFT.config, Known()), 2)
    case = right()._replace(pairing=jnp.int32(pairing))
    (features,) = sample(moved(by)[:1], table=TABLE).second
    ids, answer = np.asarray(features.ids[0]), np.asarray(features.answer[0])
    counted = np.flatnonzero(answer[2:])
    due = np.pad(ids, (0, 1))[[counted + 2, counted + 3]]
    hits = np.cumprod(said_ids(steps, case, features) == due, axis=0)
    first = hits[0].mean()
    both = (hits[1] * np.pad(answer, (0, 1))[counted + 3]).sum() / answer[3:].sum()
    later = both / first
    assert first > 0.5 > 2 * later
    assert score(steps, case, [features]).first() == pytest.approx(first if by == 0 else later)


def test_noise_is_no_draft_of_these_texts():
    rng = np.random.default_rng(0)
    noise = tuple(
        d._replace(ids=rng.integers(0, VOCAB, len(d.ids)).astype(np.int32)) for d in documents()
    )
    verdict = judge(search_from(right(), texts=noise), chance=0.1)
    assert verdict.kind == "the draft is broken"
    assert verdict.reading == ()
    assert "10.0%" in verdict.told


def test_few_documents_have_no_confident_verdict():
    case, slots = fed(1, 2, 3)
    verdict = judge(search_from(case, slots, documents()[:2]), chance=CHANCE)
    assert verdict.kind == "cannot tell"
    assert verdict.interval is None
    assert "documents with answer tokens that decide: 2, expected 4 or more" in verdict.told


def scores(*joint: int, total: int = 100) -> Scores:
    return Scores(np.full((len(joint), 1), total), np.asarray(joint)[:, None])


def test_a_gain_that_may_be_chance_is_no_fault():
    option = state_axis(RIGHT, 5, PLACES).options[0]
    plain, other = scores(50, 50, 50, 50, 50), scores(90, 30, 50, 80, 30)
    found = Found([Tried((), plain)], (), [Tried((), plain), Tried((option,), other)], 2)
    verdict = judge(found, chance=0.05)
    assert verdict.kind == "wired as configured"
    difference, low, high = accepted_difference(other, plain)
    assert (difference, low < 0 < high) == (pytest.approx(0.06), True)


def test_a_sure_gain_that_is_worth_nothing_is_no_fault():
    option = state_axis(RIGHT, 5, PLACES).options[0]
    plain, other = scores(*[50] * 6), scores(*[51] * 6)
    found = Found([Tried((), plain)], (), [Tried((), plain), Tried((option,), other)], 2)
    assert accepted_difference(other, plain)[1] > 0
    assert judge(found, chance=0.05).kind == "wired as configured"


def test_readings_that_are_as_good_are_said_to_tie():
    one, two, three = state_axis(RIGHT, 5, PLACES).options[:3]
    plain, better, worse = scores(*[20] * 6), scores(*[70] * 6), scores(*[40] * 6)
    tried = [((), plain), ((one,), better), ((two,), better), ((three,), worse)]
    tried += [((one, two), better)]
    found = Found([Tried((), plain)], (), [Tried(*each) for each in tried], 5)
    verdict = judge(found, chance=0.05)
    assert verdict.kind == "several readings tie"
    assert (verdict.reading, verdict.ties) == ((one,), ((two,),))


def test_what_ties_with_the_best_by_its_spread_alone_is_not_named():
    one, two, three = state_axis(RIGHT, 5, PLACES).options[:3]
    plain, spread = scores(*[50] * 6), scores(95, 15, 80, 20, 70, 45)
    best = scores(60, 61, 59, 60, 62, 60)
    tried = [Tried((), plain), Tried((one,), spread), Tried((two, three), best)]
    assert accepted_difference(best, spread)[1] <= 0, "a tie"
    assert accepted_difference(spread, plain)[1] <= 0, "which may be no better than before"
    verdict = judge(Found([Tried((), plain)], (), tried, 3), chance=0.05)
    assert (verdict.reading, verdict.ties) == ((two, three), ())
    assert verdict.interval[0] > 0


@pytest.mark.parametrize(("count", "apart"), [(3, False), (6, False), (7, True), (14, True)])
def test_documents_are_kept_apart_where_enough_decide(count, apart):
    data = sample(documents()[:count], table=TABLE)
    assert bool(data.fresh) == apart
    held = sum(int((batch.document >= 0).sum()) for batch in (*data.second, *data.fresh))
    assert held == count


def test_a_draft_is_diagnosed_in_one_call():
    placed = place_draft(DRAFT)
    stated = (2, 4, 5, 6)
    found = diagnose_draft(placed, list(documents()), slots=(1, 2, 3), steps=1, stated=stated)
    (states,) = found.verdict.reading
    assert states.slots == RIGHT
    assert states.label.startswith("slot 0 = boundary 2, slot 1 = boundary 4, slot 2 = boundary 5")
    assert found.weights == ()
    assert [slot.name for slot in found.slots.slots][:2] == ["slot 0", "slot 1"]
    assert found.searched.found.compared > 20


@pytest.mark.parametrize(
    ("texts", "changes", "told"),
    [
        (0, {}, "found 0 documents and 3 steps, expected 1 or more"),
        (2, {"steps": 0}, "found 2 documents and 0 steps, expected 1 or more"),
        (2, {"slots": (0, 1)}, r"slots are \[0, 1\], expected 3 of them"),
        (2, {"slots": (0, 1, 9)}, "9"),
        (2, {"slots": (0, 1, -1)}, "-1"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(texts, changes, told):
    with pytest.raises(ValueError, match=told):
        diagnose_draft(place_draft(DRAFT), iter(documents()[:texts]), **{"slots": RIGHT} | changes)


def test_a_document_that_is_not_whole_is_refused_by_its_number():
    whole, other = documents()[:2]
    broken = other._replace(states=other.states.copy())
    broken.states[3, 1, 2] = np.nan
    with pytest.raises(ValueError, match="document 1"):
        diagnose_draft(place_draft(DRAFT), [whole, broken], slots=RIGHT)


def test_a_table_of_the_targets_is_tried_in_the_place_of_the_drafts_own():
    own = tiny_draft(fc_norm=True, embeddings=True)
    placed = place_draft(own)
    known = Known(jnp.asarray(TABLE[::-1].copy()))
    found = diagnose_draft(placed, list(documents())[:2], slots=RIGHT, steps=1, known=known)
    labels = [option.label for axis in found.searched.axes for option in axis.options]
    assert "the target's table" in labels
    assert placed.table is not None


def test_states_that_nobody_configured_are_no_configuration():
    states = Option("states", "slot 0, slot 1, slot 2", lambda case: case, slots=RIGHT)
    fine = judge_guess(Verdict("wired as configured", "fine"), states)
    assert (fine.kind, fine.reading) == ("another reading", (states,))
    broken = judge_guess(Verdict("the draft is broken", "nothing beats chance"), states)
    assert (broken.kind, broken.reading) == ("cannot tell", ())
    other = state_axis(RIGHT, 5, PLACES).options[0]
    named = Verdict("another reading", "", (other,))
    assert judge_guess(named, states) == named


def test_an_engine_with_another_window_is_scored_on_short_texts_alone():
    attention = replace(DRAFT.config.attention, sliding_window=16)
    config, case = replace(DRAFT.config, attention=attention), right()

    def served(longest):
        return served_case(
            setting(),
            case,
            config,
            slots=RIGHT,
            target_ids=IDS,
            unused=frozenset(),
            table=None,
            kernel=case.kernel,
            longest=longest,
        )

    assert served(17) == "its sliding window is 16, the draft's None"
    assert isinstance(served(16), Case)


def test_of_equals_the_one_that_the_search_came_to_is_named():
    one, two = state_axis(RIGHT, 5, PLACES).options[:2]
    plain, better, best = scores(*[20] * 6), scores(*[70] * 6), scores(*[71] * 6)
    tried = [Tried((), plain), Tried((one,), best), Tried((two,), better)]
    found = Found([Tried((two,), better)], (two,), tried, 3)
    verdict = judge(found, chance=0.05)
    assert (verdict.reading, verdict.ties) == ((two,), ((one,),))


def test_a_better_explanation_with_more_changes_is_said_to_tie():
    one, two, three = state_axis(RIGHT, 5, PLACES).options[:3]
    plain, better, best = scores(*[20] * 6), scores(*[70] * 6), scores(*[72] * 6)
    tried = [((), plain), ((one,), better), ((two, three), best), ((one, two), best)]
    found = Found([Tried((), plain)], (), [Tried(*each) for each in tried], 4)
    verdict = judge(found, chance=0.05)
    assert (verdict.reading, verdict.ties) == ((one,), ((two, three),))
    assert verdict.undecided == {}, "the search came to a reading that is no equal of these"


def test_a_reading_with_fewer_changes_is_preferred():
    one, two = state_axis(RIGHT, 5, PLACES).options[:2]
    plain, better, best = scores(*[20] * 6), scores(*[70] * 6), scores(*[71] * 6)
    tried = [((), plain), ((one, two), best), ((one,), better)]
    found = Found([Tried((), plain)], (), [Tried(*each) for each in tried], 3)
    assert judge(found, chance=0.05).reading == (one,)


def test_a_draft_below_its_training_generalises_badly():
    plain = scores(30, 32, 29, 31, 30, 28)
    found = Found([Tried((), plain)], (), [Tried((), plain)], 1)
    verdict = judge(found, chance=0.05, trained=0.747)
    assert verdict.kind == "the draft generalises badly"
    assert "74.7%" in verdict.told
    assert judge(found, chance=0.05, trained=0.31).kind == "wired as configured"


def test_a_suspect_shard_is_blamed_before_the_draft():
    plain = scores(1, 2, 1, 0, 1, 2)
    found = Found([Tried((), plain)], (), [Tried((), plain)], 1)
    told = "the shard is suspect: its states are those of another text"
    assert judge(found, chance=0.05, suspicion=told).kind == "the shard is suspect"
    assert judge(found, chance=0.05).kind == "the draft is broken"


def test_all_readings_share_one_compilation():
    from eagle3_jax.diagnose import cases

    cases._score.clear_cache()
    search_from(right())
    assert cases._score._cache_size() == 1


def test_a_reading_scores_alone_as_in_a_batch():
    data = sample(documents(), table=TABLE)
    whole = score(setting(), right(), data.second)
    parts = [score(setting(), right(), [batch]) for batch in data.second]
    np.testing.assert_array_equal(whole.joint, np.concatenate([part.joint for part in parts]))


def test_neighbour_pairing_is_an_option_that_undoes_itself_twice():
    case = with_params(repair_rope(DRAFT.config))
    axis = next(axis for axis in axes_of(setting(), case, Known()) if axis.name == "rope")
    option = next(option for option in axis.options if "paired" in option.label)
    twice = change(case, (option,)).params["layers_0"]["self_attn"]["q_proj"]["kernel"]
    assert twice.shape == right().params["layers_0"]["self_attn"]["q_proj"]["kernel"].shape


def test_many_stored_states_are_tried_by_shifts_and_places():
    axis = state_axis((5, 10, 20), 30, tuple(map(str, range(30))))
    tried = {option.slots for option in axis.options}
    assert {(4, 9, 19), (6, 11, 21), (3, 8, 18), (5, 10, 3), (20, 10, 5)} <= tried
    assert (5, 10, 20) not in tried
    assert (5, 5, 20) not in tried

"""Counts and figures against examples worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.metrics import Counts, count, figures, intervals
from eagle3_jax.ops import due_at

K = 3
EVERY = np.ones(10, bool)


def count_text(predicted, ids, answer, in_draft=EVERY):
    """Counts of a text whose due token is the draft's first or, where it is missed, its second."""
    ids = jnp.asarray(ids, jnp.int32)[None]
    due = jnp.stack([due_at(ids, k) for k in range(len(predicted))])
    missed = jnp.asarray(predicted, jnp.int32)[:, None] != due
    return jax.jit(count)(
        missed.astype(jnp.int32), jnp.asarray(in_draft)[due], jnp.asarray(answer, bool)[None]
    )


def counted(predicted, ids, answer, in_draft=EVERY):
    """Counts of one row per step, as lists."""
    found = count_text(predicted, ids, answer, in_draft)._asdict()
    names = ("total", "covered", "right", "reached", "joint")
    return {name: found[name][0].tolist() for name in names}


def test_a_hand_worked_text():
    # token at    0  1  2  3  4  5      due at step k in column t: token t+2+k
    ids = [9, 8, 1, 2, 3, 4]
    answer = [0, 0, 1, 1, 1, 1]
    predicted = [
        [1, 2, 0, 4, 0, 0],  # due 1 2 3 4: right, right, wrong, right
        [2, 0, 4, 5, 0, 0],  # due 2 3 4  : right, wrong, right
        [0, 4, 0, 0, 0, 0],  # due 3 4    : wrong, right
    ]
    assert counted(predicted, ids, answer) == {
        "total": [4, 3, 2],
        "covered": [4, 3, 2],
        "right": [3, 2, 1],
        "reached": [4, 2, 1],  # after step 0, columns 0 and 1 go on; after step 1, column 0
        "joint": [3, 1, 0],
    }


def test_only_tokens_of_the_answer_are_due():
    ids = [5, 5, 5, 5, 5, 5]
    found = counted([[5] * 6] * K, ids, [1, 1, 0, 1, 0, 0])
    # Token 3 alone: column 1 at step 0, column 0 at step 1, nobody at step 2.
    assert found["total"] == found["right"] == [1, 1, 0]
    # Column 0's token of step 0 was no answer, so its step 1 is not a joint hit.
    assert found["reached"] == [1, 0, 0]
    assert found["joint"] == [1, 0, 0]


def test_nothing_is_due_past_the_end_of_a_text():
    found = counted([[0] * 3] * K, [0, 0, 0], [1, 1, 1])
    assert found["total"] == found["right"] == found["joint"] == [1, 0, 0]


def test_tokens_that_the_draft_cannot_say_are_misses():
    in_draft = np.arange(10) != 7
    ids = [0, 0, 7, 1, 7, 1]
    # Column 1's prediction is right at step 0; the sevens cannot be said.
    found = counted([[1, 1, 1, 1, 0, 0]], ids, [1] * 6, in_draft)
    assert found["total"] == [4]
    assert found["covered"] == [2]
    assert found["right"] == found["joint"] == [2]


def test_a_miss_ends_a_column_for_good():
    found = counted([[1, 0], [1, 0], [1, 0], [1, 0]], [1, 1], [1, 1])
    assert found["total"] == [0, 0, 0, 0]
    predicted = [[3, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]]
    found = counted(predicted, [1, 1, 1, 1, 1, 1], [1] * 6)
    assert found["right"] == [0, 1, 1, 1]
    assert found["joint"] == [0, 0, 0, 0]
    assert found["reached"] == [4, 0, 0, 0]


def test_ranks_tell_what_is_among_the_likeliest():
    answer = jnp.ones((1, 8), bool)
    ranks = jnp.array([[[0, 3, 4, 7, 8, 3, 0, 0]]])
    covered = jnp.ones((1, 1, 8), bool).at[0, 0, 5].set(False)
    found = count(ranks, covered, answer)
    assert (found.total[0, 0], found.right[0, 0]) == (6, 1)
    assert (found.top_4[0, 0], found.top_8[0, 0]) == (2, 4)


def test_agreement_is_summed_where_a_token_is_due():
    answer = jnp.array([[False, False, True, True, False]])
    shared = jnp.array([[[0.25, 0.5, 7.0, 7.0, 7.0]], [[0.125, 7.0, 7.0, 7.0, 7.0]]])
    nothing = jnp.zeros((2, 1, 5), jnp.int32)
    found = count(nothing, nothing > 0, answer, shared)
    assert found.agreement.tolist() == [[0.75, 0.125]]


def test_rows_are_counted_apart():
    answer = jnp.array([[False, True, True, True], [False, False, True, True]])
    ranks = jnp.array([[[0, 1, 0, 0], [0, 0, 0, 0]]])
    found = count(ranks, ranks >= 0, answer)
    assert found.total.tolist() == [[2], [2]]
    assert found.right.tolist() == [[1], [2]]


# Walking


def walked(accepts, answer):
    """Rounds and tokens of one text whose columns accept so many of three draft tokens."""
    ranks = jnp.array([[int(k >= wins) for wins in accepts] for k in range(3)])[:, None]
    found = count(ranks, ranks >= 0, jnp.asarray(answer, bool)[None])
    return int(found.rounds[0, -1]), int(found.gained[0, -1])


def test_a_server_goes_on_after_what_it_accepted_and_its_own_token():
    # Token 2 is the first of the answer: column 1 has read it, and drafts tokens 3, 4, 5.
    answer = [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    # Column 1 accepts 2 and goes to column 4; that one 0, to 5; that one 3, to 9: done.
    accepts = [9, 2, 9, 9, 0, 3, 9, 9, 9, 9]
    assert walked(accepts, answer) == (3, 3 + 1 + 3)


def test_tokens_past_the_answer_are_not_gained():
    # The one round accepts both tokens that are left; the target's own would lie past the answer.
    assert walked([0, 3, 3, 3, 3], [0, 0, 1, 1, 1]) == (1, 2)
    assert walked([0, 3, 3, 3, 3, 3], [0, 0, 1, 1, 1, 0]) == (1, 2)
    # One token is left, and the target says it.
    assert walked([0, 0, 0, 0], [0, 0, 1, 1]) == (1, 1)


def test_an_answer_of_one_token_needs_no_round():
    assert walked([3, 3, 3, 3], [0, 0, 1, 0]) == (0, 0)


def test_every_answer_of_a_text_is_walked_on_its_own():
    answer = [0, 1, 1, 0, 0, 1, 1, 1, 0]
    accepts = [0, 9, 9, 9, 1, 0, 0, 9, 9]
    # Column 0: 1 token left. Column 4 accepts 1 and the target adds the last.
    assert walked(accepts, answer) == (2, 1 + 2)


def test_a_text_that_is_all_answer_is_walked_from_its_first_column():
    assert walked([0, 0, 0, 0], [1, 1, 1, 1]) == (2, 2)


def test_a_server_that_drafts_fewer_steps_walks_other_columns():
    # Column 1 reads the first token of the answer, of which eight are left.
    answer = [0, 0, *[1] * 9]
    accepts = [9, 3, 1, 2, 0, 2, 1, 9, 9, 9, 9]
    ranks = jnp.array([[int(k >= wins) for wins in accepts] for k in range(3)])[:, None]
    found = count(ranks, ranks >= 0, jnp.asarray(answer, bool)[None])
    # One step:    1 (1+1), 3 (1+1), 5 (1+1), 7 (1+1).
    # Two steps:   1 (2+1), 4 (0+1), 5 (2+1), 8: one token is left, and drafted; no room for more.
    # Three steps: 1 (3+1), 5 (2+1), 8 (1).
    assert found.rounds.tolist() == [[4, 4, 3]]
    assert found.gained.tolist() == [[8, 8, 8]]


def test_fewer_steps_count_what_a_text_counted_with_fewer_steps_does():
    rng = np.random.default_rng(0)
    answer = jnp.asarray(rng.random((6, 40)) < 0.9)
    ranks = jnp.asarray(rng.random((4, 6, 40)) < 0.3, jnp.int32)
    every = count(ranks, ranks >= 0, answer)
    for steps in (1, 3):
        alone = count(ranks[:steps], ranks[:steps] >= 0, answer)
        assert every.rounds[:, steps - 1].tolist() == alone.rounds[:, -1].tolist()
        assert every.gained[:, steps - 1].tolist() == alone.gained[:, -1].tolist()
    assert len({tuple(rounds) for rounds in every.rounds.T.tolist()}) == 4


# Figures


def counts(steps=5, **parts):
    """Counts of one document, 100 each where nothing else is said."""
    whole = {name: np.array([[100] * steps]) for name in Counts._fields}
    whole |= {"rounds": np.array([[40] * steps])}
    return Counts(**whole | {name: np.array([part]) for name, part in parts.items()})


def test_the_acceptance_length_is_made_of_joint_accuracies():
    joint = np.array([70, 37, 21, 13, 8])
    found = figures(counts(joint=joint, reached=[100, *joint[:-1]]))
    assert [step["joint"] for step in found["steps"]] == [0.70, 0.37, 0.21, 0.13, 0.08]
    assert found["accepted_per_round"] == pytest.approx(1.49)
    assert found["tokens_per_round"] == pytest.approx(2.49)


def test_the_same_shares_as_conditional_accuracies_make_a_shorter_length():
    conditional = [0.70, 0.37, 0.21, 0.13, 0.08]
    joint = np.rint(10**9 * np.cumprod(conditional)).astype(np.int64)
    found = figures(
        counts(
            total=np.array([10**9] * 5),
            joint=joint,
            reached=np.array([10**9, *joint[:-1]]),
        )
    )
    assert [step["conditional"] for step in found["steps"]] == pytest.approx(conditional)
    assert found["tokens_per_round"] == pytest.approx(2.02, abs=5e-3)


def test_every_figure_says_what_it_is():
    found = figures(
        counts(
            steps=2,
            total=[10, 8],
            covered=[9, 6],
            right=[5, 3],
            top_4=[6, 4],
            top_8=[8, 5],
            reached=[10, 4],
            joint=[5, 2],
            agreement=[4.0, 2.0],
            rounds=[5, 4],
            gained=[8, 7],
        ),
        target=True,
    )
    assert found == {
        "steps": [
            {
                "step": 0,
                "total": 10,
                "teacher_forced": 0.5,
                "joint": 0.5,
                "conditional": 0.5,
                "coverage": 0.9,
                "top_4": 0.6,
                "top_8": 0.8,
                "agreement": 0.4,
            },
            {
                "step": 1,
                "total": 8,
                "teacher_forced": 0.375,
                "joint": 0.25,
                "conditional": 0.5,
                "coverage": 0.75,
                "top_4": 0.5,
                "top_8": 0.625,
                "agreement": 0.25,
            },
        ],
        "accepted_per_round": 0.75,
        "tokens_per_round": 1.75,
        "walked": {"rounds": 4, "tokens": 7, "tokens_per_round": 1.75},
        "walked_by_steps": [
            {"steps": 1, "rounds": 5, "tokens": 8, "tokens_per_round": 1.6},
            {"steps": 2, "rounds": 4, "tokens": 7, "tokens_per_round": 1.75},
        ],
    }
    assert type(found["steps"][0]["total"]) is int


def test_without_a_target_nobody_speaks_of_agreement():
    assert "agreement" not in figures(counts())["steps"][0]


def test_documents_add_up_in_64_bits():
    large = Counts(*(np.full((3, 5), 2**30, np.int32) for _ in Counts._fields))
    assert figures(large)["steps"][0]["total"] == 3 * 2**30
    assert figures(large)["walked"]["tokens"] == 3 * 2**30


def test_a_step_that_nobody_reaches_has_no_share():
    whole = {name: [4, 0] for name in Counts._fields[:8]}
    found = figures(counts(steps=2, **whole, rounds=[0, 0], gained=[0, 0]))
    for name in ("joint", "conditional", "coverage", "teacher_forced", "top_4"):
        assert found["steps"][1][name] is None
    assert found["tokens_per_round"] == 2.0
    assert found["walked"]["tokens_per_round"] is None


def test_no_column_at_all_is_an_error():
    nothing = {name: [0, 0] for name in Counts._fields[:8]}
    message = "no column counts: the text holds no answer token that a draft could say"
    with pytest.raises(ValueError, match=message):
        figures(counts(steps=2, **nothing, rounds=[0, 0], gained=[0, 0]))


# Intervals


def documents(joint, total=100):
    """Documents of one step with so many joint hits of 100 columns each."""
    hits = np.array(joint)[:, None]
    whole = {name: np.full_like(hits, total) for name in Counts._fields[:8]}
    return Counts(**whole | {"joint": hits}, rounds=np.full_like(hits, 50), gained=2 * hits)


def test_an_interval_holds_the_figure_and_shrinks_with_documents():
    rng = np.random.default_rng(0)
    few, many = (intervals(documents(rng.integers(20, 80, n))) for n in (8, 800))
    for name in ("joint_0", "tokens_per_round", "walked_tokens_per_round"):
        assert many[name][1] - many[name][0] < (few[name][1] - few[name][0]) / 4
    low, high = many["joint_0"]
    assert low < 0.5 < high
    assert many["tokens_per_round"] == pytest.approx([1 + low, 1 + high])


def test_documents_that_agree_leave_no_doubt():
    assert intervals(documents([30, 30, 30]))["joint_0"] == [0.3, 0.3]


def test_counts_of_many_columns_lose_no_digit():
    assert intervals(documents([2**25 + 1] * 3, total=2**26))["joint_0"] == [0.5 + 2**-26] * 2


def test_a_walks_interval_is_of_all_steps():
    one, other = documents([30, 30]), documents([60, 60])
    both = Counts(*(np.hstack(parts) for parts in zip(one, other, strict=True)))
    found = intervals(both)
    assert found["joint_0"] == [0.3, 0.3]
    assert found["tokens_per_round"] == pytest.approx([1.9, 1.9])
    assert found["walked_tokens_per_round"] == pytest.approx([2.4, 2.4])


def test_one_document_has_no_interval():
    assert intervals(documents([30]))["tokens_per_round"] is None
    silent = documents([30, 0])
    silent.total[1] = 0
    assert intervals(silent)["tokens_per_round"] is None


def test_intervals_are_the_same_again():
    drawn = documents(np.random.default_rng(0).integers(0, 100, 50))
    assert intervals(drawn) == intervals(drawn)
    assert intervals(drawn) != intervals(drawn, seed=1)

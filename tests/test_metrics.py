"""Counts and figures against examples worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.metrics import Counts, count, figures

K = 3
EVERY = np.ones(10, bool)


def counted(predicted, ids, answer, in_draft=EVERY):
    """Counts of one row, as lists."""
    found = jax.jit(count)(
        jnp.asarray(predicted, jnp.int32)[:, None],
        jnp.asarray(ids, jnp.int32)[None],
        jnp.asarray(answer, bool)[None],
        jnp.asarray(in_draft, bool),
    )
    return {name: part.tolist() for name, part in found._asdict().items()}


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


def test_rows_add_up():
    ids = jnp.array([[0, 0, 1, 2], [0, 0, 3, 4]])
    answer = jnp.ones((2, 4), bool)
    predicted = jnp.array([[[1, 2, 0, 0], [3, 0, 0, 0]]])
    found = count(predicted, ids, answer, jnp.ones(5, bool))
    assert found.total.tolist() == [4]
    assert found.right.tolist() == [3]
    parts = [
        count(predicted[:, row : row + 1], ids[row : row + 1], answer[:1], jnp.ones(5, bool))
        for row in range(2)
    ]
    total = parts[0] + parts[1]
    assert isinstance(total, Counts)
    assert [part.tolist() for part in total] == [part.tolist() for part in found]


def counts(**parts):
    whole = {name: np.array([100] * 5) for name in Counts._fields} | parts
    return Counts(**whole)


def test_the_acceptance_length_is_made_of_joint_accuracies():
    joint = np.array([70, 37, 21, 13, 8])
    found = figures(counts(joint=joint, reached=np.array([100, *joint[:-1]])))
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
            total=np.array([10, 8]),
            covered=np.array([9, 6]),
            right=np.array([5, 3]),
            reached=np.array([10, 4]),
            joint=np.array([5, 2]),
        )
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
            },
            {
                "step": 1,
                "total": 8,
                "teacher_forced": 0.375,
                "joint": 0.25,
                "conditional": 0.5,
                "coverage": 0.75,
            },
        ],
        "accepted_per_round": 0.75,
        "tokens_per_round": 1.75,
    }
    assert type(found["steps"][0]["total"]) is int


def test_a_step_that_nobody_reaches_has_no_share():
    zero_later = np.array([4, 0])
    found = figures(Counts(zero_later, zero_later, zero_later, zero_later, zero_later))
    assert found["steps"][1]["joint"] is None
    assert found["steps"][1]["conditional"] is None
    assert found["steps"][1]["coverage"] is None
    assert found["steps"][1]["teacher_forced"] is None
    assert found["tokens_per_round"] == 2.0


def test_no_column_at_all_is_an_error():
    nothing = np.zeros(2, int)
    message = "no column counts: the text holds no answer token that a draft could say"
    with pytest.raises(ValueError, match=message):
        figures(Counts(*[nothing] * 5))

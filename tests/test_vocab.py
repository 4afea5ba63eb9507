"""The draft vocabulary: which ids, in which order, and what is refused."""

import numpy as np
import pytest

from eagle3_jax.vocab import VocabMap


def counts_of(corpus, vocab_size=32):
    return np.bincount(corpus, minlength=vocab_size)


def test_a_corpus_of_five_ids_still_fills_a_vocabulary_of_twelve():
    vocab = VocabMap.from_counts(counts_of([30, 7, 7, 9, 30, 30, 20, 11]), 12)
    assert vocab.target_ids.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 9, 11, 20, 30]
    assert vocab.in_draft.sum() == 12
    assert vocab.in_draft.shape == (32,)
    assert vocab.target_ids.dtype == np.int32
    assert vocab.in_draft.dtype == np.bool_


def test_the_same_counts_always_give_the_same_vocabulary():
    counts = np.random.default_rng(0).integers(0, 3, 32)
    first, second = VocabMap.from_counts(counts, 12), VocabMap.from_counts(counts.copy(), 12)
    np.testing.assert_array_equal(first.target_ids, second.target_ids)


def test_among_equally_frequent_ids_the_lowest_are_taken():
    assert VocabMap.from_counts(np.array([1, 5, 3, 3, 3, 5]), 3).target_ids.tolist() == [1, 2, 5]


def test_unsigned_counts_are_not_wrapped():
    assert VocabMap.from_counts(np.array([0, 9, 4], np.uint8), 1).target_ids.tolist() == [1]


def test_counts_of_a_large_corpus_are_not_wrapped():
    assert VocabMap.from_counts(np.array([5, 2**40, 2**15]), 2).target_ids.tolist() == [1, 2]


@pytest.mark.parametrize("size", [0, -1, 33])
def test_a_vocabulary_of_an_impossible_size_is_refused(size):
    with pytest.raises(ValueError, match=f"draft vocabulary size is {size}, expected 1 to 32"):
        VocabMap.from_counts(np.ones(32, int), size)


def test_ids_map_back_and_forth():
    vocab = VocabMap.from_ids(np.array([3, 1, 6]), 8)
    assert vocab.draft_ids().tolist() == [-1, 1, -1, 0, -1, -1, 2, -1]
    assert vocab.draft_ids().dtype == np.int32
    np.testing.assert_array_equal(vocab.draft_ids()[vocab.target_ids], [0, 1, 2])
    assert np.flatnonzero(vocab.in_draft).tolist() == [1, 3, 6]


def test_the_identity_can_say_everything():
    vocab = VocabMap.identity(5)
    assert vocab.target_ids.tolist() == vocab.draft_ids().tolist() == [0, 1, 2, 3, 4]
    assert vocab.in_draft.all()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 8], "draft vocabulary holds ids 0 to 8, expected 0 to 7"),
        ([-1, 2], "draft vocabulary holds ids -1 to 2, expected 0 to 7"),
        ([1, 2, 1], "draft vocabulary of 3 holds 2 distinct ids"),
    ],
)
def test_ids_out_of_range_or_said_twice_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        VocabMap.from_ids(np.array(ids), 8)


@pytest.mark.parametrize("marked", [[1, 3], [1, 2, 3], [0, 2]])
def test_marks_that_are_not_the_ids_are_refused(marked):
    in_draft = np.zeros(8, bool)
    in_draft[marked] = True
    message = f"in_draft marks {len(marked)} ids that are not the 2 target_ids"
    with pytest.raises(ValueError, match=message):
        VocabMap(np.array([1, 2], np.int32), in_draft)


def test_ids_that_a_narrower_type_would_wrap_are_out_of_range():
    with pytest.raises(ValueError, match=r"holds ids 3 to 4294967297, expected 0 to 7"):
        VocabMap.from_ids(np.array([3, 2**32 + 1]), 8)

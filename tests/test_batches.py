"""Documents become padded batches, and padding counts for nothing."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.batches import batches, stack, with_token_behind
from eagle3_jax.structs import Document

RNG = np.random.default_rng(0)


def document(length, *, width=2, stored=4, embeddings=True, dtype=np.float32):
    return Document(
        ids=RNG.integers(1, 9, length).astype(np.int32),
        answer=RNG.integers(0, 2, length).astype(bool),
        states=RNG.normal(size=(length, stored, width)).astype(dtype),
        embeddings=RNG.normal(size=(length, 3)).astype(np.float32) if embeddings else None,
    )


def test_a_document_keeps_its_place_and_the_rest_is_padding():
    text = document(3)
    [batch] = batches([text], slots=(0, 1, 2), columns=8, bucket=4)
    assert batch.ids.shape == (2, 4)
    np.testing.assert_array_equal(batch.ids[0, :3], text.ids)
    np.testing.assert_array_equal(batch.answer[0, :3], text.answer)
    np.testing.assert_array_equal(batch.embeddings[0, :3], text.embeddings)
    np.testing.assert_array_equal(batch.aux[0, :3], text.states[:, :3].reshape(3, 6))
    assert batch.valid.tolist() == [[True, True, True, False], [False] * 4]
    assert batch.document.tolist() == [0, -1]
    assert batch.last is None
    for part in batch[:5]:
        assert not part[0, 3:].any()
        assert not part[1:].any()
    assert batch.ids.dtype == np.int32
    assert batch.answer.dtype == batch.valid.dtype == np.bool_


def test_stored_states_are_taken_in_the_order_of_the_slots():
    text = document(2)
    [batch] = batches([text], slots=(3, 1), columns=2, bucket=2)
    np.testing.assert_array_equal(batch.aux[0, :, :2], text.states[:, 3])
    np.testing.assert_array_equal(batch.aux[0, :, 2:], text.states[:, 1])


def test_the_last_state_comes_along_when_it_is_wanted():
    text = document(3)
    [batch] = batches([text], slots=(0,), last=3, columns=8, bucket=4)
    np.testing.assert_array_equal(batch.last[0, :3], text.states[:, 3])
    assert not batch.last[0, 3:].any()
    assert not batch.last[1].any()


def test_rows_know_their_documents():
    texts = [document(length) for length in (3, 9, 4, 0, 12, 2)]
    found = list(batches(texts, slots=(0,), columns=8, bucket=4))
    numbers = [int(number) for batch in found for number in batch.document]
    assert sorted(number for number in numbers if number >= 0) == [0, 1, 2, 3, 4, 5]
    for batch in found:
        for row, number in enumerate(batch.document):
            text = texts[number].ids if number >= 0 else []
            assert batch.ids[row][batch.valid[row]].tolist() == list(text)


def test_rows_of_a_stack_are_numbered_and_padding_is_not():
    texts = [document(3), document(2)]
    found = stack(texts, slots=(0,), table=None, length=4, rows=4)
    assert found.document.tolist() == [0, 1, -1, -1]


def test_a_text_has_token_0_behind_it():
    texts = [document(3), document(2)]
    short = stack(texts, slots=(0, 2), table=None, last=3, length=3, rows=3)
    behind = np.array([7.0, 8.0, 9.0], np.float32)
    longer = with_token_behind(short, jnp.asarray(behind))
    for part, before in zip(longer[:5], short[:5], strict=True):
        assert part.shape == (3, 4, *before.shape[2:])
    for row, size in enumerate((3, 2, 0)):
        np.testing.assert_array_equal(longer.embeddings[row, :size], short.embeddings[row, :size])
        np.testing.assert_array_equal(longer.embeddings[row, size:], np.tile(behind, (4 - size, 1)))
    for part, before in (
        (longer.ids, short.ids),
        (longer.aux, short.aux),
        (longer.last, short.last),
        (longer.answer, short.answer),
        (longer.valid, short.valid),
    ):
        np.testing.assert_array_equal(part[:, :3], before)
        assert not part[:, 3].any()
    assert longer.document.tolist() == [0, 1, -1]


def test_every_length_has_one_shape_and_no_document_is_lost():
    texts = [document(length) for length in (3, 9, 4, 1, 12, 2, 8, 5)]
    found = list(batches(texts, slots=(0,), columns=8, bucket=4))
    assert sorted(batch.ids.shape for batch in found) == [(1, 8)] * 2 + [(1, 12)] * 2 + [(2, 4)] * 2
    rows = [row[mask] for batch in found for row, mask in zip(batch.ids, batch.valid, strict=True)]
    kept = sorted(row.tolist() for row in rows if len(row))
    assert kept == sorted(text.ids.tolist() for text in texts)


def test_a_document_of_exactly_a_bucket_is_not_padded():
    [batch] = batches([document(8)], slots=(0,), columns=8, bucket=4)
    assert batch.ids.shape == (1, 8)
    assert batch.valid.all()


def test_a_full_batch_leaves_before_the_input_ends():
    seen = []

    def source():
        for number in range(4):
            seen.append(number)
            yield document(4)

    next(batches(source(), slots=(0,), columns=8, bucket=4))
    assert seen == [0, 1]


def test_a_document_longer_than_a_batch_has_a_row_to_itself():
    found = list(batches([document(9), document(9)], slots=(0,), columns=4, bucket=4))
    assert [batch.ids.shape for batch in found] == [(1, 12)] * 2


def test_a_table_takes_the_place_of_stored_embeddings():
    table = RNG.normal(size=(9, 5)).astype(np.float16)
    for stored in (True, False):
        text = document(3, embeddings=stored)
        [batch] = batches([text], slots=(0,), table=table, columns=4, bucket=4)
        np.testing.assert_array_equal(batch.embeddings[0, :3], table[text.ids])
        assert batch.embeddings.dtype == np.float16


def test_states_keep_their_type():
    [batch] = batches([document(3, dtype=np.float16)], slots=(0,), columns=4, bucket=4)
    assert batch.aux.dtype == np.float16


def test_without_embeddings_a_table_is_asked_for():
    message = r"a document stores no embeddings \(boundary 0\), expected a token table"
    with pytest.raises(ValueError, match=message):
        list(batches([document(3, embeddings=False)], slots=(0,), columns=4, bucket=4))


@pytest.mark.parametrize(
    ("slot", "told"),
    [
        (-1, "document 0 stores no slot -1, expected 0 to 4"),
        (4, "document 1 stores no slot 4, expected 0 to 3"),
        (9, "document 0 stores no slot 9, expected 0 to 4"),
    ],
)
def test_a_slot_that_is_not_stored_is_refused(slot, told):
    with pytest.raises(ValueError, match=told):
        stack([document(3, stored=5), document(2)], slots=(0, slot))


@pytest.mark.parametrize("last", [4, -2])
def test_a_last_state_that_is_not_stored_is_refused(last):
    with pytest.raises(ValueError, match=f"document 0 stores no slot {last}, expected 0 to 3"):
        stack([document(3)], slots=(0,), last=last)


def test_a_last_state_of_minus_one_is_the_last_that_is_stored():
    text = document(3)
    np.testing.assert_array_equal(stack([text], slots=(0,), last=-1).last[0], text.states[:, 3])


def test_a_stack_of_nothing_is_refused():
    with pytest.raises(ValueError, match="found no document, expected at least one"):
        stack([], slots=(0,))


def test_no_documents_make_no_batches():
    assert list(batches([], slots=(0,))) == []

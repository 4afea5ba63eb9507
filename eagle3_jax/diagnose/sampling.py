"""Which documents a search looks at: a few of one shape, so that readings share a compilation."""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from eagle3_jax.batches import stack
from eagle3_jax.diagnose.search import Data
from eagle3_jax.structs import Document, Features

LONGEST = 512  # columns of a document
_COLUMNS = 512  # of a batch
FEWEST = 4  # documents that decide: fewer have no interval worth its name
_BATCHES = 6  # to be split into, at least, where there are as many documents
_FIRST, _SECOND, _FRESH = 1, 3, 12  # batches
_BUCKET = 64


def sample(documents: Iterable[Document], *, table: np.ndarray | None) -> Data:
    """Batches for a search: documents with the longest answers find, the others decide.

    Args:
        documents: at least one; of a longer one than `LONGEST` a part with answer tokens is taken.
        table: `[V,D]` token embeddings; by default each document's own.

    Raises:
        ValueError: when there is none.
    """
    cut = [_cut(document) for document in documents]
    if not cut:
        raise ValueError("found no document, expected at least one")
    ranked = sorted(cut, key=lambda document: -int(document.answer.sum()))
    length = -(-max(len(document.ids) for document in ranked) // _BUCKET) * _BUCKET
    rows = max(min(_COLUMNS // length, len(ranked) // _BATCHES), 1)
    whole = [
        _batch(ranked[start : start + rows], length, rows, table)
        for start in range(0, len(ranked), rows)
    ][: _SECOND + _FRESH]
    # Too few documents to keep some apart: the same ones must find and decide.
    rest = ranked[_SECOND * rows :]
    apart = sum(bool(document.answer[2:].any()) for document in rest) >= FEWEST
    second = whole[:_SECOND] if apart else whole
    return Data(whole[:_FIRST], second, whole[_SECOND:] if apart else [])


def chance(documents: Iterable[Document]) -> float:
    """Share of the columns that count at which the one likeliest token is due at step 0."""
    due = count_due(documents)
    return max(due.values()) / due.total() if due else 0.0


def count_due(documents: Iterable[Document]) -> Counter[int]:
    """How often each token is due at step 0, over the columns that count."""
    due: Counter[int] = Counter()
    for document in documents:
        due.update(document.ids[2:][document.answer[2:]].tolist())
    return due


def _batch(documents: list[Document], length: int, rows: int, table: np.ndarray | None) -> Features:
    slots = tuple(range(documents[0].states.shape[1]))
    return stack(documents, slots=slots, table=table, length=length, rows=rows)


def _cut(document: Document) -> Document:
    """The part of a document around the beginning of its answer."""
    size = len(document.ids)
    if size <= LONGEST:
        return document
    begin = int(np.argmax(document.answer))
    start = min(max(begin - LONGEST // 2, 0), size - LONGEST)
    part = slice(start, start + LONGEST)
    embeddings = None if document.embeddings is None else document.embeddings[part]
    return Document(document.ids[part], document.answer[part], document.states[part], embeddings)

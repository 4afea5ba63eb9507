"""Documents -> padded batches of a few static shapes.

Lengths are rounded up to a multiple of one bucket size and every batch of a length has the same
number of rows, so a jitted function compiles once per length. Padding never counts: it is neither
valid nor answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np

from eagle3_jax.structs import Document, Features


def batches(
    documents: Iterable[Document],
    *,
    slots: tuple[int, ...],
    table: np.ndarray | None = None,
    columns: int = 4096,
    bucket: int = 64,
) -> Iterator[Features]:
    """Group documents of similar length into batches.

    Args:
        documents: in any order; they are held back until a batch of their length is full.
        slots: which stored states feed the draft, in which order.
        table: `[V,D]` token embeddings; by default each document's own (boundary 0).
        columns: rows times length of a batch, about; at least one row.
        bucket: lengths are rounded up to a multiple of it.

    Yields:
        Features; rows that no document fills are padding.

    Raises:
        ValueError: when a document has no embeddings and no table is given.
    """
    waiting: dict[int, list[Document]] = defaultdict(list)
    for document in documents:
        length = -(-len(document.ids) // bucket) * bucket
        held = waiting[length]
        held.append(document)
        if len(held) == _rows(columns, length):
            yield stack(held, slots=slots, table=table, length=length, rows=len(held))
            waiting[length] = []
    for length, held in sorted(waiting.items()):
        if held:
            rows = _rows(columns, length)
            yield stack(held, slots=slots, table=table, length=length, rows=rows)


def stack(
    documents: list[Document],
    *,
    slots: tuple[int, ...],
    table: np.ndarray | None,
    length: int,
    rows: int,
) -> Features:
    """Some documents as one batch of `rows` x `length`; see `batches`."""
    first = documents[0]
    aux = np.zeros((rows, length, len(slots) * first.states.shape[2]), first.states.dtype)
    embedded = [_embeddings(document, table) for document in documents]
    embeddings = np.zeros((rows, length, embedded[0].shape[1]), embedded[0].dtype)
    ids = np.zeros((rows, length), np.int32)
    answer = np.zeros((rows, length), np.bool_)
    valid = np.zeros((rows, length), np.bool_)
    for row, (document, vectors) in enumerate(zip(documents, embedded, strict=True)):
        size = len(document.ids)
        ids[row, :size] = document.ids
        aux[row, :size] = document.states[:, slots].reshape(size, -1)
        embeddings[row, :size] = vectors
        answer[row, :size] = document.answer
        valid[row, :size] = True
    return Features(*map(jnp.asarray, (ids, aux, embeddings, answer, valid)))


def _rows(columns: int, length: int) -> int:
    return max(columns // length, 1)


def _embeddings(document: Document, table: np.ndarray | None) -> np.ndarray:
    if table is not None:
        return table[document.ids]
    if document.embeddings is None:
        raise ValueError("a document stores no embeddings (boundary 0), expected a token table")
    return document.embeddings

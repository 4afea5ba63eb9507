"""Documents -> padded batches of a few static shapes.

Lengths are rounded up to a multiple of one bucket size and every batch of a length has the same
number of rows, so a jitted function compiles once per length. Padding never counts: it is neither
valid nor answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from eagle3_jax.config import DraftConfig
from eagle3_jax.structs import Document, Features, find_fault

_NO_EMBEDDINGS = "stores no embeddings (boundary 0), expected a token table"


def require_documents(
    config: DraftConfig,
    documents: Iterable[Document],
    *,
    slots: tuple[int, ...],
    table: np.ndarray | None,
) -> Iterator[Document]:
    """The same documents, each looked at when it is asked for: see `require_document`.

    Raises:
        ValueError: when `slots` are not as many as the draft reads, or a document is refused.
    """
    wanted = max(config.num_aux, 1)
    if len(slots) != wanted:
        raise ValueError(
            f"slots are {list(slots)}, expected {wanted} of them, which the draft reads"
        )
    for number, document in enumerate(documents):
        require_document(config, document, number, slots=slots, table=table)
        yield document


def require_document(
    config: DraftConfig,
    document: Document,
    number: int,
    *,
    slots: tuple[int, ...] = (),
    table: np.ndarray | None = None,
) -> None:
    """Refuse a document that a draft cannot read, or would read without a sign that it is broken.

    Args:
        config: of the draft.
        document: of any shard, or made in memory.
        number: its place among the documents, for the message.
        slots: stored states that are to be read.
        table: `[V,D]` token embeddings; by default the document's own, which are then due.

    Raises:
        ValueError: when `find_fault` finds something, states or embeddings are of another width
            than the draft's, or a slot is not stored.
    """
    fault = find_fault(document, config.vocab_size) or _find_misfit(config, document, table)
    if fault is not None:
        raise ValueError(f"document {number} {fault}")
    _require_slots(slots, document, number)


def _find_misfit(config: DraftConfig, document: Document, table: np.ndarray | None) -> str | None:
    width = document.states.shape[2]
    if width != config.target_hidden_size:
        return (
            f"holds states of width {width}, expected {config.target_hidden_size}, which the draft "
            "reads"
        )
    if table is None:
        if document.embeddings is None:
            return _NO_EMBEDDINGS
        found, due = list(document.embeddings.shape), [len(document.ids), config.hidden_size]
        if found != due:
            return f"holds embeddings of shape {found}, expected {due}, as wide as the draft"
    return None


def batches(
    documents: Iterable[Document],
    *,
    slots: tuple[int, ...],
    table: np.ndarray | None = None,
    last: int | None = None,
    columns: int = 4096,
    bucket: int = 64,
) -> Iterator[Features]:
    """Group documents of similar length into batches.

    Args:
        documents: in any order; they are held back until a batch of their length is full.
        slots: which stored states feed the draft, in which order.
        table: `[V,D]` token embeddings; by default each document's own (boundary 0).
        last: the slot of the target's last state, where that is wanted, too; -1 is the last one
            that is stored.
        columns: rows times length of a batch, about; at least one row.
        bucket: lengths are rounded up to a multiple of it.

    Yields:
        Features; rows that no document fills are padding.

    Raises:
        ValueError: when a document has no embeddings and no table is given, or a slot is not
            stored.
    """
    waiting: dict[int, list[tuple[int, Document]]] = defaultdict(list)

    def full(length: int) -> Features:
        numbers, held = zip(*waiting.pop(length), strict=True)
        rows = _rows(columns, length)
        features = stack(list(held), slots=slots, table=table, last=last, length=length, rows=rows)
        absent = (-1,) * (rows - len(numbers))
        return features._replace(document=jnp.asarray(numbers + absent, jnp.int32))

    for number, document in enumerate(documents):
        length = max(-(-len(document.ids) // bucket), 1) * bucket
        waiting[length].append((number, document))
        if len(waiting[length]) == _rows(columns, length):
            yield full(length)
    for length in sorted(waiting):
        yield full(length)


def stack(
    documents: list[Document],
    *,
    slots: tuple[int, ...],
    table: np.ndarray | None = None,
    length: int | None = None,
    rows: int | None = None,
    last: int | None = None,
) -> Features:
    """Some documents side by side, as one batch.

    Args:
        documents: one or more.
        slots: as in `batches`, as are `table` and `last`.
        table: `[V,D]`.
        length: T; by default the longest document's.
        rows: B; by default one for each document.
        last: a slot, or -1.

    Raises:
        ValueError: when there is no document, one has no embeddings and no table is given, or a
            slot is not stored.
    """
    if not documents:
        raise ValueError("found no document, expected at least one")
    read = slots if last is None or last == -1 else (*slots, last)
    for place, document in enumerate(documents):
        _require_slots(read, document, place)
    first = documents[0]
    length = max(len(document.ids) for document in documents) if length is None else length
    rows = len(documents) if rows is None else rows
    aux = np.zeros((rows, length, len(slots) * first.states.shape[2]), first.states.dtype)
    embedded = [_embeddings(document, table) for document in documents]
    embeddings = np.zeros((rows, length, embedded[0].shape[1]), embedded[0].dtype)
    ids = np.zeros((rows, length), np.int32)
    answer = np.zeros((rows, length), np.bool_)
    valid = np.zeros((rows, length), np.bool_)
    for row, (document, vectors) in enumerate(zip(documents, embedded, strict=True)):
        size = len(document.ids)
        ids[row, :size] = document.ids
        aux[row, :size] = document.states[:, slots].reshape(size, aux.shape[2])
        embeddings[row, :size] = vectors
        answer[row, :size] = document.answer
        valid[row, :size] = True
    number = np.where(np.arange(rows) < len(documents), np.arange(rows), -1).astype(np.int32)
    parts = map(jnp.asarray, (ids, aux, embeddings, answer, valid, number))
    return Features(*parts)._replace(last=_last(documents, last, rows, length))


def with_token_behind(features: Features, behind: Float[Array, " D"]) -> Features:
    """Each text with token 0 behind it: its embedding, and a last state of zeros.

    So trainers read what follows a text's end.

    Args:
        features: padding is all zeros.
        behind: the embedding of token 0, which takes the place of all padding, too.
    """

    def one_more(x: Array) -> Array:
        return jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2))

    longer = features._replace(
        **{
            name: one_more(getattr(features, name))
            for name in ("ids", "aux", "embeddings", "answer", "valid", "last")
            if getattr(features, name) is not None
        }
    )
    embeddings = jnp.where(longer.valid[:, :, None], longer.embeddings, behind)
    return longer._replace(embeddings=embeddings)


def _last(
    documents: list[Document], slot: int | None, rows: int, length: int
) -> jnp.ndarray | None:
    if slot is None:
        return None
    states = documents[0].states
    found = np.zeros((rows, length, states.shape[2]), states.dtype)
    for row, document in enumerate(documents):
        found[row, : len(document.ids)] = document.states[:, slot]
    return jnp.asarray(found)


def _require_slots(slots: tuple[int, ...], document: Document, number: int) -> None:
    """Refuse slots that are not stored; a negative one would count from the end."""
    stored = document.states.shape[1]
    for slot in slots:
        if not 0 <= slot < stored:
            raise ValueError(f"document {number} stores no slot {slot}, expected 0 to {stored - 1}")


def _rows(columns: int, length: int) -> int:
    return max(columns // length, 1)


def _embeddings(document: Document, table: np.ndarray | None) -> np.ndarray:
    if table is not None:
        return table[document.ids]
    if document.embeddings is None:
        raise ValueError(f"a document {_NO_EMBEDDINGS}")
    return document.embeddings

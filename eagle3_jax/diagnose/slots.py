"""What is each stored state? Figures of a shard's slots, and what they prove, measure or suggest.

Norms suggest, they prove nothing: a small one has been taken for the embedding's and was a
layer's output. What proves is equality, with the row of an embedding table, with another slot or
with the target's own state; and inequality, as no table gives one id two states.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

import numpy as np

from eagle3_jax.diagnose.figures import Slot, summarise
from eagle3_jax.diagnose.findings import Finding
from eagle3_jax.diagnose.likeness import Likeness, compare, middle
from eagle3_jax.diagnose.measures import (
    STORED_EMBEDDINGS,
    BoundariesOf,
    Measured,
    cut,
    measure,
    recompute,
)
from eagle3_jax.diagnose.predicting import judge_final_norm, judge_rates
from eagle3_jax.diagnose.slot_findings import (
    judge_boundaries,
    judge_order,
    judge_rows_of_tables,
    judge_stated,
    judge_values,
)
from eagle3_jax.diagnose.suspects import SUSPECT, judge_predictions
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead
from eagle3_jax.structs import Document


class Neighbours(NamedTuple):
    """How alike two slots are that are stored side by side.

    Attributes:
        one: name of the first.
        other: of the next.
        cosine: median over the tokens past position 0; NaN where nothing could be compared.
        first: median at position 0.
    """

    one: str
    other: str
    cosine: float
    first: float


class Slots(NamedTuple):
    """What a shard's stored states are.

    Attributes:
        documents: how many were read.
        tokens: how many of their tokens were.
        recomputed: how many of the documents the target was run on.
        slots: the figures of each slot, and last those of the stored boundary 0 where there is
            one.
        findings: what they say, slot by slot, then of the whole shard.
        suspicions: those of them that blame the shard itself.
        neighbours: each slot beside the next.
    """

    documents: int
    tokens: int
    recomputed: int
    slots: tuple[Slot, ...]
    findings: tuple[Finding, ...]
    suspicions: tuple[Finding, ...]
    neighbours: tuple[Neighbours, ...]

    @property
    def suspicion(self) -> str | None:
        """What the examination holds against the shard itself, in words."""
        if not self.suspicions:
            return None
        first, *more = self.suspicions
        return first.claim.removeprefix(SUSPECT) + (
            f" (and {len(more)} more of this kind)" if more else ""
        )


def examine_slots(
    documents: Iterable[Document],
    *,
    tables: Mapping[str, np.ndarray] | None = None,
    head: TargetHead | None = None,
    boundaries_of: BoundariesOf | None = None,
    stated: tuple[int, ...] = (),
    max_documents: int = 32,
    max_tokens: int = 256,
    max_asked: int = 64,
    max_recomputed: int = 4,
) -> Slots:
    """Find out what each stored state of a shard is.

    Args:
        documents: of one shard; only the first ones are taken from it.
        tables: `[V,D]` token embeddings, by a name that messages use ("the draft's embed_tokens").
        head: the target's head with its final norm.
        boundaries_of: `[T]` ids -> `[T,L+1,Dt]`, the target's states at boundaries 0 to L.
        stated: the boundary that the shards say of each slot, from the first one on.
        max_documents: how many documents to read.
        max_tokens: how many tokens of each, from its start.
        max_asked: of how many of those, from the end, to ask the head: it costs the most.
        max_recomputed: on how many documents to run the target.

    Raises:
        InputError: when there is no token, documents differ in slots or widths, or the head or
            the target's states have another width.
    """
    texts = [cut(document, max_tokens) for document in islice(documents, max_documents)]
    tables = dict(tables or {})
    _require_alike(texts, head)
    count, width = texts[0].states.shape[1:]
    fitting = {name: table for name, table in tables.items() if table.shape[1] == width}
    parts: list[list[Measured]] = [[] for _ in range(count)]
    rows: list[Measured] = []
    beside: list[list[Likeness]] = [[] for _ in range(count - 1)]
    for number, text in enumerate(texts):
        stored = {}
        if text.embeddings is not None:
            within = {n: t for n, t in tables.items() if t.shape[1] == text.embeddings.shape[1]}
            rows.append(measure(text.embeddings, text.ids, within, {}, None, {}, 0))
            if text.embeddings.shape[1] == width:
                stored = {STORED_EMBEDDINGS: text.embeddings}
        theirs = {}
        if boundaries_of is not None and number < max_recomputed:
            theirs = recompute(text.ids, boundaries_of, head, width)
        for slot in range(count):
            states = text.states[:, slot]
            parts[slot].append(measure(states, text.ids, fitting, stored, head, theirs, max_asked))
            if slot + 1 < count:
                beside[slot].append(compare(states, text.states[:, slot + 1]))
    recomputed = 0 if boundaries_of is None else min(max_recomputed, len(texts))
    return _judge(texts, tables, parts, rows, beside, recomputed, stated)


def _judge(
    texts: list[Document],
    tables: Mapping[str, np.ndarray],
    parts: list[list[Measured]],
    rows: list[Measured],
    beside: list[list[Likeness]],
    recomputed: int,
    stated: tuple[int, ...],
) -> Slots:
    ids = [text.ids for text in texts]
    suspects: tuple[int, ...] = ()
    suspicions: list[Finding] = []
    if parts[0][0].guesses is not None:
        suspects, found = judge_predictions(parts, ids)
        suspicions += found
    slots = [summarise(f"slot {slot}", found, ids, suspects) for slot, found in enumerate(parts)]
    if rows:
        slots.append(summarise(STORED_EMBEDDINGS, rows, ids, suspects))
    smallest = min(
        (slot for slot in slots[: len(parts)] if not slot.zero),
        key=lambda slot: np.nan_to_num(slot.norms.median, nan=np.inf),
        default=None,
    )
    findings: list[Finding] = []
    for slot, measured in zip(slots, [*parts, rows] if rows else parts, strict=True):
        findings += judge_values(slot)
        if slot.zero:
            continue
        told, of_shard = judge_rows_of_tables(slot, measured, slot is smallest)
        findings += told + judge_boundaries(slot)
        suspicions += of_shard
    suspicions += judge_stated(slots[: len(parts)], stated)
    findings += judge_final_norm(slots[: len(parts)], ids, suspects)
    if parts[0][0].guesses is not None:
        findings += judge_rates(slots[: len(parts)], parts, ids, suspects)
    findings += judge_order(slots[: len(parts)], beside)
    return Slots(
        len(texts),
        sum(map(len, ids)),
        recomputed,
        tuple(slots),
        tuple(findings + _mismatches(tables, parts) + suspicions),
        tuple(suspicions),
        tuple(
            Neighbours(
                slots[number].name,
                slots[number + 1].name,
                middle(np.concatenate([likeness.cosine[1:] for likeness in found])),
                middle(np.array([likeness.cosine[0] for likeness in found])),
            )
            for number, found in enumerate(beside)
        ),
    )


def _require_alike(texts: list[Document], head: TargetHead | None) -> None:
    if not texts:
        raise InputError("found no document, expected at least one")
    shape, width = texts[0].states.shape[1:], _embedding_width(texts[0])
    for number, text in enumerate(texts):
        if not len(text.ids):
            raise InputError(f"document {number} holds no token, expected some")
        if text.states.ndim != 3 or text.states.shape != (len(text.ids), *shape):
            raise InputError(
                f"document {number} holds states of shape {list(text.states.shape)}, expected "
                f"{[len(text.ids), *shape]}"
            )
        if _embedding_width(text) != width:
            raise InputError(
                f"document {number} holds embeddings of width {_embedding_width(text)}, expected "
                f"{width} as in document 0"
            )
    if not shape[0]:
        raise InputError("documents hold no state, expected one or more of each token")
    if head is not None and head.kernel.shape[0] != shape[1]:
        raise InputError(
            f"the target's head reads width {head.kernel.shape[0]}, expected {shape[1]}, that of "
            "the stored states"
        )


def _embedding_width(text: Document) -> int | None:
    return None if text.embeddings is None else text.embeddings.shape[1]


def _mismatches(tables: Mapping[str, np.ndarray], parts: list[list[Measured]]) -> list[Finding]:
    width = parts[0][0].later.shape[0]
    return [
        Finding(
            "proved",
            f"no slot is the embedding in {name}",
            f"its rows are {table.shape[1]} wide, the states {width}",
        )
        for name, table in tables.items()
        if table.shape[1] != width
    ]

"""Checked inputs -> a capture, batches, figures: what `eval` and `demo` share.

Every ValueError that a user's documents can cause is turned into an `InputError` here, where the
file's name is known.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from converters.shards import read_documents
from eagle3_jax.batches import batches
from eagle3_jax.cli.inputs import Inputs, Shard, listed
from eagle3_jax.cli.progress import progress
from eagle3_jax.errors import InputError
from eagle3_jax.evaluate import evaluate
from eagle3_jax.metrics import figures
from eagle3_jax.structs import Document, Features


class Capture(NamedTuple):
    """Which stored states feed the draft.

    Attributes:
        slots: places in the shard's stored order.
        boundaries: what the shard says stands there.
        source: who decided.
    """

    slots: tuple[int, ...]
    boundaries: tuple[int, ...]
    source: str


class Score(NamedTuple):
    """What an evaluation found.

    Attributes:
        capture: which states fed the draft.
        documents: how many were read.
        tokens: of all documents.
        answer_tokens: of these, tokens that the loss mask marks.
        figures: `steps`, `accepted_per_round`, `tokens_per_round`, as `metrics.figures` has them.
        seconds: wall-clock time of the evaluation, compilation included.
    """

    capture: Capture
    documents: int
    tokens: int
    answer_tokens: int
    figures: dict[str, Any]
    seconds: float


def capture_of(inputs: Inputs, slots: tuple[int, ...] | None = None) -> Capture:
    """Which stored states feed the draft: those of `slots`, else those that its config names.

    Raises:
        InputError: when a state is not stored, or nobody says which states are meant.
    """
    first, draft = inputs.shards[0], inputs.draft
    stored, wanted = first.info.boundaries, max(draft.config.num_aux, 1)
    if slots is not None:
        outside = [slot for slot in slots if slot >= len(stored)]
        if len(slots) != wanted or outside:
            raise InputError(
                f"--slots is {listed(slots)}, expected {wanted} of 0 to {len(stored) - 1}: the "
                f"draft reads {wanted} states, {first.path} stores boundaries {listed(stored)}"
            )
        return Capture(slots, tuple(stored[slot] for slot in slots), "--slots")
    if draft.boundaries is None:
        raise InputError(
            f"{inputs.draft_path}: the config does not say which target states feed the draft, "
            f"expected --slots with {wanted} of 0 to {len(stored) - 1}: {first.path} stores "
            f"boundaries {listed(stored)}"
        )
    # A last state after the final norm is not the residual stream that a boundary means.
    residual = stored if first.info.last_state == "pre_norm" else stored[:-1]
    if not set(draft.boundaries) <= set(residual):
        normed = "" if residual is stored else ", the last one after the final norm"
        raise InputError(
            f"{first.path}: stores boundaries {listed(stored)}{normed}, expected "
            f"{listed(draft.boundaries)}, which feed the draft {inputs.draft_path}"
        )
    found = tuple(residual.index(boundary) for boundary in draft.boundaries)
    return Capture(found, draft.boundaries, "the draft's config")


def score(
    inputs: Inputs, capture: Capture, *, steps: int, quiet: bool, what: str = "documents"
) -> Score:
    """Evaluate a draft on every document, in float32.

    Args:
        inputs: from `load`.
        capture: which stored states to read.
        steps: K.
        quiet: show no progress.
        what: the progress bar's words.

    Raises:
        InputError: when `steps` is below 1, a document is not what it should be, or the loss
            masks leave nothing to count.
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}, expected 1 or more")
    tally = _Tally()
    # The last batch of each length is mostly padding: small batches waste less of a CPU's time.
    columns = 1024 if jax.default_backend() == "cpu" else 8192
    fed = batches(
        _documents(inputs, tally), slots=capture.slots, table=inputs.table, columns=columns
    )
    expected = sum(shard.documents for shard in inputs.shards)
    started = time.perf_counter()
    # Exact products on accelerators too, which by default round the inputs of a float32 product.
    with (
        progress(what, expected, quiet=quiet) as advance,
        jax.default_matmul_precision("highest"),
    ):

        def on_batch(features: Features) -> None:
            advance(int(np.asarray(features.valid).any(axis=1).sum()))

        try:
            counts = evaluate(
                inputs.draft.config,
                inputs.params,
                inputs.kernel,
                inputs.draft.vocab,
                fed,
                steps=steps,
                on_batch=on_batch,
            )
            found = figures(counts)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{_names(inputs.shards)}: {error}") from error
    seconds = time.perf_counter() - started
    return Score(capture, tally.documents, tally.tokens, tally.answer_tokens, found, seconds)


def as_json(inputs: Inputs, result: Score) -> dict[str, Any]:
    """A score for machines."""
    return {
        "draft": str(inputs.draft_path),
        "shards": [str(shard.path) for shard in inputs.shards],
        "capture": {
            "slots": list(result.capture.slots),
            "boundaries": list(result.capture.boundaries),
            "source": result.capture.source,
        },
        "embeddings": inputs.embeddings,
        "head": inputs.head,
        "documents": result.documents,
        "tokens": result.tokens,
        "answer_tokens": result.answer_tokens,
        **result.figures,
        "seconds": round(result.seconds, 3),
        "notes": list(inputs.draft.notes),
    }


@dataclass
class _Tally:
    """What went by on the way to the batches."""

    documents: int = 0
    tokens: int = 0
    answer_tokens: int = 0


def _documents(inputs: Inputs, tally: _Tally) -> Iterator[Document]:
    """Every document, checked and counted."""
    vocab_size = inputs.draft.config.vocab_size
    for shard in inputs.shards:
        for number, document in enumerate(read_documents(shard.path)):
            ids = document.ids
            if not len(ids):
                raise InputError(f"{shard.path}: document {number} holds no token, expected some")
            if ids.min() < 0 or ids.max() >= vocab_size:
                raise InputError(
                    f"{shard.path}: document {number} holds token ids {ids.min()} to "
                    f"{ids.max()}, expected 0 to {vocab_size - 1}, the vocabulary of the draft "
                    f"{inputs.draft_path}"
                )
            tally.documents += 1
            tally.tokens += len(ids)
            tally.answer_tokens += int(document.answer.sum())
            yield document


def _names(shards: tuple[Shard, ...]) -> str:
    more = f" and {len(shards) - 1} more" if len(shards) > 1 else ""
    return f"{shards[0].path}{more}"

"""Checked inputs -> a capture, batches, figures: what `eval` and `demo` share.

Every ValueError that a user's documents can cause is turned into an `InputError` here, where the
file's name is known.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from converters.shards import check_document, read_documents
from eagle3_jax.batches import batches
from eagle3_jax.cli.inputs import Inputs, listed
from eagle3_jax.cli.progress import progress
from eagle3_jax.errors import InputError
from eagle3_jax.evaluate import evaluate
from eagle3_jax.metrics import Counts, figures, intervals
from eagle3_jax.structs import Document, Features

Precision = Literal["float32", "bfloat16"]

_NAMED = 3  # bad documents in one message


class Capture(NamedTuple):
    """Which stored states feed the draft.

    Attributes:
        slots: places in the shard's stored order.
        boundaries: what stands there; `None` where nobody says.
        source: who decided.
    """

    slots: tuple[int, ...]
    boundaries: tuple[int, ...] | None
    source: str


class Score(NamedTuple):
    """What an evaluation found.

    Attributes:
        capture: which states fed the draft.
        documents: how many were counted.
        tokens: of all documents.
        answer_tokens: of these, tokens that the loss mask marks.
        figures: as `metrics.figures` has them, and their `intervals`.
        files: path, documents and figures of each file.
        bad: what was wrong with each document that was left out.
        precision: of the computation.
        seconds: wall-clock time of the evaluation, compilation included.
    """

    capture: Capture
    documents: int
    tokens: int
    answer_tokens: int
    figures: dict[str, Any]
    files: list[dict[str, Any]]
    bad: tuple[str, ...]
    precision: Precision
    seconds: float


def capture_of(inputs: Inputs, slots: tuple[int, ...] | None = None) -> Capture:
    """Which stored states feed the draft: those of `slots`, else those that its config names.

    Raises:
        InputError: when a state is not stored, or nobody says which states are meant.
    """
    first, draft = inputs.shards.files[0], inputs.draft
    stored, wanted = inputs.shards.info.boundaries, max(draft.config.num_aux, 1)
    told = f"{first.states} states" if stored is None else f"boundaries {listed(stored)}"
    if slots is not None:
        outside = [slot for slot in slots if slot >= first.states]
        if len(slots) != wanted or outside:
            raise InputError(
                f"--slots is {listed(slots)}, expected {wanted} of 0 to {first.states - 1}: the "
                f"draft reads {wanted} states, {first.path} stores {told}"
            )
        named = None if stored is None else tuple(stored[slot] for slot in slots)
        return Capture(slots, named, "--slots")
    if stored is None:
        return _capture_as_stored(inputs, wanted)
    if draft.boundaries is None:
        raise InputError(
            f"{inputs.draft_path}: the config does not say which target states feed the draft, "
            f"expected --slots with {wanted} of 0 to {len(stored) - 1}: {first.path} stores {told}"
        )
    # A last state after the final norm is not the residual stream that a boundary means.
    post = inputs.shards.info.last_state == "post_norm"
    residual = stored[:-1] if post else stored
    if not set(draft.boundaries) <= set(residual):
        normed = ", the last one after the final norm" if post else ""
        raise InputError(
            f"{first.path}: stores boundaries {listed(stored)}{normed}, expected "
            f"{listed(draft.boundaries)}, which feed the draft {inputs.draft_path}"
        )
    found = tuple(residual.index(boundary) for boundary in draft.boundaries)
    return Capture(found, draft.boundaries, inputs.capture_source)


def _capture_as_stored(inputs: Inputs, wanted: int) -> Capture:
    """The aux states of a layout that does not say which they are, in their order."""
    first, info = inputs.shards.files[0], inputs.shards.info
    if inputs.draft.config.num_aux == 0:
        return Capture((first.states - 1,), None, f"the layout of the shards, {first.layout}")
    held = {first.states - 1, first.states}
    if info.last_state is not None:
        held = {first.states} if info.last_state == "absent" else {first.states - 1}
    if wanted not in held:
        raise InputError(
            f"{first.path}: stores {first.states} states and does not say which, expected --slots "
            f"with the {wanted} of 0 to {first.states - 1} that feed the draft {inputs.draft_path}"
        )
    source = f"the layout of the shards, {first.layout}, which does not say which states these are"
    return Capture(tuple(range(wanted)), None, source)


def score(
    inputs: Inputs,
    capture: Capture,
    *,
    steps: int,
    quiet: bool,
    what: str = "documents",
    max_bad: float = 0.0,
    precision: Precision = "float32",
) -> Score:
    """Evaluate a draft on every document.

    Args:
        inputs: from `load`.
        capture: which stored states to read.
        steps: K.
        quiet: show no progress.
        what: the progress bar's words.
        max_bad: the share of documents that may be left out for what is wrong with them; at 0 the
            first of them ends the evaluation.
        precision: what parameters, heads and states are cast to.

    Raises:
        InputError: when `steps` is below 1, too many documents are not what they should be, or
            the loss masks leave nothing to count.
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}, expected 1 or more")
    tally = Tally()
    files = inputs.shards.files
    fed = batches(
        good_documents(inputs, tally, strict=max_bad == 0.0),
        slots=capture.slots,
        table=inputs.table,
        last=None if inputs.target_head is None else files[0].states - 1,
        columns=batch_columns() * jax.local_device_count(),
    )
    started = time.perf_counter()
    params, kernel, head = _cast((inputs.params, inputs.kernel, inputs.target_head), precision)
    # Exact products on accelerators too, which by default round the inputs of a float32 product.
    products = "highest" if precision == "float32" else "default"
    with (
        progress(what, sum(file.documents for file in files), quiet=quiet) as advance,
        jax.default_matmul_precision(products),
    ):

        def on_batch(features: Features) -> None:
            advance(int((np.asarray(features.document) >= 0).sum()))

        try:
            counts = evaluate(
                inputs.draft.config,
                params,
                kernel,
                inputs.draft.vocab,
                fed,
                steps=steps,
                head=head,
                on_batch=on_batch,
            )
            _require_good(tally, max_bad)
            found = figures(counts, target=inputs.target_head is not None)
        except InputError:
            raise
        except ValueError as error:
            _require_good(tally, max_bad)
            raise InputError(f"{_names(inputs)}: {error}") from error
    seconds = time.perf_counter() - started
    found["intervals"] = intervals(counts)
    return Score(
        capture,
        len(tally.files),
        tally.tokens,
        tally.answer_tokens,
        found,
        _by_file(inputs, counts, tally),
        tuple(tally.bad),
        precision,
        seconds,
    )


def _cast(parts: Any, precision: Precision) -> Any:
    """Arrays in another precision; what they say beside that (an epsilon) stays."""

    def cast(leaf: Any) -> Any:
        return leaf.astype(precision) if isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(cast, parts)


def batch_columns() -> int:
    """Columns of a batch for each device.

    The last batch of each length is mostly padding: small ones waste less of a CPU's time.
    """
    return 1024 if jax.default_backend() == "cpu" else 8192


def as_json(inputs: Inputs, result: Score) -> dict[str, Any]:
    """A score for machines."""
    boundaries = result.capture.boundaries
    return {
        "draft": str(inputs.draft_path),
        "shards": [str(file.path) for file in inputs.shards.files],
        "layout": inputs.shards.files[0].layout,
        "capture": {
            "slots": list(result.capture.slots),
            "boundaries": None if boundaries is None else list(boundaries),
            "source": result.capture.source,
        },
        "last_state": inputs.shards.info.last_state,
        "embeddings": inputs.embeddings,
        "head": inputs.head,
        "due": inputs.due,
        "precision": result.precision,
        "documents": result.documents,
        "tokens": result.tokens,
        "answer_tokens": result.answer_tokens,
        **result.figures,
        "files": result.files,
        "bad": list(result.bad),
        "seconds": round(result.seconds, 3),
        "notes": list(inputs.draft.notes),
    }


@dataclass
class Tally:
    """What went by on the way to the batches.

    Attributes:
        tokens: of all counted documents.
        answer_tokens: of these, tokens that the loss mask marks.
        files: of each counted document, the number of its file.
        bad: what was wrong with each of the others.
    """

    tokens: int = 0
    answer_tokens: int = 0
    files: list[int] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


def good_documents(inputs: Inputs, tally: Tally, *, strict: bool) -> Iterator[Document]:
    """Every document, checked and counted; bad ones are left out, or end it where that is asked."""
    vocab_size = inputs.draft.config.vocab_size
    for number, file in enumerate(inputs.shards.files):
        documents = enumerate(read_documents(file))
        while True:
            try:
                place, document = next(documents)
            except StopIteration:
                break
            except InputError as error:  # what a file of several says is of the whole file
                if strict:
                    raise
                tally.bad.append(str(error))
                break
            wrong = check_document(document, vocab_size)
            if wrong is not None:
                told = f"{file.path}: document {place} {wrong}"
                if strict:
                    raise InputError(told)
                tally.bad.append(told)
                continue
            tally.files.append(number)
            tally.tokens += len(document.ids)
            tally.answer_tokens += int(document.answer.sum())
            yield document


def _require_good(tally: Tally, max_bad: float) -> None:
    """Refuse more bad documents than the user puts up with."""
    whole, bad = len(tally.files) + len(tally.bad), len(tally.bad)
    if bad and (bad > max_bad * whole or bad == whole):
        more = f" and {bad - _NAMED} more" if bad > _NAMED else ""
        raise InputError(
            f"{bad} of {whole} documents are bad, expected at most {max_bad:.1%} (--max-bad): "
            f"{'; '.join(tally.bad[:_NAMED])}{more}"
        )


def _by_file(inputs: Inputs, counts: Counts, tally: Tally) -> list[dict[str, Any]]:
    """The headline figures of each file."""
    owners = np.asarray(tally.files)
    found = []
    for number, file in enumerate(inputs.shards.files):
        rows = np.flatnonzero(owners == number)
        told: dict[str, Any] = {"path": str(file.path), "documents": len(rows)}
        part = Counts(*(np.asarray(values)[rows] for values in counts))
        if part.total[:, 0].sum():
            of_file = figures(part)
            told["joint_0"] = of_file["steps"][0]["joint"]
            told["tokens_per_round"] = of_file["tokens_per_round"]
            told["walked_tokens_per_round"] = of_file["walked"]["tokens_per_round"]
        found.append(told)
    return found


def _names(inputs: Inputs) -> str:
    files = inputs.shards.files
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].path}{more}"

"""Checked inputs -> a capture, batches, figures: what `eval` and `demo` share.

Every ValueError that a user's documents can cause is turned into an `InputError` here, where the
file's name is known.
"""

import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from eagle3_jax.batches import batches
from eagle3_jax.cli.documents import Tally, good_documents, require_good, tally_of
from eagle3_jax.cli.inputs import Inputs, listed
from eagle3_jax.cli.progress import progress
from eagle3_jax.errors import InputError
from eagle3_jax.evaluate import evaluate
from eagle3_jax.metrics import Counts, figures, intervals
from eagle3_jax.structs import Features

Precision = Literal["float32", "bfloat16"]


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
        files: path, documents, headline figures and their intervals of each file.
        groups: the same of each path given, with all its files.
        bad: what was wrong with each document or file that was left out.
        lost: how many documents these are, as in `Tally`.
        precision: of the computation.
        seconds: wall-clock time of the evaluation, compilation included.
    """

    capture: Capture
    documents: int
    tokens: int
    answer_tokens: int
    figures: dict[str, Any]
    files: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    bad: tuple[str, ...]
    lost: int
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
    if stored is None or draft.config.num_aux == 0:
        return _capture_as_stored(inputs, wanted)
    if draft.boundaries is None:
        raise InputError(
            f"{inputs.draft_path}: the config does not say which target states feed the draft, "
            f"expected --slots with {wanted} of 0 to {len(stored) - 1}: {first.path} stores {told}"
        )
    residual = inputs.shards.info.residual or ()
    if not set(draft.boundaries) <= set(residual):
        normed = ", the last one after the final norm" if residual != stored else ""
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
    tally = tally_of(inputs)
    files = inputs.shards.files
    known = sum(file.documents for file in files)
    whole = known + tally.lost
    require_good(tally, whole, max_bad)
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
    with progress(what, known, quiet=quiet) as advance, jax.default_matmul_precision(products):

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
            require_good(tally, whole, max_bad)
            found = figures(counts, target=inputs.target_head is not None)
        except InputError:
            raise
        except ValueError as error:
            require_good(tally, whole, max_bad)
            raise InputError(f"{_names(inputs)}: {error}") from error
    seconds = time.perf_counter() - started
    found["intervals"] = intervals(counts)
    by_file, by_group = _by_path(inputs, counts, tally)
    return Score(
        capture,
        len(tally.files),
        tally.tokens,
        tally.answer_tokens,
        found,
        by_file,
        by_group,
        tuple(tally.bad),
        tally.lost,
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
        "groups": result.groups,
        "bad": list(result.bad),
        "bad_documents": result.lost,
        "seconds": round(result.seconds, 3),
        "notes": list(inputs.draft.notes),
    }


def _by_path(
    inputs: Inputs, counts: Counts, tally: Tally
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Figures of each file, and of each path given."""
    owners = np.asarray(tally.files)
    files, groups = inputs.shards.files, inputs.shards.groups
    rows = {file.path: np.flatnonzero(owners == number) for number, file in enumerate(files)}
    of_groups = {
        path: np.concatenate([rows[file] for file in held if file in rows] or [owners[:0]])
        for path, held in groups.items()
    }

    def told(parts: dict[Path, np.ndarray]) -> list[dict[str, Any]]:
        return [
            _headlines(path, Counts(*(part[held] for part in counts)))
            for path, held in parts.items()
        ]

    return told(rows), told(of_groups)


def _headlines(path: Path, counts: Counts) -> dict[str, Any]:
    """The headline figures of some documents, under a path that stands for them."""
    told: dict[str, Any] = {"path": str(path), "documents": len(counts.total)}
    if counts.total[:, 0].sum():
        found = figures(counts)
        told["joint_0"] = found["steps"][0]["joint"]
        told["tokens_per_round"] = found["tokens_per_round"]
        told["walked_tokens_per_round"] = found["walked"]["tokens_per_round"]
        told["intervals"] = intervals(counts)
    return told


def _names(inputs: Inputs) -> str:
    files = inputs.shards.files
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{files[0].path}{more}"

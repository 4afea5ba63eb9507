"""Checked inputs and a capture -> figures: what `eval` and `demo` share.

Every ValueError that a user's documents can cause is turned into an `InputError` here, where the
file's name is known.
"""

import time
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from converters.feeding import Capture
from eagle3_jax.cli.documents import Tally, good_documents, require_good, tally_of
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.diagnose.weights import require_finite
from eagle3_jax.drafts import Draft, cast
from eagle3_jax.errors import InputError
from eagle3_jax.evaluate import evaluate_documents
from eagle3_jax.metrics import Counts, figures, intervals
from eagle3_jax.structs import Features

Precision = Literal["float32", "bfloat16"]


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
        InputError: when `steps` is below 1, the draft holds a NaN or infinity, too many documents
            are not what they should be, or the loss masks leave nothing to count.
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}, expected 1 or more")
    try:
        require_finite(inputs.params)
    except ValueError as error:
        raise InputError(f"{inputs.draft_path}: {error}") from None
    tally = tally_of(inputs)
    known = sum(file.documents for file in inputs.shards.files)
    whole = known + tally.lost
    require_good(tally, whole, max_bad)
    started = time.perf_counter()
    params, kernel, head = cast((inputs.params, inputs.kernel, inputs.target_head), precision)
    draft = Draft(inputs.draft.config, params, inputs.draft.vocab, kernel, inputs.table)
    with progress(what, known, quiet=quiet) as advance:

        def on_batch(features: Features) -> None:
            advance(int((np.asarray(features.document) >= 0).sum()))

        try:
            counts = evaluate_documents(
                draft,
                good_documents(inputs, tally, strict=max_bad == 0.0),
                slots=capture.slots,
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

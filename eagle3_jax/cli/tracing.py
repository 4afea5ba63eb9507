"""Documents of a shard -> a trace: a draft's steps over each, column by column."""

from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np

from converters.feeding import Capture
from converters.series import digest_of
from converters.trees import to_tensors
from eagle3_jax.batches import stack
from eagle3_jax.cli.documents import Tally, good_documents
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.cli.scoring import Precision
from eagle3_jax.drafts import cast
from eagle3_jax.errors import InputError
from eagle3_jax.rollout import Own
from eagle3_jax.stages import Step, Trace
from eagle3_jax.structs import Document
from eagle3_jax.trace import Traced, trace


def trace_documents(
    inputs: Inputs,
    capture: Capture,
    *,
    steps: int,
    documents: int,
    columns: int | None,
    own: bool,
    precision: Precision,
    quiet: bool,
) -> Trace:
    """Run a draft over the first documents and keep every stage.

    Args:
        inputs: from `load`.
        capture: which stored states to read.
        steps: K.
        documents: how many.
        columns: most columns that are kept of each, evenly spread; `None` for all.
        own: go on with the draft's own tokens instead of the text's.
        precision: what parameters and states are cast to.
        quiet: show no progress.

    Raises:
        InputError: when a document is not what it should be or too short, or own tokens need a
            table that is not there.
    """
    if own and inputs.table is None:
        raise InputError(
            f"{inputs.draft_path}: holds no token embeddings, expected --target with the target's "
            "directory to go on with the draft's own tokens"
        )
    found: list[list[Step]] = [[] for _ in range(steps)]
    good = islice(good_documents(inputs, Tally(), strict=True), documents)
    with progress("documents", documents, quiet=quiet) as advance:
        for row, document in enumerate(good):
            needed = 2 if own else steps + 1
            if len(document.ids) < needed:
                raise InputError(
                    f"{inputs.shards.files[0].path}: document {row} has {len(document.ids)} "
                    f"tokens, expected {needed} or more for {steps} steps"
                )
            kept = _spread(len(document.ids), columns)
            heard = _run(inputs, capture, document, kept, steps=steps, own=own, precision=precision)
            tokens = _tokens(inputs, document, kept, heard, own=own)
            for number, step in enumerate(_steps(heard, tokens, kept, row)):
                found[number].append(step)
            advance(1)
    metadata = {
        "writer": "eagle3-jax",
        "draft": digest_of(to_tensors(inputs.draft.params), repr(inputs.draft.config)),
        "tokens": "own" if own else "text",
        "head_dim": str(inputs.draft.config.attention.head_dim),
    }
    return Trace(tuple(map(_joined, found)), metadata)


def _spread(length: int, most: int | None) -> np.ndarray:
    """Columns of a text, the first and the last among them."""
    if most is None or most >= length:
        return np.arange(length)
    return np.unique(np.linspace(0, length - 1, most).round().astype(int))


def _run(
    inputs: Inputs,
    capture: Capture,
    document: Document,
    kept: np.ndarray,
    *,
    steps: int,
    own: bool,
    precision: Precision,
) -> Traced:
    features = stack([document], slots=capture.slots, table=inputs.table)
    draft = inputs.draft
    read = inputs.params, inputs.kernel, features.aux, features.embeddings
    params, kernel, aux, embeddings = cast(read, precision)
    choosing = None
    if own and inputs.table is not None:
        choosing = Own(jnp.asarray(inputs.table), kernel, jnp.asarray(draft.vocab.target_ids))

    @jax.jit
    def run(params, kernel, aux, embeddings, choosing):  # type: ignore[no-untyped-def]
        return trace(
            draft.config,
            params,
            kernel,
            aux,
            embeddings,
            steps=steps,
            columns=jnp.asarray(kept),
            own=choosing,
        )

    # Exact products on accelerators too, which by default round the inputs of a float32 product.
    with jax.default_matmul_precision("highest" if precision == "float32" else "default"):
        return jax.tree.map(np.asarray, run(params, kernel, aux, embeddings, choosing))


def _tokens(
    inputs: Inputs, document: Document, kept: np.ndarray, heard: Traced, *, own: bool
) -> list[np.ndarray]:
    """The target id that each column reads at each step, -1 where the text has run out."""
    steps = len(heard.steps["state"])
    ids = np.concatenate([document.ids, np.full(steps, -1)])
    tokens = [ids[kept + 1 + number] for number in range(steps)]
    if own:
        said = inputs.draft.vocab.target_ids[heard.steps["top_ids"][:, 0, :, 0]]
        tokens[1:] = [np.where(tokens[0] < 0, -1, chosen) for chosen in said[:-1]]
    return tokens


def _steps(heard: Traced, tokens: list[np.ndarray], kept: np.ndarray, row: int) -> list[Step]:
    """The steps of one document, without the columns that have run out of text."""
    found = []
    for number, token in enumerate(tokens):
        there = token >= 0
        stages = {name: stage[number, 0, there] for name, stage in heard.steps.items()}
        if number == 0:
            stages |= {name: stage[0, there] for name, stage in heard.once.items()}
        stages["token"] = token[there, None].astype(np.int64)
        found.append(Step(np.full(there.sum(), row), kept[there], stages))
    return found


def _joined(steps: list[Step]) -> Step:
    """The same step of all documents."""
    return Step(
        np.concatenate([step.rows for step in steps]),
        np.concatenate([step.columns for step in steps]),
        {name: np.concatenate([step.stages[name] for step in steps]) for name in steps[0].stages},
    )

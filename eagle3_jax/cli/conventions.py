"""Checked inputs -> the figures of one framework, by its own reckoning: `eval --as NAME`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converters.feeding import Capture
from eagle3_jax.batches import batches
from eagle3_jax.cli.documents import Tally, good_documents
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.conventions import CONVENTIONS, measure
from eagle3_jax.errors import InputError
from eagle3_jax.evaluate import batch_columns
from eagle3_jax.structs import Features


def require_teacher(name: str, inputs: Inputs) -> None:
    """Refuse to count as a framework does where no target's last state is the teacher.

    Raises:
        InputError: then.
    """
    if inputs.target_head is None:
        raise InputError(
            f"--as {name}: what is due would be {inputs.due}, expected --target with the target's "
            "directory and shards with its last state, which is the teacher of every framework"
        )


def reckon(
    name: str, inputs: Inputs, capture: Capture, *, steps: int, quiet: bool
) -> dict[str, Any]:
    """The figures that a framework's own evaluation of these shards gives.

    It follows an evaluation, which has refused what is too bad: bad documents are passed over.

    Args:
        name: of the framework.
        inputs: from `load`, with a target.
        capture: which stored states to read.
        steps: K.
        quiet: show no progress.

    Returns:
        `framework`, `source` and `figures`.
    """
    head, table, files = inputs.target_head, inputs.table, inputs.shards.files
    assert head is not None, "a target gives a head"
    assert table is not None, "a target gives token embeddings"
    fed = batches(
        good_documents(inputs, Tally(), strict=False),
        slots=capture.slots,
        table=table,
        last=files[0].states - 1,
        columns=batch_columns(),
    )
    what, whole = f"documents, as {name} counts", sum(file.documents for file in files)
    with progress(what, whole, quiet=quiet) as advance, jax.default_matmul_precision("highest"):

        def on_batch(features: Features) -> None:
            advance(int((np.asarray(features.document) >= 0).sum()))

        found = measure(
            CONVENTIONS[name],
            inputs.draft.config,
            inputs.params,
            inputs.kernel,
            inputs.draft.vocab,
            fed,
            steps=steps,
            head=head,
            behind=jnp.asarray(table[0]),
            on_batch=on_batch,
        )
    return {"framework": name, "source": CONVENTIONS[name].source, "figures": found}

"""How often a draft is right on stored target states: jitted counts over batches.

The rows of a batch are spread over all local devices. Each computes its own rows by itself, so the
counts do not depend on how many devices there are; they meet on the host.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from eagle3_jax.batches import batches as make_batches
from eagle3_jax.batches import require_documents
from eagle3_jax.config import DraftConfig
from eagle3_jax.drafts import Draft
from eagle3_jax.heads import TargetHead, rank, rank_and_agree, teach
from eagle3_jax.metrics import Counts, count
from eagle3_jax.ops import due_at, read_at
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import Document, DraftStep, Features
from eagle3_jax.vocab import VocabMap

_ROWS = "rows"  # the axis of the devices


def evaluate_documents(
    draft: Draft,
    documents: Iterable[Document],
    *,
    slots: tuple[int, ...],
    steps: int = 5,
    head: TargetHead | None = None,
    on_batch: Callable[[Features], None] | None = None,
) -> Counts:
    """Count right predictions of a draft on documents; `metrics.figures` makes shares of them.

    Args:
        draft: from `place_draft`.
        documents: of shards, in any order.
        slots: which stored states feed the draft.
        steps: K.
        head: of the target: what is due is then its likeliest token, made of the last stored state.
        on_batch: called after each batch (progress).

    Returns:
        Counts of each document, `[n,K]`, in the order given.

    Raises:
        ValueError: when there is no document, `steps` is below 1, or `require_documents` refuses
            the slots or a document.
    """
    fed = make_batches(
        require_documents(draft.config, documents, slots=slots, table=draft.table),
        slots=slots,
        table=draft.table,
        last=None if head is None else -1,
        columns=batch_columns() * jax.local_device_count(),
    )
    # Exact products on accelerators too, which by default round the inputs of a float32 product.
    products = "highest" if draft.kernel.dtype == jnp.float32 else "default"
    with jax.default_matmul_precision(products):
        return evaluate(
            draft.config,
            draft.params,
            draft.kernel,
            draft.vocab,
            fed,
            steps=steps,
            head=head,
            on_batch=on_batch,
        )


def batch_columns() -> int:
    """Columns of a batch for each device.

    The last batch of each length is mostly padding: small ones waste less of a CPU's time.
    """
    return 1024 if jax.default_backend() == "cpu" else 8192


def evaluate(
    config: DraftConfig,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    vocab: VocabMap,
    batches: Iterable[Features],
    *,
    steps: int,
    head: TargetHead | None = None,
    on_batch: Callable[[Features], None] | None = None,
) -> Counts:
    """Count right predictions under teacher forcing, against the text's ids or the target's choice.

    Args:
        config: the draft's.
        params: its parameters; their type is the precision of the computation.
        kernel: the head, `[D,W]`.
        vocab: the draft vocabulary.
        batches: the features; one compilation for each of their shapes.
        steps: K.
        head: of the target: what is due is then its likeliest token, and agreement is counted;
            the features need its last states.
        on_batch: called after each batch (progress).

    Returns:
        Counts of each document, `[n,K]`, in the order of their numbers.

    Raises:
        ValueError: when there is no batch, `steps` is below 1, or the states do not fit the draft.
    """
    if steps < 1:
        raise ValueError(f"steps is {steps}, expected 1 or more")
    mesh = Mesh(np.array(jax.local_devices()), (_ROWS,))
    spoken = None if head is None else head.kernel[:, jnp.asarray(vocab.target_ids)]
    shared = jax.device_put(
        (params, kernel, jnp.asarray(vocab.draft_ids()), head, spoken),
        NamedSharding(mesh, PartitionSpec()),
    )
    found: list[Counts] = []
    numbers: list[np.ndarray] = []
    for features in batches:
        spread = jax.device_put(
            _filled(features, mesh.size), NamedSharding(mesh, PartitionSpec(_ROWS))
        )
        counts = _counted(mesh, config, steps, shared, spread)
        number = np.asarray(spread.document)
        rows = np.flatnonzero(number >= 0)
        numbers.append(number[rows])
        found.append(Counts(*(np.asarray(part)[rows] for part in counts)))
        if on_batch is not None:
            on_batch(features)
    if not found:
        raise ValueError("found no document, expected at least one")
    order = np.argsort(np.concatenate(numbers), kind="stable")
    return Counts(*(np.concatenate(parts)[order] for parts in zip(*found, strict=True)))


def _filled(features: Features, multiple: int) -> Features:
    """The features with padding rows at the end, for a number of rows that devices can share."""
    rows = len(features.document)
    missing = -rows % multiple
    if not missing:
        return features

    def longer(x: Array) -> Array:
        return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))

    filled = jax.tree.map(longer, features)
    return filled._replace(document=filled.document.at[rows:].set(-1))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _counted(
    mesh: Mesh, config: DraftConfig, steps: int, shared: tuple[Any, ...], features: Features
) -> Counts:
    of_rows = jax.shard_map(
        functools.partial(_count_rows, config, steps),
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(_ROWS)),
        out_specs=PartitionSpec(_ROWS),
        check_vma=False,  # its loops start from constants, which differ in that from their results
    )
    return of_rows(shared, features)


def _count_rows(
    config: DraftConfig,
    steps: int,
    shared: tuple[
        dict[str, Any],
        Float[Array, "D W"],
        Int[Array, " V"],
        TargetHead | None,
        Float[Array, "Dt W"] | None,
    ],
    features: Features,
) -> Counts:
    """The counts of some rows, on one device."""
    params, kernel, draft_ids, head, spoken = shared
    teacher = None if head is None else teach(head.read(features.last), head.kernel)

    def due(step: Int[Array, ""] | int) -> Int[Array, "B T"]:
        """The draft id that is due, below 0 where the draft cannot say it."""
        if teacher is None:
            return draft_ids[due_at(features.ids, step)]
        return draft_ids[read_at(teacher.best, step)]

    def read(number: Int[Array, ""] | int, step: DraftStep) -> tuple[Array, Array, Array]:
        ids = due(number)
        if teacher is None or spoken is None:
            ranks = rank(step.head_input, kernel, ids)
            return ranks, ids >= 0, jnp.zeros(ids.shape, jnp.float32)
        at = teacher.at(number)
        ranks, mass = rank_and_agree(step.head_input, kernel, ids, at, spoken)
        return ranks, ids >= 0, mass

    ranks, covered, agreement = unroll(
        config,
        params,
        features.aux.astype(kernel.dtype),
        features.embeddings.astype(kernel.dtype),
        steps=steps,
        read=read,
        valid=features.valid,
    )
    return count(ranks, covered, features.answer, agreement)

"""A whole diagnosis of a draft on documents: what is stored, the search, the verdict."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.batches import require_documents
from eagle3_jax.config import DraftConfig, RopeConfig
from eagle3_jax.diagnose.cases import Case, Setting
from eagle3_jax.diagnose.findings import Finding
from eagle3_jax.diagnose.readings import Axis, Known, axes_of, configured, ropes_of
from eagle3_jax.diagnose.sampling import chance, sample
from eagle3_jax.diagnose.search import Data, Found, search
from eagle3_jax.diagnose.slots import Slots, examine_slots
from eagle3_jax.diagnose.verdict import Verdict, judge
from eagle3_jax.diagnose.weights import examine_vocabulary, examine_weights
from eagle3_jax.drafts import Draft
from eagle3_jax.heads import TargetHead
from eagle3_jax.structs import Document


class Searched(NamedTuple):
    """A search and what it was made of.

    Attributes:
        setting: shared by all readings.
        case: the configured reading.
        axes: along which readings were tried, beside the states.
        data: on which they were scored.
        found: what came of it.
    """

    setting: Setting
    case: Case
    axes: tuple[Axis, ...]
    data: Data
    found: Found


class Diagnosis(NamedTuple):
    """A verdict and what it rests on.

    Attributes:
        verdict: what is wrong, if anything.
        weights: what the draft's tensors tell by themselves.
        slots: what each stored state is.
        searched: the readings that were tried.
    """

    verdict: Verdict
    weights: tuple[Finding, ...]
    slots: Slots
    searched: Searched


def diagnose_draft(
    draft: Draft,
    documents: Iterable[Document],
    *,
    slots: tuple[int, ...],
    steps: int = 3,
    stated: tuple[int, ...] = (),
    head: TargetHead | None = None,
    known: Known | None = None,
) -> Diagnosis:
    """Say how a draft is wired, from how well it does on stored states.

    Args:
        draft: in float32.
        documents: 64 or so are enough.
        slots: stored states that feed the draft, as its config or its server has it.
        steps: K of each reading.
        stated: the boundary that the shards say of each slot.
        head: the target's, to tell what the slots are.
        known: the target's table, head and rotation, to try them in the draft.

    Raises:
        InputError: when documents differ in slots or widths.
        ValueError: when there is no document, one is not what the draft reads, or slots or steps
            are not what they can be.
    """
    texts = list(require_documents(draft.config, documents, slots=slots, table=draft.table))
    if not texts or steps < 1:
        raise ValueError(f"found {len(texts)} documents and {steps} steps, expected 1 or more")
    with jax.default_matmul_precision("highest"):
        ids = draft.vocab.target_ids
        table = None if draft.table is None else jnp.asarray(draft.table)
        case = configured(draft.config, draft.params, draft.kernel, ids, table, slots)
        searched = search_readings(
            draft.config,
            case,
            texts,
            slots=slots,
            places=name_places(draft.config, texts[0].states.shape[1], stated),
            table=draft.table,
            steps=steps,
            known=known,
        )
        examined = examine_slots(texts, head=head, stated=stated)
        verdict = judge(searched.found, chance=chance(texts), suspicion=examined.suspicion)
    weights = examine_weights(draft.config, draft.params)
    weights += examine_vocabulary(draft.vocab.target_ids, texts)
    return Diagnosis(verdict, tuple(weights), examined, searched)


def search_readings(
    config: DraftConfig,
    case: Case,
    documents: Sequence[Document],
    *,
    slots: tuple[int, ...],
    places: tuple[str, ...],
    table: np.ndarray | None,
    steps: int,
    known: Known | None = None,
    ropes: tuple[RopeConfig, ...] = (),
    on_reading: Callable[[], None] | None = None,
) -> Searched:
    """Score readings of a draft on a sample of the documents.

    Args:
        config: of the draft.
        case: the configured reading.
        documents: good ones.
        slots: stored states that the configured reading feeds.
        places: of `name_places`.
        table: `[V,D]` token embeddings; by default each document's own.
        steps: K.
        known: of the target.
        ropes: rotations to try beside the usual ones; those that turn other dimensions are not.
        on_reading: called after each scored reading (progress).
    """
    known = known or Known()
    attention = config.attention
    fitting = [
        rope
        for rope in (*ropes_of(config, known), *ropes)
        if rope.partial == config.rope.partial
        and rope.rotated(attention.rope_dim) == config.rope.rotated(attention.rope_dim)
    ]
    setting = Setting(config, tuple(dict.fromkeys(fitting)), steps)
    data = sample(documents, table=table)
    axes = tuple(axes_of(setting, case, known))
    found = search(setting, case, axes, data, slots=slots, places=places, on_reading=on_reading)
    return Searched(setting, case, axes, data, found)


def name_places(
    config: DraftConfig, count: int, stated: tuple[int, ...], *, post_norm: bool = False
) -> tuple[str, ...]:
    """What to call each stored state; the embedding last, where it is as wide.

    Args:
        config: of the draft.
        count: how many states are stored.
        stated: the boundary of each, from the first one on, as far as it is said.
        post_norm: the last one went through the target's final norm.
    """
    names = [
        f"slot {slot}" + (f" = boundary {stated[slot]}" if slot < len(stated) else "")
        for slot in range(count)
    ]
    names[-1] += " (final norm applied)" if post_norm else ""
    embedding = ("the embedding",) if config.hidden_size == config.target_hidden_size else ()
    return (*names, *embedding)

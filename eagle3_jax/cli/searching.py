"""The search of a diagnosis: draft, shards and target made into what `diagnose.search` takes."""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp

from converters.drafts import Reading
from converters.engines import Served
from converters.feeding import Capture
from converters.files import read_json
from converters.targets import OpenTarget, read_target_config
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.config import RopeConfig
from eagle3_jax.diagnose.draft import Searched, search_readings
from eagle3_jax.diagnose.readings import Known, configured
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document


class Wanted(NamedTuple):
    """What the user says beside draft and shards.

    Attributes:
        slots: stored states that feed the draft.
        steps: K.
        target: its directory, opened.
        target_layers: L.
        target_class: its model_type.
        recompute: run it.
        trained_accuracy: of the first token, as training reported it.
        serving: states that a server captured.
        reading: how the draft was to be read.
    """

    slots: tuple[int, ...] | None
    steps: int
    target: OpenTarget | None
    target_layers: int | None
    target_class: str | None
    recompute: bool
    trained_accuracy: float | None
    serving: Path | None
    reading: Reading


def search_shards(
    inputs: Inputs,
    wanted: Wanted,
    documents: list[Document],
    capture: Capture,
    names: tuple[str, ...],
    served: list[Served],
    *,
    quiet: bool,
) -> Searched:
    """Score readings of the draft on a sample of the documents.

    Args:
        inputs: draft and shards.
        wanted: the user's say.
        documents: good ones.
        capture: the configured one.
        names: of each stored state, and of the embedding where it may be one.
        served: engines' readings, whose rotations are to be among those that can be chosen.
        quiet: show no progress.
    """
    draft, target = inputs.draft, wanted.target
    own = draft.embeddings
    known = Known()
    if target is not None:
        known = Known(
            None if own is None else jnp.asarray(target.embeddings.read()),
            jnp.asarray(target.head.read(), jnp.float32).T,
            _rope_of(target),
        )
    table = None if own is None else jnp.asarray(own)
    ids = draft.vocab.target_ids
    case = configured(draft.config, inputs.params, inputs.kernel, ids, table, capture.slots)
    with progress("readings", None, quiet=quiet) as advance:
        return search_readings(
            draft.config,
            case,
            documents,
            slots=capture.slots,
            places=names,
            table=inputs.table,
            steps=wanted.steps,
            known=known,
            ropes=tuple(one.config.rope for one in served if one.config is not None),
            on_reading=lambda: advance(1),
        )


def _rope_of(target: OpenTarget) -> RopeConfig | None:
    """The target's rotary embedding; `None` for a family whose config is not known here."""
    path = target.directory / "config.json"
    try:
        return read_target_config(read_json(path), str(path), has_head=True).rope
    except InputError:
        return None

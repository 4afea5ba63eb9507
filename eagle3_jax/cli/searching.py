"""The search of a diagnosis: draft, shards and target made into what `diagnose.search` takes."""

from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp

from converters.drafts import Reading
from converters.engines import Served
from converters.files import read_json
from converters.targets import OpenTarget, read_target_config
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.cli.scoring import Capture
from eagle3_jax.config import RopeConfig
from eagle3_jax.diagnose.cases import Case, Setting
from eagle3_jax.diagnose.readings import Known, axes_of, configured, ropes_of
from eagle3_jax.diagnose.sampling import sample
from eagle3_jax.diagnose.search import Data, Found, search
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


class Search(NamedTuple):
    """A search and what it was made of."""

    setting: Setting
    case: Case
    data: Data
    found: Found


def search_readings(
    inputs: Inputs,
    wanted: Wanted,
    documents: list[Document],
    capture: Capture,
    names: tuple[str, ...],
    served: list[Served],
    *,
    quiet: bool,
) -> Search:
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
    config, target = inputs.draft.config, wanted.target
    known = Known()
    if target is not None:
        own = inputs.draft.embeddings is not None
        known = Known(
            jnp.asarray(target.embeddings.read()) if own else None,
            jnp.asarray(target.head.read(), jnp.float32).T,
            _rope_of(target),
        )
    theirs = [one.config.rope for one in served if one.config is not None]
    turned = config.rope.rotated(config.attention.rope_dim)
    ropes = [*ropes_of(config, known), *(r for r in theirs if r.partial == config.rope.partial)]
    fitting = [r for r in ropes if r.rotated(config.attention.rope_dim) == turned]
    setting = Setting(config, tuple(dict.fromkeys(fitting)), wanted.steps)
    table = None if inputs.draft.embeddings is None else jnp.asarray(inputs.draft.embeddings)
    case = configured(
        config, inputs.params, inputs.kernel, inputs.draft.vocab.target_ids, table, capture.slots
    )
    data = sample(documents, table=inputs.table)
    axes = tuple(axes_of(setting, case, known))
    with progress("readings", None, quiet=quiet) as advance:
        found = search(
            setting,
            case,
            axes,
            data,
            slots=capture.slots,
            places=names,
            on_reading=lambda: advance(1),
        )
    return Search(setting, case, data, found)


def _rope_of(target: OpenTarget) -> RopeConfig | None:
    """The target's rotary embedding; `None` for a family whose config is not known here."""
    path = target.directory / "config.json"
    try:
        return read_target_config(read_json(path), str(path), has_head=True).rope
    except InputError:
        return None

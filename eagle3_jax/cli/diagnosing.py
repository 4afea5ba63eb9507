"""What `diagnose` does: states, readings, engines and dumps, put together as one JSON value."""

from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from converters.drafts import OpenDraft, open_draft
from converters.engines import Served
from converters.feeding import Capture, choose_capture
from converters.targets import OpenTarget, load_target
from eagle3_jax.cli.diagnosis_json import correction_json, readings_json, verdict_json
from eagle3_jax.cli.documents import good_documents, tally_of
from eagle3_jax.cli.engine_scores import score_engine
from eagle3_jax.cli.engines import ASSUMED, native, served_by_all
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.searching import Wanted, search_shards
from eagle3_jax.cli.serving_dumps import compare_dumps
from eagle3_jax.diagnose.draft import name_places
from eagle3_jax.diagnose.findings import as_json
from eagle3_jax.diagnose.readings import Option
from eagle3_jax.diagnose.sampling import chance
from eagle3_jax.diagnose.slots import Slots, examine_slots
from eagle3_jax.diagnose.verdict import Verdict, judge, judge_guess
from eagle3_jax.diagnose.weights import examine_vocabulary, examine_weights
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead
from eagle3_jax.layers import apply
from eagle3_jax.structs import Document
from eagle3_jax.target import Target

_DOCUMENTS = 64  # of a shard set; as many of each file as make that


def diagnose(inputs: Inputs, wanted: Wanted, *, quiet: bool) -> dict[str, Any]:
    """Everything that can be told of a draft on its shards.

    Args:
        inputs: from `load`, without a teacher.
        wanted: the user's say.
        quiet: show no progress.

    Raises:
        InputError: when no document is good, or what the user names does not fit.
    """
    documents, bad = _documents(inputs)
    serving = [] if wanted.serving is None else compare_dumps(documents, wanted.serving)
    capture, doubt = _capture(inputs, wanted)
    guessed = bool(doubt)
    slots = _examine(inputs, documents, wanted)
    info, stored = inputs.shards.info, documents[0].states.shape[1]
    names = name_places(
        inputs.draft.config,
        stored,
        info.boundaries or (),
        post_norm=info.last_state == "post_norm",
    )
    draft = open_draft(inputs.draft_path, wanted.reading)
    served = _served(inputs, draft, wanted)
    products = jax.default_matmul_precision("highest")
    if stored < max(inputs.draft.config.num_aux, 1):
        tried, verdict = None, _too_few(inputs, stored)
    else:
        with products:
            tried = search_shards(inputs, wanted, documents, capture, names, served, quiet=quiet)
            verdict = judge(
                tried.found,
                chance=chance(documents),
                suspicion=slots.suspicion,
                trained=wanted.trained_accuracy,
            )
        if guessed:
            told = ", ".join(names[slot] for slot in capture.slots)
            verdict = judge_guess(
                verdict, Option("states", told, lambda case: case, slots=capture.slots)
            )
    with products:
        engines = [score_engine(inputs, one, tried, names) for one in served]
    if not guessed and capture.boundaries is None and inputs.draft.boundaries is not None:
        doubt = (
            f"capture: the shards do not say which boundaries they store, so that the config's, "
            f"{list(inputs.draft.boundaries)}, are not tested",
        )
    notes = (*doubt, *_engine_notes(inputs, served, wanted), *inputs.draft.notes)
    return {
        "draft": str(inputs.draft_path),
        "shards": [str(file.path) for file in inputs.shards.files],
        "layout": inputs.shards.files[0].layout,
        "documents": len(documents),
        "bad": bad,
        "chance": chance(documents),
        "configured": {
            "slots": list(capture.slots),
            "boundaries": None if capture.boundaries is None else list(capture.boundaries),
            "source": capture.source,
        },
        "verdict": verdict_json(verdict),
        "correction": correction_json(inputs, draft, verdict),
        "readings": [] if tried is None else readings_json(tried.found),
        "compared": 0 if tried is None else tried.found.compared,
        "weights": as_json(
            [
                *examine_weights(inputs.draft.config, inputs.params),
                *examine_vocabulary(inputs.draft.vocab.target_ids, documents),
            ]
        ),
        "slots": as_json(slots),
        "engines": engines,
        "serving": serving,
        "notes": list(notes),
    }


def _documents(inputs: Inputs) -> tuple[list[Document], list[str]]:
    """Good documents, as many of each file as make up the sample."""
    files = inputs.shards.files
    share = max(-(-_DOCUMENTS // len(files)), 1)
    tally = tally_of(inputs)
    found: list[Document] = []
    for file in files[:_DOCUMENTS]:
        alone = inputs._replace(shards=inputs.shards._replace(files=(file,)))
        found += islice(good_documents(alone, tally, strict=False), share)
    if not found:
        raise InputError(
            f"{files[0].path}: no document is good: {'; '.join(tally.bad[:3]) or 'found none'}"
        )
    return found, list(tally.bad)


def _capture(inputs: Inputs, wanted: Wanted) -> tuple[Capture, tuple[str, ...]]:
    """The states that the config names; the first ones, and a note, where that cannot be."""
    try:
        return choose_capture(inputs.draft, inputs.shards, wanted.slots), ()
    except InputError as error:
        if wanted.slots is not None:
            raise
        count = max(inputs.draft.config.num_aux, 1)
        first = tuple(range(count))
        stored = inputs.shards.info.residual
        named = None if stored is None or len(stored) < count else tuple(stored[:count])
        return Capture(first, named, "nobody: the first stored ones"), (f"capture: {error}",)


def _examine(inputs: Inputs, documents: list[Document], wanted: Wanted) -> Slots:
    tables = {}
    if inputs.draft.embeddings is not None:
        tables["the draft's embed_tokens"] = inputs.draft.embeddings
    head = None
    target = wanted.target
    if target is not None:
        tables["the target's embed_tokens"] = target.embeddings.read()
        kernel = jnp.asarray(target.head.read(), jnp.float32).T
        norm = jnp.asarray(target.norm.read(), jnp.float32)
        head = TargetHead(kernel, norm, target.rms_norm_eps)
    boundaries_of = _runner(target) if wanted.recompute and target is not None else None
    stated = inputs.shards.info.residual or ()
    return examine_slots(
        documents,
        tables=tables,
        head=head,
        boundaries_of=boundaries_of,
        stated=stated,
    )


def _runner(target: OpenTarget) -> Any:
    loaded = load_target(target.directory)
    config = loaded.config
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), loaded.params)
    wanted = tuple(range(config.num_layers + 1))

    @jax.jit
    def run(ids: jax.Array) -> jax.Array:
        return apply(Target(config), params, ids[None], wanted).states[0]

    return lambda ids: np.asarray(run(jnp.asarray(ids)))


def _served(inputs: Inputs, draft: OpenDraft, wanted: Wanted) -> list[Served]:
    """How engines would read the draft; nothing where the target's depth is unknown."""
    layers = wanted.target_layers or _depth(inputs)
    if layers is None:
        return []
    return served_by_all(inputs.draft_path, draft, layers, wanted.target_class, wanted.target)


def _depth(inputs: Inputs) -> int | None:
    """L, as shards that hold the last state say it."""
    info = inputs.shards.info
    known = info.boundaries is not None and info.last_state in ("pre_norm", "post_norm")
    return info.boundaries[-1] if known and info.boundaries is not None else None


def _engine_notes(inputs: Inputs, served: list[Served], wanted: Wanted) -> tuple[str, ...]:
    if native(inputs.draft_path):
        return ("engines: none reads this project's own form (eagle3-jax convert writes theirs)",)
    if not served:
        return (
            "engines: how servers would read the draft depends on the target's depth, which is "
            "unknown (--target or --target-layers says it)",
        )
    if wanted.target_class is None and wanted.target is None:
        return (f"engines: the target is taken for a {ASSUMED} (--target-class says what it is)",)
    return ()


def _too_few(inputs: Inputs, stored: int) -> Verdict:
    told = (
        f"{inputs.shards.files[0].path} stores {stored} states, expected "
        f"{inputs.draft.config.num_aux}, which the draft's fc reads: no reading can be tried"
    )
    return Verdict("cannot tell", told)

"""What `diagnose` does: states, readings, engines and dumps, put together as one JSON value."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from converters.corrections import corrections
from converters.drafts import OpenDraft, Reading
from converters.engines import Served
from converters.targets import OpenTarget, load_target
from eagle3_jax.cli.documents import good_documents, tally_of
from eagle3_jax.cli.drafts import open_any
from eagle3_jax.cli.engines import ASSUMED, engine_row, served_by_all
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.cli.progress import progress
from eagle3_jax.cli.scoring import Capture, capture_of
from eagle3_jax.cli.serving_dumps import compare_dumps
from eagle3_jax.diagnose.cases import Case, Setting, score
from eagle3_jax.diagnose.findings import as_json
from eagle3_jax.diagnose.readings import (
    Known,
    Option,
    axes_of,
    configured,
    ropes_of,
)
from eagle3_jax.diagnose.readings import Reading as Wired
from eagle3_jax.diagnose.sampling import chance, sample
from eagle3_jax.diagnose.search import Data, Found, search
from eagle3_jax.diagnose.served import served_case
from eagle3_jax.diagnose.slots import Slots, examine_slots
from eagle3_jax.diagnose.verdict import Verdict, judge, told_reading
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead
from eagle3_jax.layers import apply
from eagle3_jax.structs import Document
from eagle3_jax.target import Target

_DOCUMENTS = 64  # of a shard set; as many of each file as make that


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


class _Search(NamedTuple):
    """A search and what it was made of."""

    setting: Setting
    case: Case
    data: Data
    found: Found


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
    slots = _examine(inputs, documents, wanted)
    names = _places(inputs, documents)
    draft = open_any(inputs.draft_path, wanted.reading)
    served = _served(inputs, draft, wanted)
    products = jax.default_matmul_precision("highest")
    if len(names) < max(inputs.draft.config.num_aux, 1):
        tried, verdict = None, _too_few(inputs, names)
    else:
        with products:
            tried = _search(inputs, wanted, documents, capture, names, served, quiet=quiet)
            verdict = judge(
                tried.found,
                chance=chance(documents),
                suspicion=slots.suspicion,
                trained=wanted.trained_accuracy,
            )
    with products:
        engines = [_engine(inputs, one, tried, names) for one in served]
    notes = (*doubt, *_engine_notes(served, wanted), *inputs.draft.notes)
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
        "verdict": _verdict(verdict),
        "correction": _correction(inputs, draft, verdict),
        "readings": [] if tried is None else _readings(tried),
        "compared": 0 if tried is None else tried.found.compared,
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
        return capture_of(inputs, wanted.slots), ()
    except InputError as error:
        if wanted.slots is not None:
            raise
        count = max(inputs.draft.config.num_aux, 1)
        first = tuple(range(count))
        stored = inputs.shards.info.boundaries
        named = None if stored is None else tuple(stored[:count])
        return Capture(first, named, "nobody: the first stored ones"), (f"capture: {error}",)


def _places(inputs: Inputs, documents: list[Document]) -> tuple[str, ...]:
    """What to call each stored state; the embedding last, where it is as wide."""
    stored = inputs.shards.info.boundaries
    count = documents[0].states.shape[1]
    last = " (final norm applied)" if inputs.shards.info.last_state == "post_norm" else ""
    names = [
        f"slot {slot}" + ("" if stored is None else f" = boundary {stored[slot]}")
        for slot in range(count)
    ]
    names[-1] += last
    config = inputs.draft.config
    embedding = ("the embedding",) if config.hidden_size == config.target_hidden_size else ()
    return (*names, *embedding)


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
    info = inputs.shards.info
    stated = info.boundaries or ()
    return examine_slots(
        documents,
        tables=tables,
        head=head,
        boundaries_of=boundaries_of,
        stated=stated[:-1] if info.last_state == "post_norm" else stated,
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


def _engine_notes(served: list[Served], wanted: Wanted) -> tuple[str, ...]:
    if not served:
        return (
            "engines: how servers would read the draft depends on the target's depth, which is "
            "unknown (--target or --target-layers says it)",
        )
    if wanted.target_class is None and wanted.target is None:
        return (f"engines: the target is taken for a {ASSUMED} (--target-class says what it is)",)
    return ()


def _search(
    inputs: Inputs,
    wanted: Wanted,
    documents: list[Document],
    capture: Capture,
    names: tuple[str, ...],
    served: list[Served],
    *,
    quiet: bool,
) -> _Search:
    config, target = inputs.draft.config, wanted.target
    known = Known()
    if target is not None:
        own = inputs.draft.embeddings is not None
        known = Known(
            jnp.asarray(target.embeddings.read()) if own else None,
            jnp.asarray(target.head.read(), jnp.float32).T,
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
    return _Search(setting, case, data, found)


def _too_few(inputs: Inputs, names: tuple[str, ...]) -> Verdict:
    told = (
        f"{inputs.shards.files[0].path} stores {len(names)} states, expected "
        f"{inputs.draft.config.num_aux}, which the draft's fc reads: no reading can be tried"
    )
    return Verdict("cannot tell", told)


def _engine(
    inputs: Inputs, one: Served, tried: _Search | None, names: tuple[str, ...]
) -> dict[str, Any]:
    """One row of the engines' table."""
    accepted, why = None, one.refused or ""
    if tried is not None and one.config is not None and one.refused is None:
        case = _as_served(inputs, one, tried, names)
        if isinstance(case, str):
            why = case
        else:
            accepted = score(tried.setting, case, tried.data.fresh or tried.data.second).accepted()
    length = None if accepted is None else accepted + 1.0
    return {**engine_row(one), "tokens_per_round": length, "not_scored": why or None}


def _as_served(inputs: Inputs, one: Served, tried: _Search, names: tuple[str, ...]) -> Case | str:
    assert one.config is not None, "only what a DraftConfig says is scored"
    places = _by_boundary(inputs, tried, names)
    missing = [b for b in one.boundaries if b not in places]
    if missing:
        return f"the shards store no boundary {', '.join(map(str, missing))}"
    if one.head != inputs.draft.config.head:
        return f"its head is another one: {one.head}"
    ids = one.vocab if isinstance(one.vocab, np.ndarray) else one.vocab.target_ids
    own = inputs.draft.embeddings is not None
    if own and one.embeddings == "target":
        return "it reads the target's token embeddings"
    return served_case(
        tried.setting,
        tried.case,
        one.config,
        slots=tuple(places[b] for b in one.boundaries),
        target_ids=ids,
        unused=frozenset(one.dropped) | frozenset(one.missing),
        table=tried.case.table,
        kernel=tried.case.kernel,
    )


def _by_boundary(inputs: Inputs, tried: _Search, names: tuple[str, ...]) -> dict[int, int]:
    """The place of each boundary that the shards store, and of the embedding."""
    info, draft = inputs.shards.info, inputs.draft
    if info.boundaries is not None:
        stored = info.boundaries[:-1] if info.last_state == "post_norm" else info.boundaries
        found = {boundary: slot for slot, boundary in enumerate(stored)}
    else:
        slots = np.asarray(tried.case.slots).tolist()
        found = dict(zip(draft.boundaries or (), slots, strict=False))
    if names[-1] == "the embedding":
        found.setdefault(0, len(names) - 1)
    return found


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "told": verdict.told,
        "reading": _options(verdict.reading),
        "ties": [_options(reading) for reading in verdict.ties],
        "difference": verdict.difference,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "undecided": {axis: list(labels) for axis, labels in verdict.undecided.items()},
    }


def _options(reading: Wired) -> list[dict[str, str]]:
    return [{"axis": option.axis, "choice": option.label} for option in reading]


def _correction(inputs: Inputs, draft: OpenDraft, verdict: Verdict) -> dict[str, Any] | None:
    """What to change where, for a reading that is not the configured one."""
    if not verdict.reading or verdict.kind == "cannot tell":
        return None
    knobs: dict[str, Any] = {}
    boundaries, elsewhere = draft.boundaries, []
    for option in verdict.reading:
        knobs |= option.knobs
        named = _boundaries_of(inputs, option)
        if named is not None:
            boundaries = named
        elif not option.knobs:
            elsewhere.append(str(option))
    corrected = replace(inputs.draft.config, **knobs)
    return {
        "boundaries": None if boundaries is None else list(boundaries),
        "configs": [
            {
                "framework": one.dialect,
                "keys": [{"key": key, "now": now, "right": right} for key, now, right in one.keys],
                "refused": one.refused,
            }
            for one in corrections(draft, corrected, boundaries)
        ],
        "outside_the_config": elsewhere,
    }


def _boundaries_of(inputs: Inputs, option: Option) -> tuple[int, ...] | None:
    stored = inputs.shards.info.boundaries
    if option.slots is None or stored is None:
        return None
    known = (*stored, 0)  # the embedding is boundary 0
    return tuple(known[slot] for slot in option.slots)


def _readings(tried: _Search) -> list[dict[str, Any]]:
    """The finalists, best first."""
    ranked = sorted(tried.found.finalists, key=lambda one: -one.scores.accepted())
    rows = []
    for one in ranked:
        total = np.maximum(one.scores.total.sum(0), 1)
        rows.append(
            {
                "reading": told_reading(one.reading),
                "changes": _options(one.reading),
                "accepted_per_round": one.scores.accepted(),
                "tokens_per_round": one.scores.accepted() + 1.0,
                "joint": (one.scores.joint.sum(0) / total).tolist(),
                "documents": int((one.scores.total[:, 0] > 0).sum()),
            }
        )
    return rows

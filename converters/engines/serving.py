"""How engines would serve one draft beside one target: what the table of a diagnosis shows."""

from pathlib import Path

import numpy as np

from converters.drafts import OpenDraft, in_memory
from converters.engines.base import Engine, Served
from converters.engines.capturing import Capture, read_capture
from converters.engines.computing import Computed, compute, unused
from converters.engines.loading import fill, sort_names
from converters.engines.telling import fitting, tell_differences, tell_wanted_ids
from converters.engines.views import view_config
from converters.stored import open_checkpoint
from eagle3_jax.vocab import VocabMap


def serve(
    directory: Path,
    draft: OpenDraft,
    engine: Engine,
    *,
    target_layers: int,
    target_class: str,
    target_hidden_size: int | None = None,
) -> Served:
    """A draft as an engine would serve it, as far as config and headers tell.

    Args:
        directory: holds the draft's config.json and weights, as the engine would find them.
        draft: the same, in the reading that it was trained in: what the others are held against.
        engine: who serves it.
        target_layers: L of the target.
        target_class: `model_type` of the target's config.
        target_hidden_size: the target's width, where it is known.

    Raises:
        InputError: when directory or config cannot be read, or a key that the engine reads is of
            another type than anybody writes.
    """
    view = view_config(directory, engine)
    capture = read_capture(view, engine, target_layers, target_class)
    stored = open_checkpoint(directory).tensors.values()
    names = sort_names((tensor.name for tensor in stored), engine, view.kind)
    last_state_only = not capture.boundaries and capture.refused is None
    computed = compute(view, engine, draft, frozenset(names.read), last_state_only=last_state_only)
    loaded = fill(names, computed.config, engine, computed.extra, unused(engine, computed))
    target_ids, failed = _target_ids(draft, engine, computed, mapped="d2t" in names.read)
    refused = [
        *view.refused,
        *loaded.refused,
        *computed.refused,
        *failed,
        *_unmatched(capture, computed, draft, target_hidden_size),
    ]
    rules = fitting(engine.rules, draft, engine, directory, target_class)
    return Served(
        engine.name,
        engine.version,
        capture.boundaries,
        capture.told,
        computed.config if computed.exact else None,
        loaded.dropped,
        loaded.missing,
        _as_map(target_ids, draft.config.vocab_size),
        computed.embeddings,
        computed.config.head,
        "; ".join(refused) or None,
        fitting(engine.launch, draft, engine, directory, target_class),
        rules + tell_wanted_ids(draft, engine, capture, target_class, target_layers),
        tell_differences(draft, engine, capture, computed, loaded, target_ids),
    )


def _target_ids(
    draft: OpenDraft, engine: Engine, computed: Computed, *, mapped: bool
) -> tuple[np.ndarray, list[str]]:
    """`[W]` the ids that d2t means where it is read as offsets, and what the engine refuses."""
    size, whole = draft.config.draft_vocab_size, draft.config.vocab_size
    rows = np.arange(size, dtype=np.int64)
    stored = draft.maps.get("d2t") if mapped else None
    if stored is None:
        if engine.checks_map and size < whole:
            return rows, [f"a head of {size} rows needs a d2t"]
        return rows, []
    if size == whole and engine.whole_map == "deleted":
        return rows, []
    if size == whole and engine.whole_map == "refused":
        return rows, ["d2t has no parameter where the draft vocabulary is the target's"]
    offsets = in_memory(stored).astype(np.int64)
    if len(offsets) != size:
        return rows, [f"d2t has {len(offsets)} entries, its head {size} rows"]
    ids = offsets + rows
    strange = (ids < 0) | (ids >= whole)
    if engine.checks_map and (strange.any() or len(np.unique(ids)) != size):
        return ids, ["d2t means ids that repeat or lie outside the vocabulary"]
    return ids, []


def _as_map(target_ids: np.ndarray, vocab_size: int) -> VocabMap | np.ndarray:
    """A `VocabMap` where the ids can be one."""
    try:
        return VocabMap.from_ids(target_ids, vocab_size)
    except ValueError:
        return target_ids


def _unmatched(
    capture: Capture, computed: Computed, draft: OpenDraft, target_width: int | None
) -> list[str]:
    """Why the states that are captured are not what `fc` reads."""
    refused = [capture.refused] if capture.refused else []
    found, expected = len(capture.boundaries), computed.config.num_aux
    if found != expected:
        refused.append(f"it captures {found} states, its fc reads {expected}")
    width = draft.config.target_hidden_size
    if target_width not in (None, width):
        refused.append(f"the target's states are {target_width} wide, the draft reads {width}")
    return refused

"""What an engine does otherwise than the trained reading, and what fits or bites, in words."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from converters.description import values_of
from converters.drafts import OpenDraft
from converters.engines.base import Engine, Option
from converters.engines.capturing import Capture, wanted_ids
from converters.engines.computing import Computed
from converters.engines.loading import Loaded
from converters.features import FEATURES, grouped, scaling_name
from converters.listing import listed
from converters.names import EMBEDDING
from eagle3_jax.capture import to_ids

_LISTED = 3
_PLACES = {"top": "at the top of config.json", "eagle_config": "in eagle_config"}
# Without the longest context nobody can say whether a LongRoPE factor is the usual one.
_NEEDS_CONTEXT = "longrope_factor"


def tell_differences(
    draft: OpenDraft,
    engine: Engine,
    capture: Capture,
    computed: Computed,
    loaded: Loaded,
    target_ids: np.ndarray,
) -> tuple[str, ...]:
    """What is otherwise than in the trained reading: capture, knobs, tensors, words, table."""
    told: list[str] = []
    if draft.boundaries is not None and capture.boundaries != draft.boundaries:
        told.append(
            f"capture: boundaries {list(capture.boundaries)}, trained on {list(draft.boundaries)}"
        )
    lacking = _lacking(draft, engine)
    told += [f"{FEATURES[name].told}: {engine.dialect.lacks[name]}" for name in lacking]
    here, trained = values_of(computed.config), values_of(draft.config)
    told += [
        f"{name} is {_word(here.get(name))} here, {_word(trained.get(name))} as trained"
        for name in {**trained, **here}
        if here.get(name) != trained.get(name) and name not in lacking
    ]
    told += computed.told
    told += _tell_tensors(draft, computed, loaded)
    trained_ids = draft.vocab.target_ids
    if not np.array_equal(target_ids, trained_ids):
        same = (
            int(np.sum(target_ids == trained_ids)) if target_ids.shape == trained_ids.shape else 0
        )
        what = f"{same} of {len(trained_ids)} draft ids mean the same token"
        size = draft.config.vocab_size
        strange = int(np.sum((target_ids < 0) | (target_ids >= size)))
        what += f", {strange} none of the {size}" if strange else ""
        told.append(f"vocabulary: {what}")
    return tuple(told)


def fitting(
    options: Sequence[Option],
    draft: OpenDraft,
    engine: Engine,
    directory: Path,
    target_class: str,
) -> tuple[str, ...]:
    """Options and rules that apply to a draft, filled in."""
    attention = grouped(draft.config)
    window = None if attention is None else attention.sliding_window
    ids = None if draft.boundaries is None else to_ids(draft.boundaries, "output")
    holds = {
        "always": True,
        "window": window is not None,
        "pruned": draft.config.draft_vocab_size < draft.config.vocab_size,
        "captured": ids is not None,
        "other_class": target_class not in engine.classes,
    }
    return tuple(
        option.told.format(draft=directory, window=window, ids=ids)
        for option in options
        if holds[option.when]
    )


def tell_wanted_ids(
    draft: OpenDraft, engine: Engine, capture: Capture, target_class: str, target_layers: int
) -> tuple[str, ...]:
    """How this engine would be told the capture that the draft was trained on, if it is another."""
    trained = draft.boundaries
    if trained is None or capture.boundaries == trained or not engine.places:
        return ()
    ids = wanted_ids(engine, target_class, trained, target_layers)
    if ids is None:
        return (f"no layer ids make it capture boundaries {list(trained)} of this target",)
    place = _PLACES[engine.places[0]]
    return (f"layer ids {ids} {place} would make it capture {list(trained)}",)


def _lacking(draft: OpenDraft, engine: Engine) -> list[str]:
    """Features of the draft that the engine has no place for."""
    longest = draft.max_positions
    return [
        name
        for name in engine.dialect.lacks
        if (longest is not None or name != _NEEDS_CONTEXT)
        and FEATURES[name].holds(draft.config, longest or 0)
        and not (name == scaling_name(draft.config.rope) and engine.rope == "gguf")
    ]


def _tell_tensors(draft: OpenDraft, computed: Computed, loaded: Loaded) -> list[str]:
    told = []
    if loaded.missing:
        told.append(f"tensors at their initial values: {listed(loaded.missing, _LISTED)}")
    used = {name: why for name, why in loaded.dropped.items() if name in draft.tensors}
    if used:
        names = listed(sorted(used), _LISTED)
        told.append(
            f"tensors never used: {names} ({next(iter(dict(sorted(used.items())).values()))})"
        )
    if draft.embeddings is not None and computed.embeddings == "target":
        told.append("token embeddings: the target's, not the draft's own")
    if draft.embeddings is None and computed.embeddings == "own" and EMBEDDING in loaded.missing:
        told.append("token embeddings: the draft's own, which the file does not hold")
    return told


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "none"}[value]
    return str(value)

"""A verdict, its correction and the readings behind it, as JSON."""

from dataclasses import replace
from typing import Any

import numpy as np

from converters.corrections import corrections
from converters.drafts import OpenDraft
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.diagnose.readings import Option, Reading
from eagle3_jax.diagnose.search import Found
from eagle3_jax.diagnose.verdict import Verdict, told_reading


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """What is wrong, if anything, and on what it rests."""
    return {
        "kind": verdict.kind,
        "told": verdict.told,
        "reading": _options(verdict.reading),
        "ties": [_options(reading) for reading in verdict.ties],
        "difference": verdict.difference,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "undecided": {axis: list(labels) for axis, labels in verdict.undecided.items()},
    }


def _options(reading: Reading) -> list[dict[str, str]]:
    return [{"axis": option.axis, "choice": option.label} for option in reading]


def correction_json(inputs: Inputs, draft: OpenDraft, verdict: Verdict) -> dict[str, Any] | None:
    """What to change where, for a reading that is not the configured one; of ties the first."""
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
    """The capture that an option of the states is, where a config can ask for it."""
    info = inputs.shards.info
    if option.slots is None or info.residual is None or info.boundaries is None:
        return None
    known = dict(enumerate(info.residual))
    known[len(info.boundaries)] = 0  # the embedding, which stands after the last slot
    if not set(option.slots) <= set(known):
        return None
    return tuple(known[slot] for slot in option.slots)


def readings_json(found: Found) -> list[dict[str, Any]]:
    """The finalists, best first."""
    ranked = sorted(found.finalists, key=lambda one: -one.scores.accepted())
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

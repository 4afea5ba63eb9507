"""The layer ids of a config <-> boundaries."""

import contextlib
from typing import Any

from converters.config_keys import IDS, NESTED, Keys
from converters.dialects.base import Dialect
from converters.ledger import Ledger
from eagle3_jax.capture import Numbering, default_boundaries, from_ids, to_ids
from eagle3_jax.errors import InputError


def stated_ids(keys: Keys, numbering: Numbering) -> tuple[list[int], str] | None:
    """The layer ids that a config states, and where.

    Args:
        keys: the config.
        numbering: of the framework whose ids are wanted, where the config has two kinds.

    Raises:
        InputError: when they are no list of integers, or stand in two places that differ.
    """
    found: dict[str, list[int]] = {}
    for place, holder, key in (
        (IDS, keys.values, IDS),
        (f"{NESTED}.{IDS}", keys.nested, IDS),
        (f"{NESTED}.layer_ids", keys.nested, "layer_ids"),
    ):
        ids = holder.get(key)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(layer_id) is int for layer_id in ids):
            raise InputError(f"{keys.where}: {place} is {ids!r}, expected a list of integers")
        found[place] = ids
    top, nested = found.get(IDS), found.get(f"{NESTED}.{IDS}")
    if top is not None and top == [layer_id + 1 for layer_id in nested or ()]:
        # The same capture, for vLLM at the top and for SGLang in `eagle_config`.
        found.pop(IDS if numbering == "output" else f"{NESTED}.{IDS}")
    if len({tuple(ids) for ids in found.values()}) > 1:
        told = " and ".join(f"{place} {ids}" for place, ids in found.items())
        raise InputError(f"{keys.where}: {told} differ, expected one (--boundaries decides)")
    return next(((ids, place) for place, ids in found.items()), None)


def read_boundaries(
    keys: Keys,
    dialect: Dialect,
    ledger: Ledger,
    given: tuple[int, ...] | None,
    marked: str | None,
    target_layers: int | None,
) -> tuple[int, ...] | None:
    """The capture of a draft; `None` where nobody says.

    Args:
        keys: the config.
        dialect: decides how ids are numbered and what is captured without any.
        ledger: takes the source, and a note where the capture is unknown or assumed.
        given: what the user says.
        marked: boundaries that this project wrote beside the tensors, separated by commas.
        target_layers: L, where it is known.

    Raises:
        InputError: for ids that are no list, contradict each other or are out of range.
        ValueError: when the target is too shallow for the default capture.
    """
    if given is not None:
        require_boundaries(given, target_layers)
        return ledger.settle("boundaries", given, "--boundaries")
    stated = stated_ids(keys, dialect.numbering)
    if stated is not None:
        ids, place = stated
        try:
            boundaries = from_ids(ids, dialect.numbering, target_layers)
        except ValueError as error:
            raise InputError(f"{keys.where}: {place} is {ids}: {error}") from None
        source = f"config {place} {ids}, numbered by {dialect.numbering}"
        _suspect(ids, dialect, target_layers, ledger)
        return ledger.settle("boundaries", boundaries, source)
    if marked is not None:
        boundaries = _parsed(marked, keys.where)
        require_boundaries(boundaries, target_layers)
        return ledger.settle("boundaries", boundaries, "the weights' metadata")
    if target_layers is not None and dialect.default_capture:
        boundaries = default_boundaries(target_layers)
        ledger.notes.append(
            f"no layer ids: assumed are boundaries {list(boundaries)}, what {dialect.title} takes "
            f"of a target of {target_layers} layers"
        )
        source = f"{dialect.name}'s default for {target_layers} target layers"
        return ledger.settle("boundaries", boundaries, source)
    ledger.notes.append(
        "no layer ids: which target states feed the draft is unknown (--boundaries says it, "
        "--target-layers gives the default)"
    )
    return ledger.settle("boundaries", None, "nowhere")


def _parsed(text: str, where: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise InputError(
            f"{where}: the weights' metadata states boundaries {text!r}, expected 2,4,5"
        )
    return tuple(map(int, parts))


def require_boundaries(boundaries: tuple[int, ...], target_layers: int | None) -> None:
    """Refuse boundaries that no target of that depth has.

    Raises:
        InputError: when one is out of range, or they do not ascend.
    """
    try:
        from_ids(list(boundaries), "boundary", target_layers)
    except ValueError as error:
        raise InputError(f"boundaries {list(boundaries)}: {error}") from None


def write_ids(boundaries: tuple[int, ...] | None, dialect: Dialect) -> dict[str, Any]:
    """The keys, at the top or for `eagle_config`, that state a capture; none where unknown."""
    if boundaries is None or dialect.ids is None:
        return {}
    return {IDS: to_ids(boundaries, dialect.numbering)}


def _suspect(ids: list[int], dialect: Dialect, target_layers: int | None, ledger: Ledger) -> None:
    """A note where the ids are the usual ones in the other numbering."""
    other: Numbering = "output" if dialect.numbering == "boundary" else "boundary"
    first = to_ids((2,), other)[0]
    usual = None
    if target_layers is not None:
        with contextlib.suppress(ValueError):  # a shallow target has no usual ones
            usual = to_ids(default_boundaries(target_layers), other)
    if ids == usual or (target_layers is None and ids[:1] == [first]):
        offset = 1 if other == "output" else 0
        meant = ",".join(str(layer_id + offset) for layer_id in ids)
        ledger.notes.append(
            f"layer ids {ids} are numbered by {dialect.numbering} in {dialect.title}; they look "
            f"like the usual ones numbered by {other}: --boundaries {meant} reads them so"
        )

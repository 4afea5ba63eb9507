"""Which states of a target an engine feeds a draft, and why these.

    config ids --place--> ids --class of the target--> boundaries --depth--> those that exist

An engine tests each layer for membership: order does not matter, duplicates collapse, and a
boundary that the target has not is silently never met.
"""

from typing import NamedTuple

from converters.config_keys import IDS, NESTED
from converters.engines.base import ClassRule, Engine, IdPlace
from converters.engines.views import View
from eagle3_jax.capture import to_ids
from eagle3_jax.errors import InputError

_USUAL = "2, L//2, L-3"
_KEYS = {
    "top": IDS,
    "eagle_config": f"{NESTED}.{IDS}",
    "eagle_config.layer_ids": f"{NESTED}.layer_ids",
}


class Capture(NamedTuple):
    """What an engine captures.

    Attributes:
        boundaries: ascending, each once; empty for the last state alone.
        told: why, in words.
        refused: why that fails, `None` where it does not.
    """

    boundaries: tuple[int, ...]
    told: str
    refused: str | None = None


def read_capture(view: View, engine: Engine, target_layers: int, target_class: str) -> Capture:
    """The capture of an engine for one draft and target.

    Args:
        view: the config as the engine sees it.
        engine: whose places and rules hold.
        target_layers: L.
        target_class: `model_type` of the target.

    Raises:
        InputError: when ids that the engine reads are no list of integers.
    """
    if engine.reads_last_state_only and view.nested.get("use_aux_hidden_state") is False:
        return Capture((), "eagle_config.use_aux_hidden_state is false: the last state alone")
    rule = class_rule(engine, target_class)
    found = stated_at(view, engine.places)
    if found is None:
        return _default(view, engine, rule, target_layers, target_class)
    place, ids = found
    offset, meant = _meaning(rule, ids, target_layers)
    told = f"{place} ids {ids} read as {meant}{_of_class(engine, rule, target_class)}"
    if offset and -1 in ids:
        told += "; id -1 is the embedding"
    return _reachable([number + offset for number in ids], told, rule, target_layers)


def class_rule(engine: Engine, target_class: str) -> ClassRule:
    """The rule of a class of targets."""
    return engine.classes.get(target_class, engine.general)


def stated_at(view: View, places: tuple[IdPlace, ...]) -> tuple[str, list[int]] | None:
    """The first of some places with layer ids, and the ids.

    Raises:
        InputError: when they are no list of integers.
    """
    for place in places:
        ids = view.stated(_KEYS[place])
        if not ids:
            continue
        if not isinstance(ids, list) or not all(type(number) is int for number in ids):
            raise InputError(
                f"{view.where}: {_KEYS[place]} is {ids!r}, expected a list of integers"
            )
        return place, ids
    return None


def wanted_ids(
    engine: Engine, target_class: str, boundaries: tuple[int, ...], target_layers: int
) -> list[int] | None:
    """The ids that make an engine capture some boundaries; `None` where none do."""
    rule = class_rule(engine, target_class)
    for numbering in ("output", "boundary") if rule.numbered != "boundary" else ("boundary",):
        ids = to_ids(boundaries, "output" if numbering == "output" else "boundary")
        offset, _ = _meaning(rule, ids, target_layers)
        read = _reachable([number + offset for number in ids], "", rule, target_layers)
        if read.boundaries == boundaries:
            return ids
    return None


def _default(
    view: View, engine: Engine, rule: ClassRule, target_layers: int, target_class: str
) -> Capture:
    usual = [2, target_layers // 2, target_layers - 3]
    others: tuple[IdPlace, ...] = ("top", "eagle_config", "eagle_config.layer_ids")
    unread = stated_at(view, others)
    why = (
        "no layer ids" if unread is None else f"config ignored: {unread[0]} ids {unread[1]} unread"
    )
    told = f"{why}: default {_USUAL}"
    if rule.default_offset:
        told += f", each {rule.default_offset} later{_of_class(engine, rule, target_class)}"
    if target_layers < engine.least_layers:
        failed = f"its default needs a target of {engine.least_layers} layers or more"
        return Capture((), told, f"{failed}, found {target_layers}")
    return _reachable([b + rule.default_offset for b in usual], told, rule, target_layers)


def _meaning(rule: ClassRule, ids: list[int], target_layers: int) -> tuple[int, str]:
    """What is added to ids, and what they are."""
    match rule.numbered:
        case "boundary":
            return 0, "boundaries"
        case "output":
            return 1, "outputs"
        case "output if ids[0] is 1":
            if ids[0] == 1:
                return 1, "outputs, since ids[0] is 1"
            return 0, "boundaries, since ids[0] is not 1"
        case "boundary if max(ids) is L":
            if max(ids) == target_layers:
                return 0, f"boundaries, since the largest is {target_layers}, the target's depth"
            return 1, f"outputs, since the largest is not {target_layers}, the target's depth"


def _of_class(engine: Engine, rule: ClassRule, target_class: str) -> str:
    """Whose rule that is, where an engine has several."""
    if not engine.known:
        return ""
    if target_class in engine.classes:
        return f" ({target_class}'s rule, {rule.source})"
    if target_class in engine.known:
        return ""
    return f" (class {target_class!r} is unknown here: the general rule, {rule.source})"


def _reachable(boundaries: list[int], told: str, rule: ClassRule, target_layers: int) -> Capture:
    last = target_layers if rule.captures_end else target_layers - 1
    met = tuple(sorted({b for b in boundaries if 0 <= b <= last}))
    lost = sorted(b for b in set(boundaries) if not 0 <= b <= last)
    if lost:
        what = "boundary" if len(lost) == 1 else "boundaries"
        told_lost = ", ".join(map(str, lost))
        return Capture(
            met, told, f"{what} {told_lost} never met in {target_layers} layers, 0 to {last} are"
        )
    if len(met) < len(boundaries):
        told += f"; {len(boundaries)} ids, {len(met)} different ones"
    return Capture(met, told)

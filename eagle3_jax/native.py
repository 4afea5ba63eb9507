"""What stands where in a draft as this project itself keeps it, and how its config is JSON.

    draft.json   format, config (every field by its name), boundaries, max_positions, target_name
    state/       Orbax: params, target_ids and, where the draft has its own, embeddings

The mathematics writes it (`checkpoints`), the disk reads it (`converters.native_drafts`).
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

CONFIG, STATE = "draft.json", "state"
FORMAT = "eagle3-jax draft 1"

_WORDS = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    NoneType: "null",
}
_LISTS = {int: "a list of integers", float: "a list of finite numbers"}
Part = TypeVar("Part")


def encode(value: Any) -> Any:
    """A config as JSON: its fields by name, and which of several types a part is."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **named}
    return value


def decode_fields(given: Mapping[str, Any], part: type[Part], name: str = "") -> Part:
    """A dataclass out of JSON that says every field by its name, and nothing else.

    Args:
        given: JSON of each field.
        part: the dataclass; its annotations say what each field may be.
        name: of the part, for messages; none for the whole file.

    Raises:
        ValueError: for a field that is missing, unknown or of another type, and for a part that
            contradicts itself.
    """
    kinds, prefix = get_type_hints(part), f"{name}." if name else ""
    expected = [field.name for field in fields(part)]  # type: ignore[arg-type]
    for field in expected:
        if field not in given:
            raise ValueError(f"found no {prefix}{field}, expected {_told(_choices(kinds[field]))}")
    for field in given:
        if field not in expected:
            raise ValueError(f"{prefix}{field} is unknown, expected {', '.join(expected)}")
    return part(
        **{field: _decode(given[field], kinds[field], f"{prefix}{field}") for field in expected}
    )


def _decode(value: Any, kind: Any, name: str) -> Any:
    """A value out of what `encode` made of it, where it is of the annotated type."""
    choices = _choices(kind)
    parts: dict[str, Any] = {
        one.__name__: one for one in choices if isinstance(one, type) and is_dataclass(one)
    }
    if parts and isinstance(value, dict):
        said = value.get("type")
        if said not in list(parts):
            raise ValueError(f"{name}.type is {json.dumps(said)}, expected {' or '.join(parts)}")
        rest = {field: part for field, part in value.items() if field != "type"}
        return decode_fields(rest, parts[said], name)
    for choice in choices:
        if _fits(value, choice):
            return _converted(value, choice)
    raise ValueError(f"{name} is {json.dumps(value)}, expected {_told(choices)}")


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether JSON is of a type; an integer may stand for a float, a bool for neither."""
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(_fits(one, get_args(kind)[0]) for one in value)
    return type(value) is kind


def _converted(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return tuple(_converted(one, get_args(kind)[0]) for one in value)
    return float(value) if kind is float else value


def _told(choices: tuple[Any, ...]) -> str:
    return " or ".join(map(_word, choices))


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(json.dumps, get_args(kind)))
    if get_origin(kind) is tuple:
        return _LISTS[get_args(kind)[0]]
    return _WORDS.get(kind) or f"a part of type {kind.__name__}"

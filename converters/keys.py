"""Values of a config.json, each checked for its type; null counts as absent."""

from collections.abc import Mapping
from typing import Any

from eagle3_jax.errors import InputError


def read_flag(raw: Mapping[str, Any], key: str, where: str, *, default: bool = False) -> bool:
    """A boolean.

    Raises:
        InputError: when it is something else.
    """
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(f"{where}: {key} is {value!r}, expected true or false")
    return value


def read_integer(raw: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """A positive integer.

    Raises:
        InputError: when it is something else, or absent without a default.
    """
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{where}: {key} is {value!r}, expected a positive integer")
    return value


def read_number(
    raw: Mapping[str, Any], key: str, where: str, default: float | None = None
) -> float:
    """A number, whole or not.

    Raises:
        InputError: when it is something else, or absent without a default.
    """
    value = raw.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InputError(f"{where}: {key} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{where}: {key} is past the largest number, expected one") from None


def read_object(raw: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """An object, empty where it is absent.

    Raises:
        InputError: when it is something else.
    """
    value = raw.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} is {value!r}, expected an object or null")
    return value

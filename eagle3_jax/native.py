"""What stands where in a draft as this project itself keeps it, and how its config is JSON.

    draft.json   format, config (every field by its name), boundaries, max_positions, target_name
    state/       Orbax: params, target_ids and, where the draft has its own, embeddings

The mathematics writes it (`checkpoints`), the disk reads it (`converters.native_drafts`).
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

CONFIG, STATE = "draft.json", "state"
FORMAT = "eagle3-jax draft 1"


def encode(value: Any) -> Any:
    """A config as JSON: its fields by name, and which of several types a part is."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__, **named}
    return value


def decode(value: Any, types: Mapping[str, type]) -> Any:
    """A config out of what `encode` made of it.

    Args:
        value: JSON.
        types: the dataclasses that a config is made of, by their names.

    Raises:
        KeyError: for a part that does not say its type, or another one.
        TypeError: for a field that its type does not have.
        ValueError: for a config that contradicts itself.
    """
    if isinstance(value, dict):
        given = {name: decode(part, types) for name, part in value.items() if name != "type"}
        return types[value["type"]](**given)
    return tuple(value) if isinstance(value, list) else value

"""What a diagnosis says, how sure it is, and on what grounds."""

from typing import Any, Literal, NamedTuple

import numpy as np

Strength = Literal["proved", "measured", "suggested"]


class Finding(NamedTuple):
    """One statement.

    Attributes:
        strength: proved: an equality, or an inequality, that leaves no other explanation;
            measured: a rate or an error, on the tokens that the evidence counts; suggested: what
            fits the figures, as something else might.
        claim: the statement.
        evidence: the figures that carry it.
    """

    strength: Strength
    claim: str
    evidence: str


def as_json(value: Any) -> Any:
    """NamedTuples as objects, other tuples as lists; a number that is not finite as `None`.

    Args:
        value: NamedTuples, tuples, lists, dicts with text as keys, numbers, text, truth values and
            `None`, in each other.
    """
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_json(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(part) for part in value]
    if isinstance(value, np.generic):
        return as_json(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def share(count: int, total: int) -> str:
    """A count with its total, as claims write it: "1,204 of 1,204"."""
    return f"{count:,} of {total:,}"


def listed(numbers: tuple[int, ...]) -> str:
    """Numbers as a sentence writes them: "1, 2 and 5"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last

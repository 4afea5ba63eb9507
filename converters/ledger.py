"""Where each resolved value of a draft came from; what the user sets wins over the file."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from eagle3_jax.errors import InputError

Setting = bool | float | str | None
_T = TypeVar("_T")
_WORDS: dict[str, Setting] = {"true": True, "false": False, "none": None, "null": None}
SETTABLE = {  # what `--set` takes, and of which kind
    "norm_before_residual": "true or false",
    "norm_before_fc": "true or false",
    "fc_norm": "true or false",
    "norm_output": "true or false",
    "double_norm": "true or false",
    "final_norm": "true or false",
    "num_attention_heads": "a positive whole number",
    "rms_norm_eps": "a positive number",
    "rope_theta": "a positive number",
    "rope_scaling": "none",
    "sliding_window": "a positive whole number or none",
    "d2t": "offset or absolute",
}


@dataclass
class Ledger:
    """Values as they are settled, with their sources.

    Attributes:
        settings: what the user said, by name; wins over the file.
        sources: where each settled value came from, in words.
        notes: what was corrected, rebuilt or assumed, a sentence each.
    """

    settings: Mapping[str, Setting] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def settle(self, name: str, value: _T, source: str) -> _T:
        """Write down a value and its source, and hand it on."""
        self.sources[name] = source
        return value

    def flag(self, name: str, found: bool, source: str) -> bool:
        """A knob as the user says or, where they do not, as the file does."""
        if name not in self.settings:
            return self.settle(name, found, source)
        return self.settle(name, bool(self.settings[name]), "--set")


def parse_settings(pairs: Sequence[str]) -> dict[str, Setting]:
    """`NAME=VALUE` pairs of the command line.

    Raises:
        InputError: for an unknown name, or a value of another kind.
    """
    settings: dict[str, Setting] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in SETTABLE:
            raise InputError(
                f"--set is {pair!r}, expected NAME=VALUE with one of {', '.join(SETTABLE)}"
            )
        value = _parsed(text)
        if name in settings:
            raise InputError(f"--set {name} is given twice, expected one value")
        if not _fits(SETTABLE[name], value):
            raise InputError(f"--set {name} is {text!r}, expected {SETTABLE[name]}")
        settings[name] = value
    return settings


def _parsed(text: str) -> Setting:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return float(text)
    except ValueError:
        return text


def _fits(kind: str, value: Setting) -> bool:
    match kind:
        case "true or false":
            return isinstance(value, bool)
        case "none":
            return value is None
        case "offset or absolute":
            return value in ("offset", "absolute")
        case "a positive whole number or none" if value is None:
            return True
        case "a positive number":
            return isinstance(value, float) and 0 < value < math.inf
        case _:
            return isinstance(value, float) and value > 0 and value.is_integer()

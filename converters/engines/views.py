"""A config.json as one engine sees it: which keys reach it, and which class they lead to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from converters.config_keys import IDS, LAYER, NESTED
from converters.engines.base import Engine, Kind
from converters.files import read_json
from converters.keys import read_object

_ADAPTED = (  # what vLLM's adapter copies beside the decoder layer's keys
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    IDS,
)
_ADAPTED_CLASSES = {"llama": "Eagle3LlamaForCausalLM", "qwen3": "Eagle3Qwen3ForCausalLM"}


class View(NamedTuple):
    """What an engine reads of a config.

    Attributes:
        values: its keys at the top; null is kept, since some engines fail on it.
        nested: `eagle_config`.
        where: the file, for messages.
        architecture: the string by which the engine looks up its class; empty without one.
        kind: the class that it leads to, `None` where it leads to none.
        refused: why the engine can make nothing of this config, a statement each.
    """

    values: Mapping[str, Any]
    nested: Mapping[str, Any]
    where: str
    architecture: str
    kind: Kind | None
    refused: tuple[str, ...]

    def stated(self, key: str) -> Any:
        """A key, `eagle_config.` before it where it stands there; `None` where nobody says."""
        holder, _, name = key.rpartition(".")
        return (self.nested if holder else self.values).get(name)


def view_config(directory: Path, engine: Engine) -> View:
    """The config of a draft as an engine sees it.

    Args:
        directory: holds config.json.
        engine: who reads it.

    Raises:
        InputError: when there is no config.json, or a part of it is no object.
    """
    path = directory / "config.json"
    raw = read_json(path)
    layer = read_object(raw, LAYER, str(path))
    top = {key: value for key, value in raw.items() if key != LAYER}
    refused: list[str] = []
    architecture = _architecture(raw, engine)
    if not layer:
        values = top
        if engine.nested == "needed":
            refused.append(f"config has no {LAYER}, in which it keeps the decoder layer")
    elif engine.nested == "adapted":
        copied = {key: raw[key] for key in _ADAPTED if raw.get(key) is not None}
        values = dict(engine.adapter_defaults) | layer | copied
        architecture = _ADAPTED_CLASSES.get(str(values.get("model_type", "llama")), "")
    else:
        values = top | layer
        if engine.nested == "refused":
            refused.append(f"config keeps its decoder layer in {LAYER}, which it does not read")
    kind = _kind(architecture, values, engine)
    if kind is None:
        refused.append(f"architectures name {_named(raw)}, under which it has no draft")
    return View(
        values,
        read_object(values, NESTED, str(path)),
        str(path),
        architecture,
        kind,
        tuple(refused),
    )


def _named(raw: Mapping[str, Any]) -> str:
    named = raw.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "nothing"


def _architecture(raw: Mapping[str, Any], engine: Engine) -> str:
    """The first of `architectures` after what the engine does to it."""
    named = raw.get("architectures")
    name = str(named[0]) if isinstance(named, list) and named else ""
    if engine.renaming == "prefix" and not name.startswith("Eagle3"):
        return name if name.endswith("Eagle3") else f"Eagle3{name}"
    if engine.renaming == "suffix" and "draft_vocab_size" in raw:
        return "EAGLE3" + name.replace("Eagle3", "")
    return name


def _kind(architecture: str, values: Mapping[str, Any], engine: Engine) -> Kind | None:
    """The class that computes the draft."""
    if engine.architectures is None:
        return "llama"
    kind = engine.architectures.get(architecture)
    if kind is not None and engine.nested == "needed":  # its layers are Qwen3's unless told
        return "llama" if values.get("model_type") == "llama" else "qwen3"
    return kind

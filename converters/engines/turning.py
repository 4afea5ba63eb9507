"""The rotation that an engine comes to from a config."""

from typing import Any, NamedTuple

from converters.engines.base import Engine
from converters.engines.views import View
from converters.keys import read_number
from converters.ropes import DEFAULT_THETA, read_rope
from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
)

_EAGLE_KEYS = {"type", "factor"}
# conversion/llama.py and layers/jax/rope_interface.py, where a Llama 3 scaling lacks its length.
_LLAMA3_LENGTH = 8192


class Turning(NamedTuple):
    """A rotation.

    Attributes:
        rope: base, share and scaling.
        refused: why the engine does not take what the config states, `None` where it does.
    """

    rope: RopeConfig
    refused: str | None = None


def read_turning(view: View, engine: Engine) -> Turning:
    """The rotation of a draft on an engine.

    Args:
        view: the config as the engine sees it.
        engine: whose rule holds.

    Raises:
        InputError: when the config's rotation makes no sense to anybody.
    """
    if engine.rope == "eagle":
        return _eagle(view)
    rope = read_rope(dict(view.values), view.where)
    if not _states_theta(view):
        rope = RopeConfig(engine.default_theta, rope.partial, rope.scaling)
    if engine.rope == "plain":
        return Turning(RopeConfig(rope.theta))
    if engine.rope == "llama3" and rope.scaling is not None:
        return Turning(RopeConfig(rope.theta, 1.0, _as_llama3(_nested(view))))
    if engine.rope == "gguf" and isinstance(rope.scaling, Llama3Scaling):
        length = view.values.get("original_max_position_embeddings") or _LLAMA3_LENGTH
        old = rope.scaling
        scaling = Llama3Scaling(old.factor, old.low_freq_factor, old.high_freq_factor, int(length))
        return Turning(RopeConfig(rope.theta, rope.partial, scaling))
    return Turning(rope)


def _eagle(view: View) -> Turning:
    """`rope_theta` without a scaling; with one of its two, 10000 whatever the key says."""
    values, where = view.values, view.where
    scaling = values.get("rope_scaling")
    if scaling is None:
        return Turning(RopeConfig(read_number(values, "rope_theta", where, DEFAULT_THETA)))
    kind = scaling.get("type") if isinstance(scaling, dict) else None
    if kind not in ("linear", "dynamic") or scaling.keys() != _EAGLE_KEYS:
        rope = RopeConfig(DEFAULT_THETA)
        return Turning(
            rope,
            f"rope_scaling is {scaling}: expected exactly type, linear or dynamic, and factor "
            "(eagle/model/configs.py:126-145)",
        )
    factor = read_number(scaling, "factor", where)
    if kind == "linear":
        return Turning(RopeConfig(DEFAULT_THETA, 1.0, LinearScaling(factor)))
    longest = int(read_number(values, "max_position_embeddings", where))
    return Turning(RopeConfig(DEFAULT_THETA, 1.0, DynamicScaling(factor, longest)))


def _as_llama3(nested: dict[str, Any]) -> Llama3Scaling:
    """Any scaling taken for Llama 3's, with the defaults of `apply_rope_scaling`."""
    return Llama3Scaling(
        float(nested.get("factor", 8.0)),
        float(nested.get("low_freq_factor", 1.0)),
        float(nested.get("high_freq_factor", 4.0)),
        int(nested.get("original_max_position_embeddings", _LLAMA3_LENGTH)),
    )


def _nested(view: View) -> dict[str, Any]:
    return view.values.get("rope_parameters") or view.values.get("rope_scaling") or {}


def _states_theta(view: View) -> bool:
    holders = (view.values, *(view.values.get(key) for key in ("rope_parameters", "rope_scaling")))
    return any(
        isinstance(holder, dict) and holder.get("rope_theta") is not None for holder in holders
    )

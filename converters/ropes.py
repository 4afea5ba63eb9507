"""Hugging Face's ways of writing RoPE <-> `RopeConfig`.

The base stands at the top (`rope_theta`), in `rope_parameters` (transformers 5) or in
`rope_scaling`; the type is `rope_type` or, in older files, `type`.
"""

from typing import Any

from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from eagle3_jax.errors import InputError

DEFAULT_THETA = 10000.0
_PLAIN = ("default", "mrope")  # mrope with text positions turns exactly as the plain form
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_KEYS: dict[str, tuple[set[str], set[str]]] = {  # type -> (required, optional) further keys
    "default": (set(), set()),
    "mrope": (set(), {"mrope_section", "mrope_interleaved"}),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, {"original_max_position_embeddings"}),
    "llama3": (
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
        set(),
    ),
    "yarn": (
        {"factor"},
        {
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "attention_factor",
            "truncate",
        },
    ),
    "longrope": (
        {"short_factor", "long_factor"},
        {"factor", "original_max_position_embeddings", "attention_factor"},
    ),
}


def read_rope(config: dict[str, Any], where: str) -> RopeConfig:
    """The RoPE that a config.json describes.

    Args:
        config: the model's (text) config.
        where: the file, for messages.

    Raises:
        InputError: for an unknown type, missing or unknown keys, or two different bases.
    """
    nested = _nested(config, where)
    kind = _kind(nested, where)
    required, optional = _KEYS[kind]
    missing = required - nested.keys()
    if missing:
        raise InputError(f"{where}: rope type {kind!r} lacks {', '.join(sorted(missing))}")
    unknown = nested.keys() - required - optional - _COMMON
    if unknown:
        raise InputError(
            f"{where}: rope type {kind!r} has unknown keys {', '.join(sorted(unknown))}"
        )
    partial = nested.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    return RopeConfig(
        theta=_theta(config, nested, where),
        partial=float(1.0 if partial is None else partial),
        scaling=_scaling(kind, nested, config, where),
    )


def write_rope(rope: RopeConfig) -> dict[str, Any]:
    """Config keys that say the same to every reader: theta on top, scaling apart.

    Returns:
        `rope_theta`, `rope_scaling` (`None` for the plain form) and, where the head is rotated
        in part, `partial_rotary_factor`.
    """
    keys: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": _written(rope.scaling)}
    if rope.partial != 1.0:
        keys["partial_rotary_factor"] = rope.partial
    return keys


def _nested(config: dict[str, Any], where: str) -> dict[str, Any]:
    parameters, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    for key, value in (("rope_parameters", parameters), ("rope_scaling", scaling)):
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{where}: {key} is {value!r}, expected an object or null")
    if parameters and scaling:
        both = parameters.keys() & scaling.keys()
        differing = sorted(key for key in both if parameters[key] != scaling[key])
        if differing:
            raise InputError(
                f"{where}: rope_parameters and rope_scaling disagree on {', '.join(differing)}"
            )
    return {**(scaling or {}), **(parameters or {})}


def _kind(nested: dict[str, Any], where: str) -> str:
    names = {str(nested[key]) for key in ("rope_type", "type") if nested.get(key) is not None}
    if len(names) > 1:
        # transformers writes type "mrope" as rope_type "default" beside it: the same rotation.
        if names == set(_PLAIN):
            return "mrope"
        raise InputError(f"{where}: rope_type and type disagree: {', '.join(sorted(names))}")
    kind = names.pop() if names else ("mrope" if "mrope_section" in nested else "default")
    if kind == "default" and "mrope_section" in nested:
        return "mrope"
    if kind not in _KEYS:
        raise InputError(f"{where}: rope type {kind!r} is unknown, expected {', '.join(_KEYS)}")
    return kind


def _theta(config: dict[str, Any], nested: dict[str, Any], where: str) -> float:
    top, inner = config.get("rope_theta"), nested.get("rope_theta")
    if top is not None and inner is not None and float(top) != float(inner):
        raise InputError(f"{where}: rope_theta is {top} at the top and {inner} nested")
    found = inner if inner is not None else top
    return float(DEFAULT_THETA if found is None else found)


def _original(nested: dict[str, Any], config: dict[str, Any], where: str) -> int:
    for found in (
        nested.get("original_max_position_embeddings"),
        config.get("original_max_position_embeddings"),
        config.get("max_position_embeddings"),
    ):
        if found is not None:
            return int(found)
    raise InputError(f"{where}: rope scaling needs original_max_position_embeddings")


def _scaling(
    kind: str, nested: dict[str, Any], config: dict[str, Any], where: str
) -> RopeScaling | None:
    match kind:
        case "linear":
            return LinearScaling(float(nested["factor"]))
        case "dynamic":
            return DynamicScaling(float(nested["factor"]), _original(nested, config, where))
        case "llama3":
            return Llama3Scaling(
                float(nested["factor"]),
                float(nested["low_freq_factor"]),
                float(nested["high_freq_factor"]),
                int(nested["original_max_position_embeddings"]),
            )
        case "yarn":
            # A null stands for the default, as in transformers.
            given = {
                key: nested[key]
                for key in (
                    "beta_fast",
                    "beta_slow",
                    "mscale",
                    "mscale_all_dim",
                    "attention_factor",
                    "truncate",
                )
                if nested.get(key) is not None
            }
            return YarnScaling(float(nested["factor"]), _original(nested, config, where), **given)
        case "longrope":
            original = _original(nested, config, where)
            longest = config.get("max_position_embeddings", original)
            attention_factor = nested.get("attention_factor")
            # transformers' rule: an original length at the top of the file sets the factor.
            if config.get("original_max_position_embeddings") is not None:
                factor = longest / original
            else:
                factor = float(nested.get("factor") or longest / original)
            return LongRopeScaling(
                tuple(map(float, nested["short_factor"])),
                tuple(map(float, nested["long_factor"])),
                original,
                factor,
                None if attention_factor is None else float(attention_factor),
            )
        case _:
            return None


def _written(scaling: RopeScaling | None) -> dict[str, Any] | None:
    match scaling:
        case None:
            return None
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case DynamicScaling():
            return {
                "rope_type": "dynamic",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_positions,
            }
        case YarnScaling():
            optional = {
                "mscale": scaling.mscale,
                "mscale_all_dim": scaling.mscale_all_dim,
                "attention_factor": scaling.attention_factor,
            }
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_positions,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
                **{key: value for key, value in optional.items() if value is not None},
            }
        case LongRopeScaling():
            optional = {"attention_factor": scaling.attention_factor}
            return {
                "rope_type": "longrope",
                "short_factor": list(scaling.short_factor),
                "long_factor": list(scaling.long_factor),
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_positions,
                **{key: value for key, value in optional.items() if value is not None},
            }

"""Hugging Face's ways of writing RoPE <-> `RopeConfig`.

The base stands at the top (`rope_theta`), in `rope_parameters` (transformers 5) or in
`rope_scaling`; the type is `rope_type` or, in older files, `type`.
"""

from typing import Any

from converters.keys import read_flag, read_integer, read_number, read_object
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
# What YaRN without them comes to (transformers `_compute_yarn_parameters`).
_DEFAULT_MSCALES = {"mscale": 1.0, "mscale_all_dim": 0.0}
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
        raise InputError(
            f"{where}: rope type {kind!r} lacks {', '.join(sorted(missing))}, expected it nested"
        )
    unknown = nested.keys() - required - optional - _COMMON
    if unknown:
        raise InputError(
            f"{where}: rope type {kind!r} has unknown keys {', '.join(sorted(unknown))}, expected "
            "none"
        )
    partial = _once(config, nested, "partial_rotary_factor", where, default=1.0)
    theta = _once(config, nested, "rope_theta", where, default=DEFAULT_THETA)
    scaling = _scaling(kind, nested, config, where)
    try:
        return RopeConfig(theta, partial, scaling)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


def write_rope(rope: RopeConfig, *, spelled: bool = False) -> dict[str, Any]:
    """Config keys that say the same to every reader: theta on top, scaling apart.

    Args:
        rope: base, share and scaling.
        spelled: write what YaRN's mscale and mscale_all_dim are by default, too.

    Returns:
        `rope_theta`, `rope_scaling` (`None` for the plain form) and, where the head is rotated
        in part, `partial_rotary_factor`.
    """
    keys: dict[str, Any] = {
        "rope_theta": rope.theta,
        "rope_scaling": _written(rope.scaling, spelled),
    }
    if rope.partial != 1.0:
        keys["partial_rotary_factor"] = rope.partial
    return keys


def _nested(config: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = read_object(config, "rope_parameters", where)
    scaling = read_object(config, "rope_scaling", where)
    both = parameters.keys() & scaling.keys()
    differing = sorted(key for key in both if parameters[key] != scaling[key])
    if differing:
        raise InputError(
            f"{where}: rope_parameters and rope_scaling disagree on {', '.join(differing)}, "
            "expected one value"
        )
    return {**scaling, **parameters}


def _kind(nested: dict[str, Any], where: str) -> str:
    names = {str(nested[key]) for key in ("rope_type", "type") if nested.get(key) is not None}
    if len(names) > 1:
        # transformers writes type "mrope" as rope_type "default" beside it: the same rotation.
        if names == set(_PLAIN):
            return "mrope"
        raise InputError(
            f"{where}: rope_type and type are {' and '.join(sorted(names))}, expected one type"
        )
    kind = names.pop() if names else ("mrope" if "mrope_section" in nested else "default")
    if kind == "default" and "mrope_section" in nested:
        return "mrope"
    if kind not in _KEYS:
        raise InputError(f"{where}: rope type {kind!r} is unknown, expected {', '.join(_KEYS)}")
    return kind


def _once(
    config: dict[str, Any], nested: dict[str, Any], key: str, where: str, default: float
) -> float:
    """A number that may stand at the top, nested, or in both places when they agree."""
    if config.get(key) is None or nested.get(key) is None:
        return read_number(config if nested.get(key) is None else nested, key, where, default)
    top, inner = read_number(config, key, where), read_number(nested, key, where)
    if top != inner:
        raise InputError(f"{where}: {key} is {top} at the top and {inner} nested, expected one")
    return inner


def _original(nested: dict[str, Any], config: dict[str, Any], where: str) -> int:
    key = "original_max_position_embeddings"
    for keys, name in ((nested, key), (config, key), (config, "max_position_embeddings")):
        if keys.get(name) is not None:
            return read_integer(keys, name, where)
    raise InputError(f"{where}: found no {key}, expected it for a rope of this type")


def _scaling(
    kind: str, nested: dict[str, Any], config: dict[str, Any], where: str
) -> RopeScaling | None:
    def number(key: str) -> float:
        return read_number(nested, key, where)

    def given(*keys: str) -> dict[str, float]:  # a null stands for the default
        return {key: number(key) for key in keys if nested.get(key) is not None}

    match kind:
        case "linear":
            return LinearScaling(number("factor"))
        case "dynamic":
            original = _original(nested, config, where)
            longest = read_integer(config, "max_position_embeddings", where, default=original)
            if longest != original:  # the one that transformers and servers go by
                raise InputError(
                    f"{where}: original_max_position_embeddings is {original}, expected {longest}, "
                    "max_position_embeddings, from which dynamic scaling starts"
                )
            return DynamicScaling(number("factor"), original)
        case "llama3":
            return Llama3Scaling(
                number("factor"),
                number("low_freq_factor"),
                number("high_freq_factor"),
                read_integer(nested, "original_max_position_embeddings", where),
            )
        case "yarn":
            mscales = given("mscale", "mscale_all_dim")
            return YarnScaling(
                number("factor"),
                _original(nested, config, where),
                **given("beta_fast", "beta_slow", "attention_factor"),
                **(mscales if mscales != _DEFAULT_MSCALES else {}),
                truncate=read_flag(nested, "truncate", where, default=True),
            )
        case "longrope":
            original = _original(nested, config, where)
            longest = read_integer(config, "max_position_embeddings", where, default=original)
            implied = longest / original
            # transformers' rule: an original length at the top of the file sets the factor.
            top = config.get("original_max_position_embeddings") is not None
            return LongRopeScaling(
                _divisors(nested, "short_factor", where),
                _divisors(nested, "long_factor", where),
                original,
                implied if top else read_number(nested, "factor", where, default=implied),
                **given("attention_factor"),
            )
        case _:
            return None


def _divisors(nested: dict[str, Any], key: str, where: str) -> tuple[float, ...]:
    values = nested[key]
    if not isinstance(values, list) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    ):
        raise InputError(f"{where}: {key} is {values!r}, expected a list of numbers")
    return tuple(map(float, values))


def _written(scaling: RopeScaling | None, spelled: bool) -> dict[str, Any] | None:
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
            if spelled and scaling.mscale is None and scaling.mscale_all_dim is None:
                optional |= _DEFAULT_MSCALES
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

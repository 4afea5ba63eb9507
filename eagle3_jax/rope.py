"""RoPE: inverse frequencies of each scaling, turned into angles at any position.

Nothing is tabulated, so no position is ever clamped. A row's own longest position decides where
a scaling depends on the length (dynamic, LongRoPE), so rows of a batch stay independent.
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.structs import Rotation


def rotation(config: RopeConfig, rope_dim: int, positions: Int[Array, "B T"]) -> Rotation:
    """Cosines and sines of every position's angles, times the scaling's magnitude.

    Args:
        config: base, rotated share, scaling.
        rope_dim: width of the part of a head that RoPE is given, as its attention says.
        positions: absolute positions, any order.

    Returns:
        Float32 arrays `[B,T,R]`, R half the rotated dimensions.
    """
    size = config.rotated(rope_dim)
    length = jnp.max(positions, axis=-1) + 1
    frequencies, magnitude = _frequencies(config, size, length)
    angles = positions[..., None].astype(jnp.float32) * frequencies[:, None, :]
    return Rotation(jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude)


def score_factor(config: RopeConfig) -> float:
    """What the scores of latent attention are multiplied by besides H**-0.5: YaRN's mscale**2.

    Only a slice of each head turns there, so DeepSeek's YaRN (`mscale_all_dim`) lays the magnitude
    on whole scores and leaves the ratio `mscale / mscale_all_dim` to cosines and sines
    (transformers `DeepseekV3Attention`, vLLM `deepseek_v2`).
    """
    match config.scaling:
        case YarnScaling(factor=factor, mscale_all_dim=weight) if weight:
            return _mscale(factor, weight) ** 2
    return 1.0


def _frequencies(
    config: RopeConfig, size: int, length: Int[Array, " B"]
) -> tuple[Float[Array, "#B R"], float]:
    """Inverse frequencies, per row where they depend on its length, and the magnitude."""
    # Powers are rounded once, from float64: at position 20,000 one rounding more would show.
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    powers = (config.theta ** exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1.0) / powers
    match config.scaling:
        case None:
            return jnp.asarray(plain)[None], 1.0
        case LinearScaling(factor=factor):
            return jnp.asarray(plain / np.float32(factor))[None], 1.0
        case DynamicScaling() as scaling:
            return _dynamic(config.theta, scaling, exponents, size, length), 1.0
        case Llama3Scaling() as scaling:
            return jnp.asarray(_llama3(scaling, plain))[None], 1.0
        case YarnScaling() as scaling:
            frequencies, magnitude = _yarn(config.theta, scaling, plain, size)
            return jnp.asarray(frequencies)[None], magnitude
        case LongRopeScaling() as scaling:
            return _longrope(scaling, powers, length)


def _dynamic(
    theta: float,
    scaling: DynamicScaling,
    exponents: np.ndarray,
    size: int,
    length: Int[Array, " B"],
) -> Float[Array, "B R"]:
    """NTK-aware theta (transformers `_compute_dynamic_ntk_parameters`)."""
    original = scaling.original_max_positions
    reach = jnp.maximum(length, original).astype(jnp.float32)
    growth = scaling.factor * reach / original - (scaling.factor - 1)
    base = theta * growth ** (size / (size - 2))
    return 1.0 / base[:, None] ** exponents


def _llama3(scaling: Llama3Scaling, plain: np.ndarray) -> np.ndarray:
    """Divide long wavelengths, ramp between (transformers `_compute_llama3_parameters`)."""
    wavelength = 2 * math.pi / plain
    turns = scaling.original_max_positions / wavelength
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (plain * keep + plain / scaling.factor * (1.0 - keep)).astype(np.float32)


def _yarn(
    theta: float, scaling: YarnScaling, plain: np.ndarray, size: int
) -> tuple[np.ndarray, float]:
    """YaRN's ramp over dimensions (transformers `_compute_yarn_parameters`)."""

    def dimension_of(turns: float) -> float:
        wavelength = scaling.original_max_positions / (turns * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001  # a ramp of no width would divide by zero
    ramp = np.clip((np.arange(size // 2, dtype=np.float32) - low) / (high - low), 0.0, 1.0)
    frequencies = plain / scaling.factor * ramp + plain * (1.0 - ramp)
    return frequencies.astype(np.float32), _yarn_magnitude(scaling)


def _yarn_magnitude(scaling: YarnScaling) -> float:
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    factor, own, whole = scaling.factor, scaling.mscale, scaling.mscale_all_dim
    if own and whole:
        return _mscale(factor, own) / _mscale(factor, whole)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    """YaRN's magnitude (transformers `yarn_get_mscale`)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(
    scaling: LongRopeScaling, powers: np.ndarray, length: Int[Array, " B"]
) -> tuple[Float[Array, "B R"], float]:
    """A divisor per frequency (transformers `_compute_longrope_parameters`)."""
    short, long = (
        np.float32(1.0) / (np.asarray(factors, np.float32) * powers)
        for factors in (scaling.short_factor, scaling.long_factor)
    )
    beyond = length > scaling.original_max_positions
    if scaling.attention_factor is not None:
        magnitude = scaling.attention_factor
    elif scaling.factor <= 1:
        magnitude = 1.0
    else:
        magnitude = math.sqrt(
            1 + math.log(scaling.factor) / math.log(scaling.original_max_positions)
        )
    return jnp.where(beyond[:, None], long, short), magnitude

"""How a draft's parts are joined: the choices that no tensor's shape tells.

A draft's config makes them. Whoever asks what the same draft does under other choices hands them in
as arrays: then all choices share one compilation.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Int

from eagle3_jax.config import DraftConfig, RopeConfig

Flag = bool | Bool[Array, ""]
Number = int | Int[Array, ""]

RESIDUALS = ("raw", "normed", "embedding")  # what the first layer's residual may carry


class Wiring(NamedTuple):
    """The choices of one forward pass, as Python values or as scalars of a traced computation.

    Attributes:
        pre_fc_norm: the norms before `fc` that the draft holds are applied.
        double_norm: the hidden half is normed by `input_layernorm` before `hidden_norm`.
        residual: a place in `RESIDUALS`.
        final_norm: the head reads `norm`'s output, where the draft holds one.
        norm_output: the next step is fed what the head reads, not the raw state.
        rope: a place in `ropes`.
        advance: how far positions move on at each step.
        ropes: rotary embeddings to choose from; all turn as many dimensions.
    """

    pre_fc_norm: Flag
    double_norm: Flag
    residual: Number
    final_norm: Flag
    norm_output: Flag
    rope: Number
    advance: Number
    ropes: tuple[RopeConfig, ...]

    @classmethod
    def of(cls, config: DraftConfig) -> "Wiring":
        """The choices that a config makes."""
        return cls(
            pre_fc_norm=config.norm_before_fc or config.fc_norm,
            double_norm=config.double_norm,
            residual=RESIDUALS.index("normed" if config.norm_before_residual else "raw"),
            final_norm=config.final_norm,
            norm_output=config.norm_output,
            rope=0,
            advance=1,
            ropes=(config.rope,),
        )


def choose(which: Flag | Number, *options: Callable[[], Any]) -> Any:
    """One of some options by its place: false, or 0, is the first.

    Args:
        which: a Python value, and only that option is computed; or a scalar of a traced
            computation, and all are.
        options: each makes an array, or a tree of arrays, of one shape and type.
    """
    if isinstance(which, int):
        return options[which]()
    return jax.tree.map(
        lambda *parts: jax.lax.select_n(which, *parts), *(option() for option in options)
    )

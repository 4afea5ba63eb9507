"""Parts and knobs of a draft that some framework has no place for.

One name each, as `--allow NAME` and the dialects' tables use it. A loss that can be accepted says
what is left of the draft without it; the others would be another model.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from eagle3_jax.config import (
    AttentionConfig,
    DraftConfig,
    DynamicScaling,
    LatentAttentionConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)

_SCALINGS = {
    LinearScaling: "linear",
    DynamicScaling: "dynamic",
    Llama3Scaling: "llama3",
    YarnScaling: "yarn",
    LongRopeScaling: "longrope",
}


class Feature(NamedTuple):
    """Something that not every framework can express.

    Attributes:
        told: what it is, in words.
        holds: whether a draft has it; the second argument is the longest context.
        concede: the draft without it; `None` where nothing would be left of it.
    """

    told: str
    holds: Callable[[DraftConfig, int], bool]
    concede: Callable[[DraftConfig], DraftConfig] | None = None


def scaling_name(rope: RopeConfig) -> str | None:
    """The type of a RoPE scaling as files name it; `None` for the plain form."""
    return None if rope.scaling is None else _SCALINGS[type(rope.scaling)]


def grouped(config: DraftConfig) -> AttentionConfig | None:
    """The grouped-query attention of a draft, `None` where it is latent."""
    return config.attention if isinstance(config.attention, AttentionConfig) else None


def _with(config: Any, **changes: Any) -> Any:
    """`replace` for fields that are named by a string, which a type checker cannot follow."""
    return replace(config, **changes)


def _has(config: DraftConfig, name: str) -> bool:
    attention = grouped(config)
    return attention is not None and bool(getattr(attention, name))


def _knob(name: str, *, off: bool = False) -> Feature:
    """A flag of the config that is to have its usual value."""
    return Feature(name, lambda c, _: getattr(c, name) != off, lambda c: _with(c, **{name: off}))


def _attention(told: str, name: str) -> Feature:
    """A field of grouped-query attention that is to be off or absent."""

    def concede(c: DraftConfig) -> DraftConfig:
        attention = grouped(c)
        assert attention is not None, "only grouped-query attention has it"
        off = None if name == "sliding_window" else False
        return replace(c, attention=_with(attention, **{name: off}))

    return Feature(told, lambda c, _: _has(c, name), concede)


def _scaling(name: str) -> Feature:
    return Feature(
        f"{name} RoPE scaling",
        lambda c, _: scaling_name(c.rope) == name,
        lambda c: replace(c, rope=replace(c.rope, scaling=None)),
    )


def _scaling_sets(kind: type, field: str) -> Callable[[DraftConfig, int], bool]:
    def holds(config: DraftConfig, _: int) -> bool:
        scaling = config.rope.scaling
        return isinstance(scaling, kind) and getattr(scaling, field) is not None

    return holds


def _stretches_otherwise(config: DraftConfig, max_positions: int) -> bool:
    scaling = config.rope.scaling
    return (
        isinstance(scaling, LongRopeScaling)
        and scaling.factor != max_positions / scaling.original_max_positions
    )


def _odd_heads(config: DraftConfig, _: int) -> bool:
    attention = grouped(config)
    return attention is not None and (
        attention.num_heads * attention.head_dim != config.hidden_size
    )


def _direct_queries(config: DraftConfig, _: int) -> bool:
    attention = config.attention
    return isinstance(attention, LatentAttentionConfig) and attention.q_lora_rank is None


FEATURES: dict[str, Feature] = {
    "norm_before_residual": _knob("norm_before_residual"),
    "norm_before_fc": _knob("norm_before_fc"),
    "fc_norm": _knob("fc_norm"),
    "norm_output": _knob("norm_output"),
    "double_norm": _knob("double_norm"),
    "single_norm": Feature(
        "a hidden half that is normed once",
        lambda c, _: not c.double_norm,
        lambda c: replace(c, double_norm=True),
    ),
    "no_final_norm": Feature("a missing final norm", lambda c, _: not c.final_norm),
    "attention_bias": _attention("q/k/v biases", "bias"),
    "output_bias": _attention("a bias of o_proj", "output_bias"),
    "mlp_bias": _knob("mlp_bias"),
    "fc_bias": _knob("fc_bias"),
    "qk_norm": _attention("q/k norms", "qk_norm"),
    "sliding_window": _attention("a sliding window", "sliding_window"),
    "last_state_only": Feature("a draft without fc", lambda c, _: c.num_aux == 0),
    "num_aux": Feature("other than three aux states", lambda c, _: c.num_aux not in (0, 3)),
    "square_fc": Feature(
        "an fc that reads as many columns as it has rows",
        lambda c, _: c.num_aux > 0 and c.aux_width == c.hidden_size,
    ),
    "layers": Feature("more than one layer", lambda c, _: c.num_layers > 1),
    "latent_attention": Feature(
        "multi-head latent attention",
        lambda c, _: isinstance(c.attention, LatentAttentionConfig),
    ),
    "direct_queries": Feature("latent attention without q_lora_rank", _direct_queries),
    "head_dim": Feature("a head_dim other than hidden_size / heads", _odd_heads),
    "target_width": Feature(
        "a target of another width", lambda c, _: c.target_hidden_size != c.hidden_size
    ),
    "partial_rotary": Feature(
        "a partial rotary factor",
        lambda c, _: c.rope.partial != 1.0,
        lambda c: replace(c, rope=replace(c.rope, partial=1.0)),
    ),
    **{name: _scaling(name) for name in _SCALINGS.values()},
    "yarn_attention_factor": Feature(
        "YaRN's attention_factor", _scaling_sets(YarnScaling, "attention_factor")
    ),
    "lone_mscale": Feature(
        "YaRN's mscale without mscale_all_dim",
        lambda c, _: (
            isinstance(c.rope.scaling, YarnScaling)
            and c.rope.scaling.mscale is not None
            and not c.rope.scaling.mscale_all_dim
        ),
    ),
    "longrope_attention_factor": Feature(
        "LongRoPE's attention_factor", _scaling_sets(LongRopeScaling, "attention_factor")
    ),
    "longrope_factor": Feature(
        "a LongRoPE factor other than max_positions / original length", _stretches_otherwise
    ),
    "qk_norm_mlp_bias": Feature(
        "MLP biases beside q/k norms",
        lambda c, _: c.mlp_bias and _has(c, "qk_norm"),
        lambda c: replace(c, mlp_bias=False),
    ),
    "qk_norm_output_bias": Feature(
        "a bias of o_proj beside q/k norms",
        lambda c, _: _has(c, "qk_norm") and _has(c, "output_bias"),
        lambda c: replace(c, attention=_with(c.attention, output_bias=False)),
    ),
    "latent_norm_before_fc": Feature(
        "norm_before_fc under latent attention",
        lambda c, _: c.norm_before_fc and isinstance(c.attention, LatentAttentionConfig),
        lambda c: replace(c, norm_before_fc=False),
    ),
    "latent_layers": Feature(
        "more than one layer of latent attention",
        lambda c, _: c.num_layers > 1 and isinstance(c.attention, LatentAttentionConfig),
    ),
    "latent_other_scaling": Feature(
        "RoPE scaling other than YaRN under latent attention",
        lambda c, _: (
            isinstance(c.attention, LatentAttentionConfig)
            and c.rope.scaling is not None
            and not isinstance(c.rope.scaling, YarnScaling)
        ),
    ),
    "latent_scaling": Feature(
        "RoPE scaling under latent attention",
        lambda c, _: isinstance(c.attention, LatentAttentionConfig) and c.rope.scaling is not None,
    ),
}
# What `--allow` accepts the loss of.
LOSSES = frozenset(name for name, feature in FEATURES.items() if feature.concede is not None) | {
    "boundaries",
    "embed_tokens",
}

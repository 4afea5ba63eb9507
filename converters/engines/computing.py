"""The draft that an engine computes: the knobs that it heeds, at the values that it takes."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from converters.drafts import OpenDraft
from converters.engines.base import Engine
from converters.engines.knobs import (
    contradictions,
    count_states,
    flag,
    head_source,
    is_set,
    reads_own_table,
    window,
)
from converters.engines.turning import read_turning
from converters.engines.views import View
from converters.features import FEATURES, grouped, scaling_name
from converters.names import EMBEDDING, HEAD
from eagle3_jax.config import DraftConfig, LongRopeScaling, YarnScaling

_PARTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), feature)
    for pattern, feature in (
        (r"^fc_norm\.", "fc_norm"),
        (r"^input_norm\.", "norm_before_fc"),
        (r"^layers\.0\.self_attn\.[qkv]_proj\.bias$", "attention_bias"),
        (r"^layers\.0\.self_attn\.o_proj\.bias$", "output_bias"),
        (r"^layers\.0\.self_attn\.[qk]_norm\.", "qk_norm"),
        (r"^layers\.0\.mlp\.\w+\.bias$", "mlp_bias"),
        (r"^fc\.bias$", "fc_bias"),
        (r"^layers\.(?!0\.)", "layers"),
    )
)


class Computed(NamedTuple):
    """What an engine makes of a draft's config.

    Attributes:
        config: what it builds and computes.
        exact: whether `config` says all of it.
        embeddings: whose table it reads.
        extra: parameters beside those of `config`.
        told: what `config` cannot say, a sentence each.
        refused: why it stops, a statement each.
    """

    config: DraftConfig
    exact: bool
    embeddings: Literal["own", "target"]
    extra: frozenset[str]
    told: tuple[str, ...]
    refused: tuple[str, ...]


def compute(
    view: View, engine: Engine, draft: OpenDraft, held: frozenset[str], *, last_state_only: bool
) -> Computed:
    """The draft as an engine builds it.

    Args:
        view: the config as the engine sees it.
        engine: whose rules hold.
        draft: the trained reading, whose dimensions come from the tensors' shapes.
        held: canonical names of the tensors whose names the engine knows.
        last_state_only: it feeds the draft the target's last state, without `fc`.

    Raises:
        InputError: when a key that the engine reads is of another type.
    """
    trained, told, extra = draft.config, [], set()
    latent = grouped(trained) is None
    refused = [*contradictions(view, engine, trained), *_unfit(view, engine, trained)]
    if view.kind is not None and latent != (view.kind == "latent"):
        kinds = ("grouped queries", "latent attention")
        refused.append(f"its class is one of {kinds[not latent]}, the tensors are {kinds[latent]}")
    turning = read_turning(view, engine)
    refused += [turning.refused] if turning.refused else []
    own = reads_own_table(view, engine, trained, held=EMBEDDING in held)
    wide = trained.target_hidden_size != trained.hidden_size
    if wide and not own:
        refused.append(
            f"the target's token embeddings are {trained.target_hidden_size} wide, the draft "
            f"reads {trained.hidden_size}"
        )
    # A state of another width than the draft's needs an fc, whatever the config says.
    alone = last_state_only and not wide
    states, failed = (0, None) if alone else _states(view, engine, trained)
    refused += [failed] if failed else []
    head = head_source(view, engine, held=HEAD in held)
    knobs = {
        name: flag(view, engine, name)
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    }
    exact = True
    if not states:
        knobs |= {"norm_before_fc": False, "fc_norm": False}
    elif knobs["norm_before_fc"] and knobs["fc_norm"]:
        knobs["norm_before_fc"] = False
        if engine.both_norms == "chained":
            exact = False
            extra.add("input_norm.weight")
            told.append("norm_before_fc and fc_norm are both on: it applies one after the other")
        else:
            told.append("norm_before_fc and fc_norm are both on: it applies fc_norm alone")
    rows = trained.draft_vocab_size
    if head != "own" and rows != trained.vocab_size:
        exact, rows = False, trained.vocab_size
        whose = "embedding table" if head == "tied" else "head"
        told.append(
            f"its head is the target's {whose}, while the draft ids are "
            f"{trained.draft_vocab_size} of {trained.vocab_size}"
        )
    config = replace(
        trained,
        **_any(knobs),
        draft_vocab_size=rows,
        head=head,
        rope=turning.rope,
        num_aux=states,
        num_layers=_layers(view, engine, trained),
        final_norm=True,
        fc_bias=states > 0 and _has_bias(view, engine, "fc_bias", "bias"),
        mlp_bias=_has_bias(view, engine, "mlp_bias", "mlp_bias"),
        attention=_attention(view, engine, trained),
    )
    if own:
        extra.add(EMBEDDING)
    return Computed(
        _conceded(config, engine, draft.max_positions),
        exact,
        "own" if own else "target",
        frozenset(extra),
        tuple(told),
        tuple(refused),
    )


def unused(engine: Engine, computed: Computed) -> Callable[[str], str]:
    """Why an engine has no use for a tensor, by its canonical name."""

    def why(name: str) -> str:
        if name == EMBEDDING:
            return "the target's token embeddings take its place"
        if name == HEAD:
            tied = computed.config.head == "tied"
            return f"its head is {'the token embeddings' if tied else 'that of the target'}"
        if name == "fc.weight":
            return "it feeds the draft the target's last state, without fc"
        for pattern, feature in _PARTS:
            if pattern.search(name):
                off = f"{feature} is off in the config as it reads it"
                return engine.dialect.lacks.get(feature, off)
        return "it has no place for it"

    return why


def _unfit(view: View, engine: Engine, trained: DraftConfig) -> list[str]:
    """Keys without which, or with which, the engine builds nothing."""
    refused = []
    values, lacks = view.values, engine.dialect.lacks
    tied = engine.dialect.tied_head and is_set(view, "tie_word_embeddings")
    if engine.needs_draft_vocab and not tied and view.kind != "latent":
        if "draft_vocab_size" not in values:
            refused.append("config has no draft_vocab_size")
        elif values["draft_vocab_size"] is None and not engine.null_head:
            refused.append("draft_vocab_size is null")
    null = "target_hidden_size" in values and values["target_hidden_size"] is None
    if engine.null_width_fails and null and view.kind == "llama":
        refused.append("target_hidden_size is null")
    if engine.one_layer and values.get("num_hidden_layers", 1) != 1:
        refused.append(f"num_hidden_layers is {values['num_hidden_layers']}, it takes 1")
    for name in ("direct_queries", "latent_layers", "target_width"):
        if name in lacks and FEATURES[name].holds(trained, 0):
            refused.append(f"{FEATURES[name].told}: {lacks[name]}")
    return refused


def _states(view: View, engine: Engine, trained: DraftConfig) -> tuple[int, str | None]:
    """A as the engine builds `fc`, and why that does not fit the file."""
    states = count_states(view, engine)
    width = view.values.get("target_hidden_size") or trained.hidden_size
    if trained.num_aux and states * width != trained.aux_width:
        return states, (
            f"its fc is built for {states} states of width {width}, the file's reads "
            f"{trained.aux_width} columns"
        )
    return states, None


def _layers(view: View, engine: Engine, trained: DraftConfig) -> int:
    stated = view.values.get("num_hidden_layers")
    if engine.builds == "one":
        return 1
    return stated if type(stated) is int and stated > 0 else trained.num_layers


def _has_bias(view: View, engine: Engine, feature: str, key: str) -> bool:
    return feature not in engine.dialect.lacks and is_set(view, key)


def _attention(view: View, engine: Engine, trained: DraftConfig) -> Any:
    attention = grouped(trained)
    if attention is None:
        return trained.attention
    return replace(
        attention,
        bias=is_set(view, "attention_bias"),
        output_bias=any(is_set(view, key) for key in engine.output_bias),
        qk_norm=view.kind == "qwen3",
        sliding_window=window(view),
    )


def _conceded(config: DraftConfig, engine: Engine, max_positions: int | None) -> DraftConfig:
    """Without what is left of the features that the engine lacks; `turning` saw to scalings."""
    for name in engine.dialect.lacks:
        feature = FEATURES[name]
        if name == scaling_name(config.rope) or not feature.holds(config, max_positions or 0):
            continue
        if feature.concede is not None:
            config = feature.concede(config)
        elif name in ("yarn_attention_factor", "longrope_attention_factor"):
            scaling = config.rope.scaling
            assert isinstance(scaling, YarnScaling | LongRopeScaling), "only they have one"
            rope = replace(config.rope, scaling=replace(scaling, attention_factor=None))
            config = replace(config, rope=rope)
    return config


def _any(fields: dict[str, bool]) -> dict[str, Any]:
    """Fields that are named by a string, which a type checker cannot follow."""
    return dict(fields)

"""The attention of a draft's layers, by the shapes of its first layer."""

from converters.evidence import Evidence
from converters.keys import read_flag, read_integer
from converters.names import FIRST
from eagle3_jax.config import AttentionConfig, LatentAttentionConfig
from eagle3_jax.errors import InputError

_ATTENTION = FIRST + "self_attn."
_LAYER_TYPES = ("full_attention", "sliding_attention")


def read_attention(evidence: Evidence) -> AttentionConfig | LatentAttentionConfig:
    """Heads, their widths and their parts.

    Raises:
        InputError: when shapes and head counts do not fit.
    """
    if _ATTENTION + "kv_a_proj_with_mqa.weight" in evidence.tensors:
        return _latent(evidence)
    heads, (queries, _) = _heads(evidence), evidence.shape(_ATTENTION + "q_proj.weight")
    keys, _ = evidence.shape(_ATTENTION + "k_proj.weight")
    where = evidence.keys.where
    if queries % heads:
        raise InputError(
            f"{where}: num_attention_heads is {heads}, expected a divisor of {queries}, the rows "
            "of q_proj"
        )
    head_dim = evidence.settle("head_dim", queries // heads, "shape of q_proj")
    if keys % head_dim:
        raise InputError(
            f"{where}: k_proj has {keys} rows, expected a multiple of the head_dim {head_dim} "
            f"that q_proj's {queries} rows make with num_attention_heads {heads}"
        )
    settle = evidence.ledger.settle
    # `attention_bias` is one flag for two tensors, and frameworks disagree which: tensors decide.
    flagged = "o" if evidence.dialect.biases == "o" else "q"
    bias, output_bias = (
        evidence.has(f"{_ATTENTION}{x}_proj.bias", "attention_bias" if x == flagged else None)
        for x in "qo"
    )
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=evidence.settle("num_key_value_heads", keys // head_dim, "shape of k_proj"),
        head_dim=head_dim,
        bias=settle("attention_bias", bias, "tensor q_proj.bias"),
        output_bias=settle("output_bias", output_bias, "tensor o_proj.bias"),
        qk_norm=settle(
            "qk_norm", evidence.has(_ATTENTION + "q_norm.weight"), "tensor q_norm.weight"
        ),
        sliding_window=_window(evidence),
    )


def _heads(evidence: Evidence) -> int:
    asked = evidence.ledger.settings.get("num_attention_heads")
    if isinstance(asked, float):
        return evidence.ledger.settle("num_attention_heads", int(asked), "--set")
    found = read_integer(evidence.keys.values, "num_attention_heads", evidence.keys.where)
    return evidence.ledger.settle(
        "num_attention_heads", found, evidence.keys.place("num_attention_heads")
    )


def _latent(evidence: Evidence) -> LatentAttentionConfig:
    heads, where = _heads(evidence), evidence.keys.where
    if not read_flag(evidence.keys.values, "rope_interleave", where, default=True):
        raise InputError(
            f"{where}: rope_interleave is false, expected true: latent attention turns neighbours"
        )
    kv_rank = evidence.length(_ATTENTION + "kv_a_layernorm.weight")
    down, _ = evidence.shape(_ATTENTION + "kv_a_proj_with_mqa.weight")
    query, query_rank = "q_proj.weight", None
    if _ATTENTION + "q_a_proj.weight" in evidence.tensors:
        query = "q_b_proj.weight"
        query_rank = evidence.settle(
            "q_lora_rank", evidence.shape(_ATTENTION + "q_a_proj.weight")[0], "q_a_proj"
        )
    queries, _ = evidence.shape(_ATTENTION + query)
    up, _ = evidence.shape(_ATTENTION + "kv_b_proj.weight")
    turned = down - kv_rank
    for name, rows in ((query, queries), ("kv_b_proj.weight", up)):
        if rows % heads:
            raise InputError(
                f"{where}: {name} has {rows} rows, expected a multiple of num_attention_heads "
                f"{heads}"
            )
    nope = queries // heads - turned
    if turned < 1 or nope < 1 or up // heads <= nope:
        raise InputError(
            f"{where}: latent attention of {heads} heads with {down} rows of kv_a_proj_with_mqa, "
            f"{queries} of {query} and {up} of kv_b_proj.weight has no head widths, expected "
            "kv_lora_rank + rope, heads x (nope + rope) and heads x (nope + v)"
        )
    return LatentAttentionConfig(
        num_heads=heads,
        q_lora_rank=query_rank,
        kv_lora_rank=evidence.settle("kv_lora_rank", kv_rank, "shape of kv_a_layernorm"),
        qk_nope_head_dim=evidence.settle("qk_nope_head_dim", nope, f"shape of {query}"),
        qk_rope_head_dim=evidence.settle("qk_rope_head_dim", turned, "shape of kv_a_proj_with_mqa"),
        v_head_dim=evidence.settle("v_head_dim", up // heads - nope, "shape of kv_b_proj"),
    )


def _window(evidence: Evidence) -> int | None:
    """The window of every layer, where the framework that reads the file has one."""
    values, where, ledger = evidence.keys.values, evidence.keys.where, evidence.ledger
    if "sliding_window" in ledger.settings:
        asked = ledger.settings["sliding_window"]
        return ledger.settle("sliding_window", _whole(asked), "--set")
    window = values.get("sliding_window")
    switched_off = values.get("use_sliding_window") is not None and not read_flag(
        values, "use_sliding_window", where
    )
    kinds = values.get("layer_types")
    if kinds is not None and not (
        isinstance(kinds, list) and all(kind in _LAYER_TYPES for kind in kinds)
    ):
        raise InputError(
            f"{where}: layer_types is {kinds!r}, expected a list of {' and '.join(_LAYER_TYPES)}"
        )
    sliding = {kind == "sliding_attention" for kind in kinds or ()}
    source = evidence.keys.place("layer_types" if kinds else "sliding_window")
    if window is None or switched_off or sliding == {False}:
        return ledger.settle("sliding_window", None, source)
    window = read_integer(values, "sliding_window", where)
    if "sliding_window" in evidence.dialect.lacks or not sliding:
        # vLLM and speculators go by layer_types alone; the others have no window.
        ledger.notes.append(
            f"sliding_window is {window} in the config, but {evidence.dialect.title} attends to "
            "everything without layer_types that say otherwise, so it is ignored"
        )
        return ledger.settle("sliding_window", None, f"{evidence.dialect.name}'s rule")
    if len(sliding) > 1:
        raise InputError(
            f"{where}: layer_types mixes layers with and without a window, expected one kind"
        )
    return ledger.settle("sliding_window", window, source)


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, float) else None

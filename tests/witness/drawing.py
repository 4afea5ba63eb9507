"""Random drafts and what they are given.

Norm weights and biases are always random: at ones and zeros a norm that is applied twice, or a
swapped pair, is invisible. Weights are scaled so that activations are of order 1, which is what
the tolerances are meant for.
"""

from typing import Any

import ml_dtypes
import numpy as np

Tensors = dict[str, np.ndarray]


def draw_weights(knobs: dict[str, Any], source: np.random.Generator) -> Tensors:
    """Random weights of a draft, under canonical names."""
    width, ffn = knobs["hidden_size"], knobs["intermediate_size"]
    target = knobs["target_hidden_size"]
    queries = knobs["num_heads"] * knobs["head_dim"]
    keys = knobs["num_kv_heads"] * knobs["head_dim"]
    weights: dict[str, np.ndarray] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        weights[f"{name}.weight"] = gain * source.normal(size=(rows, columns)) / columns**0.5

    def vector(name: str, size: int) -> None:
        weights[f"{name}.weight"] = 1 + 0.3 * source.normal(size=size)

    def bias(name: str, size: int) -> None:
        weights[f"{name}.bias"] = 0.3 * source.normal(size=size)

    matrix("fc", width, knobs["num_aux"] * target)
    if knobs["fc_bias"]:
        bias("fc", width)
    if knobs["norm_before_fc"]:
        vector("input_norm", knobs["num_aux"] * target)
    if knobs["fc_norm"]:
        for a in range(knobs["num_aux"]):
            vector(f"fc_norm.{a}", target)
    for i in range(knobs["num_layers"]):
        at, read = f"layers.{i}", 2 * width if i == 0 else width
        matrix(f"{at}.self_attn.q_proj", queries, read, gain=2.0)  # attention that is not flat
        matrix(f"{at}.self_attn.k_proj", keys, read)
        matrix(f"{at}.self_attn.v_proj", keys, read)
        matrix(f"{at}.self_attn.o_proj", width, queries)
        matrix(f"{at}.mlp.gate_proj", ffn, width)
        matrix(f"{at}.mlp.up_proj", ffn, width)
        matrix(f"{at}.mlp.down_proj", width, ffn)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            vector(f"{at}.{norm}", width)
        if i == 0:
            vector(f"{at}.hidden_norm", width)
        if knobs["model_type"] == "qwen3":
            vector(f"{at}.self_attn.q_norm", knobs["head_dim"])
            vector(f"{at}.self_attn.k_norm", knobs["head_dim"])
        if knobs["attention_bias"]:
            for part, size in (("q", queries), ("k", keys), ("v", keys), ("o", width)):
                bias(f"{at}.self_attn.{part}_proj", size)
        if knobs["mlp_bias"]:
            for part, size in (("gate", ffn), ("up", ffn), ("down", width)):
                bias(f"{at}.mlp.{part}_proj", size)
    vector("norm", width)
    matrix("lm_head", knobs["draft_vocab_size"], width)
    weights["embed_tokens.weight"] = source.normal(size=(knobs["vocab_size"], width))
    drawn: Tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    if knobs["draft_vocab_size"] < knobs["vocab_size"]:
        used = np.sort(source.choice(knobs["vocab_size"], knobs["draft_vocab_size"], replace=False))
        drawn["d2t"] = used - np.arange(used.size)
        drawn["t2d"] = np.isin(np.arange(knobs["vocab_size"]), used)
    return drawn


def draw_inputs(knobs: dict[str, Any], source: np.random.Generator) -> Tensors:
    """Random texts and states; padding holds numbers, too, which must not count."""
    lengths = knobs["lengths"] or [knobs["columns"]]
    rows, columns = len(lengths), max(lengths)
    width = knobs["num_aux"] * knobs["target_hidden_size"]
    first = knobs["first_position"]
    inputs: Tensors = {
        "tokens": source.integers(knobs["vocab_size"], size=(rows, columns)),
        "aux": source.normal(size=(rows, columns, width)).astype(np.float32),
        "positions": np.tile(np.arange(first, first + columns), (rows, 1)),
    }
    if knobs["lengths"]:
        inputs["valid"] = np.arange(columns) < np.asarray(lengths)[:, None]
    return inputs


def round_to_bfloat16(tensors: Tensors) -> Tensors:
    """Numbers that bfloat16 holds, in float32: then both types have the same draft."""
    return {
        name: tensor.astype(ml_dtypes.bfloat16).astype(np.float32)
        if tensor.dtype == np.float32
        else tensor
        for name, tensor in tensors.items()
    }

"""Faults of wiring that are the same as other weights: a draft's parameters, changed.

What a reader mixes up, it mixes up in the same way for every input: swapped norms are swapped
weights, an embedding in the second half is a kernel whose rows are rolled, the other pairing of
RoPE is a kernel whose columns are permuted. So the forward pass needs to know nothing of them.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from eagle3_jax.config import AttentionConfig, DraftConfig, LatentAttentionConfig

Params = dict[str, Any]
Change = Callable[[Params], Params]


def swap_norms(params: Params) -> Params:
    """The two norms before attention in each other's place."""
    first = params["layers_0"]
    swapped = {"input_layernorm": first["hidden_norm"], "hidden_norm": first["input_layernorm"]}
    return params | {"layers_0": first | swapped}


def swap_halves(params: Params) -> Params:
    """Attention reads [hidden, embedding]: the kernels' rows for each half in the other's place."""
    first = params["layers_0"]
    attention = dict(first["self_attn"])
    width = first["hidden_norm"]["scale"].shape[0]
    for name, module in attention.items():
        if "kernel" in module and module["kernel"].shape[0] == 2 * width and name != "o_proj":
            attention[name] = module | {"kernel": jnp.roll(module["kernel"], width, axis=0)}
    return params | {"layers_0": first | {"self_attn": attention}}


def repair_rope(config: DraftConfig) -> Change:
    """RoPE turns neighbours where the draft's attention turns halves, or the other way round.

    Scores do not change when the dimensions of queries and keys are permuted alike.
    """
    attention = config.attention
    turned = config.rope.rotated(attention.rope_dim)
    neighbours = np.arange(turned).reshape(-1, 2).T.ravel()  # where halves are turned: 0, 2, ..., 1
    halves = np.arange(turned).reshape(2, -1).T.ravel()  # where neighbours are turned
    if isinstance(attention, AttentionConfig):
        order = np.concatenate([neighbours, np.arange(turned, attention.head_dim)])
        heads = {"q_proj": attention.num_heads, "k_proj": attention.num_kv_heads}
    else:
        nope = attention.qk_nope_head_dim
        order = np.concatenate([np.arange(nope), nope + halves])
        query = "q_proj" if attention.q_lora_rank is None else "q_b_proj"
        heads = {query: attention.num_heads}

    def change(params: Params) -> Params:
        changed = dict(params)
        for index in range(config.num_layers):
            layer = params[f"layers_{index}"]
            modules = dict(layer["self_attn"])
            for name, count in heads.items():
                modules[name] = jax.tree.map(
                    lambda x, n=count: _by_head(x, n, order), modules[name]
                )
            for name in ("q_norm", "k_norm"):
                if name in modules:
                    modules[name] = {"scale": modules[name]["scale"][order]}
            if isinstance(attention, LatentAttentionConfig):
                rank = attention.kv_lora_rank
                keys = np.concatenate([np.arange(rank), rank + halves])
                kernel = modules["kv_a_proj_with_mqa"]["kernel"]
                modules["kv_a_proj_with_mqa"] = {"kernel": kernel[:, keys]}
            changed[f"layers_{index}"] = layer | {"self_attn": modules}
        return changed

    return change


def _by_head(x: Array, heads: int, order: np.ndarray) -> Array:
    apart = x.reshape(*x.shape[:-1], heads, -1)
    return apart[..., order].reshape(x.shape)


def forgettable(params: Params) -> Iterator[tuple[str, Change]]:
    """Tensors that a reader may drop without a word, and the draft without each of them.

    Norm weights stay at the ones that a module starts with, biases at zeros.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = tuple(str(part.key) for part in path)
        if keys[-1] in ("scale", "bias"):
            blank = jnp.ones_like(leaf) if keys[-1] == "scale" else jnp.zeros_like(leaf)
            yield tensor_name(keys), _placing(keys, blank)


def tensor_name(keys: tuple[str, ...]) -> str:
    """A parameter's name as checkpoints have it: `layers.0.hidden_norm.weight`."""
    parts = [key.replace("layers_", "layers.").replace("fc_norm_", "fc_norm.") for key in keys]
    ends = {"scale": "weight", "kernel": "weight"}
    return ".".join([*parts[:-1], ends.get(parts[-1], parts[-1])])


def _placing(keys: tuple[str, ...], leaf: Array) -> Change:
    def place(tree: Params, rest: tuple[str, ...]) -> Params:
        here, *below = rest
        return tree | {here: place(tree[here], tuple(below)) if below else leaf}

    return lambda params: place(params, keys)

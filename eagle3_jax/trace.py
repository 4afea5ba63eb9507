"""`trace`: every named stage of an `unroll`, out of the same forward pass.

Linen's interceptors hear what each module was given and what it gave. What happens between modules
is computed once more from what they said: queries are turned by `ops.rotate`, and scores are summed
up from those queries and the keys that the layer remembered. Stages are listed in `stages`.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.attention import visible
from eagle3_jax.config import AttentionConfig, DraftConfig
from eagle3_jax.heads import in_chunks
from eagle3_jax.ops import project, rotate
from eagle3_jax.rollout import Own, unroll
from eagle3_jax.stages import TOP, logit_ids
from eagle3_jax.structs import KV, DraftStep, Memory, View

Stages = dict[str, Any]
_COLUMNS = 64  # whose scores are in memory at a time


class Traced(NamedTuple):
    """The stages of an unroll.

    Attributes:
        once: by name `[B,C,width]`, stages of step 0 alone.
        steps: by name `[K,B,C,width]`.
    """

    once: dict[str, Float[Array, "B C _"]]
    steps: dict[str, Any]


def trace(
    config: DraftConfig,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    aux: Float[Array, "B T AD"],
    embeddings: Float[Array, "B T D"],
    *,
    steps: int,
    columns: Int[Array, " C"],
    own: Own | None = None,
) -> Traced:
    """Unroll a draft and keep what its parts said.

    Args:
        config: the draft's.
        params: its parameters.
        kernel: the head.
        aux: the target's states at x[t].
        embeddings: the embedding of x[t].
        steps: K, one or more.
        columns: which columns are kept; all are computed.
        own: go on with each column's own greedy tokens instead of the text's.

    Returns:
        The stages that the draft has. Latent attention keeps its queries and keys before RoPE to
        itself.
    """
    heard = _Heard()
    once: Stages = {}

    def read(number: Int[Array, ""] | int, step: DraftStep) -> Stages:
        calls = heard.take()
        if "fc" in calls:
            (given,), fused = calls["fc"]
            once.update(aux=aux, fc_input=given, fc=fused)
        elif not once:
            once.update(aux=aux)
        stages = _stages(config, kernel, calls, step, number)
        return {name: stage[:, columns] for name, stage in stages.items()}

    with nn.intercept_methods(heard.listen):
        later = unroll(config, params, aux, embeddings, steps=steps, read=read, own=own)
    return Traced({name: stage[:, columns] for name, stage in once.items()}, later)


class _Heard:
    """What modules were given and gave, by path, since the last time that somebody took it.

    A module that was called twice is heard the second time: `input_layernorm` with `double_norm`
    reads the hidden half first and the embedding after it.
    """

    def __init__(self) -> None:
        self._calls: dict[str, tuple[Any, Any]] = {}

    def listen(
        self, call: Any, args: Any, keywords: Any, context: nn.module.InterceptorContext
    ) -> Any:
        """Linen's interceptor: call the method, and remember."""
        said = call(*args, **keywords)
        if context.method_name == "__call__":
            self._calls["/".join(context.module.path)] = (args, said)
        return said

    def take(self) -> dict[str, tuple[Any, Any]]:
        """What was heard, to be forgotten here."""
        calls, self._calls = self._calls, {}
        return calls


def _stages(
    config: DraftConfig,
    kernel: Array,
    calls: dict[str, tuple[Any, Any]],
    step: DraftStep,
    number: Int[Array, ""] | int,
) -> Stages:
    """The stages of one step over all columns."""
    (embedding, hidden, *_), _ = calls["layers_0"]
    stages = {"embedding": embedding, "hidden": hidden}
    for index, memory in enumerate(step.memory):
        of_layer = _layer_stages(config, calls, f"layers_{index}", memory, number)
        stages |= {f"layers.{index}.{name}": stage for name, stage in of_layer.items()}
    output, _ = calls[f"layers_{config.num_layers - 1}"][1]
    stages |= {"output": output, "head_input": step.head_input, "state": step.state}
    return stages | _head_stages(step.head_input, kernel)


def _layer_stages(
    config: DraftConfig,
    calls: dict[str, tuple[Any, Any]],
    layer: str,
    memory: Memory,
    number: Int[Array, ""] | int,
) -> Stages:
    def said(name: str) -> Array:
        return calls[f"{layer}/{name}"][1]

    def given(name: str) -> Array:
        return calls[f"{layer}/{name}"][0][0]

    *_, turn, _, view = calls[layer][0]
    stages: Stages = {}
    if layer == "layers_0":
        stages["embedding_normed"] = said("input_layernorm")
        stages["hidden_normed"] = said("hidden_norm")
    else:
        stages["input_normed"] = said("input_layernorm")
    newest = _newest(memory, number)
    stages |= {"v": _side_by_side(newest.values), "k_rotated": _side_by_side(newest.keys)}
    if isinstance(config.attention, AttentionConfig):
        heads = config.attention
        query, stages["k"] = said("self_attn/q_proj"), said("self_attn/k_proj")
        stages["q"] = query
        query = query.reshape(*query.shape[:2], heads.num_heads, heads.head_dim)
        if heads.qk_norm:
            query, key = said("self_attn/q_norm"), said("self_attn/k_norm")
            stages |= {"q_normed": _flat(query), "k_normed": _flat(key)}
        query = rotate(query, turn)
        stages["q_rotated"] = _flat(query)
        summary = _summarise_scores(query, memory, view, heads.head_dim**-0.5)
        stages["scores_max"], stages["scores_lse"] = summary
    stages["attention"] = given("self_attn/o_proj")
    stages["attention_out"] = said("self_attn/o_proj")
    stages["residual"] = given("post_attention_layernorm")
    stages["residual_normed"] = said("post_attention_layernorm")
    stages |= {name: said(f"mlp/{name}_proj") for name in ("gate", "up")}
    return stages | {"mlp": said("mlp")}


def _newest(memory: Memory, number: Int[Array, ""] | int) -> KV:
    """Keys and values `[B,K,T,H]` of this step: the context's at step 0, else a branch slot's."""
    if memory.branch is None:
        return memory.context
    return KV(*(jnp.take(part, number - 1, axis=3) for part in memory.branch))


def _summarise_scores(
    query: Float[Array, "B T N H"], memory: Memory, view: View, scale: float
) -> tuple[Float[Array, "B T N"], Float[Array, "B T N"]]:
    """The largest score of each query head, and the log-sum-exp of those that it sees."""
    batch, columns, heads, width = query.shape
    keys = memory.context.keys
    grouped = query.reshape(batch, columns, keys.shape[1], -1, width)
    slots = jnp.broadcast_to(jnp.arange(columns), (batch, columns))
    lead, window = view.lead, view.window
    seen = visible(slots, keys.shape[2], lead=lead, window=window, key_valid=view.key_valid)
    own = jnp.zeros((batch, keys.shape[1], columns, 0, width), keys.dtype)
    if memory.branch is not None and view.slot is not None:
        own = memory.branch.keys
        back = view.slot - jnp.arange(own.shape[3])
        filled = (back >= 0) & (back < (own.shape[3] + 1 if window is None else window))
        filled = jnp.broadcast_to(filled, (batch, columns, own.shape[3]))
        seen = jnp.concatenate([seen, filled], axis=-1)

    def one(column: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        query, mine, seen = column
        scores = jnp.concatenate(
            [
                jnp.einsum("bkgh,bksh->bkgs", query, part, preferred_element_type=jnp.float32)
                for part in (keys, mine)
            ],
            axis=-1,
        )
        scores = jnp.where(seen[:, None, None], scores * scale, jnp.finfo(jnp.float32).min)
        return scores.max(axis=-1), jax.nn.logsumexp(scores, axis=-1)

    by_column = (jnp.moveaxis(grouped, 1, 0), jnp.moveaxis(own, 2, 0), jnp.moveaxis(seen, 1, 0))
    found = jax.lax.map(one, by_column, batch_size=_COLUMNS)
    highest, total = (jnp.moveaxis(part, 0, 1).reshape(batch, columns, heads) for part in found)
    return highest, total


def _head_stages(head_input: Float[Array, "B T D"], kernel: Float[Array, "D W"]) -> Stages:
    ids = jnp.asarray(logit_ids(kernel.shape[1]))
    top = min(TOP, kernel.shape[1])

    def read(rows: Float[Array, "R D"]) -> tuple[Array, Array, Array, Array]:
        logits = project(rows, kernel)
        total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        return logits[:, ids], total, *jax.lax.top_k(logits, top)

    names = ("logits", "logits_lse", "top_logits", "top_ids")
    return dict(zip(names, in_chunks(read, kernel.shape[1], head_input), strict=True))


def _side_by_side(heads: Float[Array, "B K T H"]) -> Float[Array, "B T KH"]:
    return _flat(heads.swapaxes(1, 2))


def _flat(heads: Float[Array, "B T K H"]) -> Float[Array, "B T KH"]:
    return heads.reshape(*heads.shape[:2], -1)

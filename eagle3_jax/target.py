"""A dense Llama-family target: Llama, Qwen2, Qwen3, Mistral.

    ids -> embed_tokens = boundary 0 -> layer -> boundary 1 -> ... -> boundary L -> norm -> head

It yields the residual stream at any boundary, the last state before and after the final norm,
and, with a memory, serves cached decoding.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.config import TargetConfig
from eagle3_jax.layers import DecoderLayer, RMSNorm
from eagle3_jax.ops import project
from eagle3_jax.rope import rotation
from eagle3_jax.structs import KV, Memory, TargetOutput, View


class Target(nn.Module):
    """The target as a pure function: `Target(config).apply({"params": p}, ids, ...)`."""

    config: TargetConfig

    def setup(self) -> None:
        """Declare the table, the layers, the final norm and an untied head."""
        c = self.config
        self.embed_tokens = self.param(
            "embed_tokens", nn.initializers.normal(0.02), (c.vocab_size, c.hidden_size)
        )
        self.layers = [DecoderLayer(c) for _ in range(c.num_layers)]
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        if not c.tie_embeddings:
            self.lm_head = nn.Dense(c.vocab_size, use_bias=False)

    def __call__(
        self,
        ids: Int[Array, "B T"],
        boundaries: tuple[int, ...] = (),
        memory: tuple[Memory, ...] | None = None,
        start: Int[Array, " B"] | None = None,
    ) -> TargetOutput:
        """Run T tokens, from position 0 or, with a memory, from `start[b]` on.

        Args:
            ids: tokens. Padding goes on the right, where no earlier column sees it.
            boundaries: the boundaries whose states are wanted, 0 (embeddings) to L.
            memory: keys of earlier tokens, one `Memory` per layer (`empty_memory`).
            start: position and context slot of each row's first token; needs `memory`.

        Returns:
            States and the memory with the new keys in it.
        """
        c = self.config
        offsets = jnp.arange(ids.shape[1])[None]
        slots = offsets + (jnp.zeros_like(ids[:, :1]) if start is None else start[:, None])
        turn = rotation(c.rope, c.attention.head_dim, slots)
        windows = c.windows or (None,) * c.num_layers
        seen = None if start is None else slots

        x = self.embed_tokens[ids]
        states = {0: x}
        remembered = []
        for index, layer in enumerate(self.layers):
            earlier = None if memory is None else memory[index]
            x, kept = layer(x, turn, earlier, View(seen, windows[index], start=start))
            remembered.append(kept)
            states[index + 1] = x
        post_norm = self.norm(x)
        if self.is_initializing() and not c.tie_embeddings:
            self.lm_head(post_norm)
        chosen = [states[b] for b in boundaries]
        stacked = jnp.stack(chosen, axis=2) if chosen else jnp.zeros((*x.shape[:2], 0, x.shape[2]))
        return TargetOutput(stacked, x, post_norm, tuple(remembered))


def head_kernel(config: TargetConfig, params: dict[str, Any]) -> Float[Array, "D V"]:
    """The head as `[Dt, V]`: `lm_head`, or the embedding table where they are tied."""
    return params["embed_tokens"].T if config.tie_embeddings else params["lm_head"]["kernel"]


def logits(
    config: TargetConfig, params: dict[str, Any], post_norm: Float[Array, "*dims D"]
) -> Float[Array, "*dims V"]:
    """The target's logits in float32."""
    return project(post_norm, head_kernel(config, params))


def empty_memory(
    config: TargetConfig, rows: int, length: int, dtype: DTypeLike
) -> tuple[Memory, ...]:
    """A memory of `length` slots for each of `rows` rows, nothing in it yet."""
    a = config.attention
    shape = (rows, a.num_kv_heads, length, a.head_dim)
    return tuple(
        Memory(KV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)))
        for _ in range(config.num_layers)
    )

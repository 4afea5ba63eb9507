"""The Linen parts that draft and target layers share, named as checkpoints name them.

Linen declares parameters; the arithmetic is in `ops`. Kernels stay 2-D and `[in, out]`.
"""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from eagle3_jax.config import AttentionConfig, DraftConfig, TargetConfig
from eagle3_jax.ops import attend, rms_norm, rotate, write_branch, write_context
from eagle3_jax.structs import KV, Memory, Rotation, View


def apply(module: nn.Module, params: dict[str, Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a module as the pure function of its parameters that it is.

    Linen's own `apply` also answers for mutable collections, which nothing here has.
    """
    return module.apply({"params": params}, *arguments, **keywords)


class RMSNorm(nn.Module):
    """RMSNorm with one weight per channel (`scale`)."""

    width: int
    eps: float

    def setup(self) -> None:
        """Declare the weight."""
        self.scale = self.param("scale", nn.initializers.ones, (self.width,))

    def __call__(self, x: Float[Array, "*dims D"]) -> Float[Array, "*dims D"]:
        """Normalise over the last axis."""
        return rms_norm(x, self.scale, self.eps)


class Attention(nn.Module):
    """Grouped-query attention with RoPE; its input may be wider than its output."""

    config: AttentionConfig
    hidden_size: int
    eps: float

    def setup(self) -> None:
        """Declare the projections and, for Qwen3, the norms of query and key heads."""
        c = self.config
        self.q_proj = nn.Dense(c.num_heads * c.head_dim, use_bias=c.bias)
        self.k_proj = nn.Dense(c.num_kv_heads * c.head_dim, use_bias=c.bias)
        self.v_proj = nn.Dense(c.num_kv_heads * c.head_dim, use_bias=c.bias)
        self.o_proj = nn.Dense(self.hidden_size, use_bias=c.output_bias)
        if c.qk_norm:
            self.q_norm = RMSNorm(c.head_dim, self.eps)
            self.k_norm = RMSNorm(c.head_dim, self.eps)

    def __call__(
        self,
        x: Float[Array, "B T I"],
        rotation: Rotation,
        memory: Memory | None,
        view: View,
    ) -> tuple[Float[Array, "B T D"], Memory]:
        """Attend from every column and remember its key.

        Args:
            x: input, for a draft's first layer [embedding, hidden].
            rotation: RoPE of the query columns.
            memory: earlier keys; `None` for an uncached forward pass.
            view: where new keys go and what is seen.

        Returns:
            The output and the memory with the new keys in it.
        """
        c = self.config
        batch, columns, _ = x.shape
        query = self.q_proj(x).reshape(batch, columns, c.num_heads, c.head_dim)
        key = self.k_proj(x).reshape(batch, columns, c.num_kv_heads, c.head_dim)
        value = self.v_proj(x).reshape(batch, columns, c.num_kv_heads, c.head_dim)
        if c.qk_norm:
            query, key = self.q_norm(query), self.k_norm(key)
        query = rotate(query, rotation)
        new = KV(rotate(key, rotation).swapaxes(1, 2), value.swapaxes(1, 2))
        memory = _remember(memory, new, view)
        branch = None if view.slot is None else memory.branch
        mixed = attend(
            query,
            memory.context,
            view.context_mask,
            branch,
            view.slot,
            c.head_dim**-0.5,
            c.sliding_window,
        )
        return self.o_proj(mixed.reshape(batch, columns, -1)), memory


def _remember(memory: Memory | None, new: KV, view: View) -> Memory:
    if view.slot is None:
        context = memory.context if memory is not None else None
        branch = memory.branch if memory is not None else None
        return Memory(write_context(context, new, view.start), branch)
    assert memory is not None, "a branch slot needs a memory"
    assert memory.branch is not None, "a branch slot needs a branch"
    return memory._replace(branch=write_branch(memory.branch, new, view.slot))


class Mlp(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`."""

    intermediate_size: int
    hidden_size: int
    bias: bool

    def setup(self) -> None:
        """Declare the three projections."""
        self.gate_proj = nn.Dense(self.intermediate_size, use_bias=self.bias)
        self.up_proj = nn.Dense(self.intermediate_size, use_bias=self.bias)
        self.down_proj = nn.Dense(self.hidden_size, use_bias=self.bias)

    def __call__(self, x: Float[Array, "*dims D"]) -> Float[Array, "*dims D"]:
        """Apply to every position."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """A pre-norm decoder layer: every layer of a target, and a draft's layers after the first."""

    config: DraftConfig | TargetConfig

    def setup(self) -> None:
        """Declare norms, attention and MLP under Hugging Face's names."""
        c = self.config
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c.attention, c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c.intermediate_size, c.hidden_size, c.mlp_bias)

    def __call__(
        self, x: Float[Array, "B T D"], turn: Rotation, memory: Memory | None, view: View
    ) -> tuple[Float[Array, "B T D"], Memory]:
        """From one boundary to the next."""
        mixed, memory = self.self_attn(self.input_layernorm(x), turn, memory, view)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), memory

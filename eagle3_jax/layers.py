"""The Linen parts that draft and target layers share, named as checkpoints name them.

Linen declares parameters; the arithmetic is in `ops`. Kernels stay 2-D and `[in, out]`.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.attention import attend, write_branch, write_context
from eagle3_jax.config import (
    AttentionConfig,
    DraftConfig,
    LatentAttentionConfig,
    RopeConfig,
    TargetConfig,
)
from eagle3_jax.ops import rms_norm, rotate
from eagle3_jax.rope import score_factor
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
        mixed, memory = _attend_and_remember(query, new, memory, view, c.head_dim**-0.5)
        return self.o_proj(mixed), memory


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2, section 2.1), its keys and values written out.

        x -> q_a_proj -> q_a_layernorm -> q_b_proj -> N x [nope, rope]     or q_proj alone
        x -> kv_a_proj_with_mqa -> [latent, rope]                          one rope slice for all
        latent -> kv_a_layernorm -> kv_b_proj -> N x [nope, value]

    Servers keep the latent and fold `kv_b_proj` into queries and output, which is the same sum in
    another order.
    """

    config: LatentAttentionConfig
    rope: RopeConfig
    hidden_size: int
    eps: float

    def setup(self) -> None:
        """Declare the projections and the norms of the latents; there are no biases."""
        c = self.config
        # The latents' epsilon is the configured one, as in SGLang and vLLM. transformers'
        # DeepseekV3Attention has 1e-6 there, whatever the config says.
        if c.q_lora_rank is None:
            self.q_proj = nn.Dense(c.num_heads * c.head_dim, use_bias=False)
        else:
            self.q_a_proj = nn.Dense(c.q_lora_rank, use_bias=False)
            self.q_a_layernorm = RMSNorm(c.q_lora_rank, self.eps)
            self.q_b_proj = nn.Dense(c.num_heads * c.head_dim, use_bias=False)
        self.kv_a_proj_with_mqa = nn.Dense(c.kv_lora_rank + c.qk_rope_head_dim, use_bias=False)
        self.kv_a_layernorm = RMSNorm(c.kv_lora_rank, self.eps)
        self.kv_b_proj = nn.Dense(c.num_heads * (c.qk_nope_head_dim + c.v_head_dim), use_bias=False)
        self.o_proj = nn.Dense(self.hidden_size, use_bias=False)

    def __call__(
        self,
        x: Float[Array, "B T I"],
        rotation: Rotation,
        memory: Memory | None,
        view: View,
    ) -> tuple[Float[Array, "B T D"], Memory]:
        """Attend from every column and remember its key; arguments as of `Attention`."""
        c = self.config
        batch, columns, _ = x.shape
        if c.q_lora_rank is None:
            query = self.q_proj(x)
        else:
            query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        query = query.reshape(batch, columns, c.num_heads, c.head_dim)
        latent, key_rope = jnp.split(self.kv_a_proj_with_mqa(x), [c.kv_lora_rank], axis=-1)
        key_value = self.kv_b_proj(self.kv_a_layernorm(latent))
        key_value = key_value.reshape(batch, columns, c.num_heads, -1)

        query_nope, query_rope = jnp.split(query, [c.qk_nope_head_dim], axis=-1)
        key_nope, value = jnp.split(key_value, [c.qk_nope_head_dim], axis=-1)
        query_rope = rotate(query_rope, rotation, interleaved=True)
        key_rope = rotate(key_rope[:, :, None], rotation, interleaved=True)
        key_rope = jnp.broadcast_to(key_rope, query_rope.shape)
        query = jnp.concatenate([query_nope, query_rope], axis=-1)
        key = jnp.concatenate([key_nope, key_rope], axis=-1)

        new = KV(key.swapaxes(1, 2), value.swapaxes(1, 2))
        scale = c.head_dim**-0.5 * score_factor(self.rope)
        mixed, memory = _attend_and_remember(query, new, memory, view, scale)
        return self.o_proj(mixed), memory


def attention_of(config: DraftConfig | TargetConfig) -> Attention | LatentAttention:
    """The attention of every layer of a draft or a target, of the kind that its config names."""
    match config.attention:
        case AttentionConfig() as heads:
            return Attention(heads, config.hidden_size, config.rms_norm_eps)
        case LatentAttentionConfig() as heads:
            return LatentAttention(heads, config.rope, config.hidden_size, config.rms_norm_eps)


def _attend_and_remember(
    query: Float[Array, "B T N H"],
    new: KV,
    memory: Memory | None,
    view: View,
    scale: float,
) -> tuple[Float[Array, "B T NHv"], Memory]:
    """Put the new keys where the view says, attend, and lay the heads side by side."""
    memory = _remember(memory, new, view)
    mixed = attend(query, memory.context, memory.branch, view, scale)
    return mixed.reshape(*mixed.shape[:2], -1), memory


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
        self.self_attn = attention_of(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c.intermediate_size, c.hidden_size, c.mlp_bias)

    def __call__(
        self, x: Float[Array, "B T D"], turn: Rotation, memory: Memory | None, view: View
    ) -> tuple[Float[Array, "B T D"], Memory]:
        """From one boundary to the next."""
        mixed, memory = self.self_attn(self.input_layernorm(x), turn, memory, view)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), memory

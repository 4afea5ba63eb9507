"""The EAGLE-3 draft: the only Linen file of its mathematics.

    aux [A*Dt] -> (input_norm | fc_norm) -> fc -> x                                    step 0 only
    a = attention([input_layernorm(e), hidden_norm(x)])                      embedding half first
    y = r + a          r = x, or hidden_norm(x) with norm_before_residual
    z = y + mlp(post_attention_layernorm(y))
    head reads norm(z); the next step is fed z, or norm(z) with norm_output

Attributes carry the checkpoint's names. `Drafter(config).init` gives the parameters,
`Drafter(config).apply({"params": p}, ...)` is the only way in; nothing is mutable.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import DraftConfig
from eagle3_jax.layers import DecoderLayer, Mlp, RMSNorm, attention_of
from eagle3_jax.rope import rotation
from eagle3_jax.structs import KV, DraftStep, Memory, Rotation, View
from eagle3_jax.wiring import Wiring, choose


class FirstLayer(nn.Module):
    """The midlayer: attention reads [embedding, hidden], the residual carries the hidden half."""

    config: DraftConfig
    wiring: Wiring

    def setup(self) -> None:
        """Declare three norms, attention and MLP."""
        c = self.config
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = attention_of(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = Mlp(c.intermediate_size, c.hidden_size, c.mlp_bias)

    def __call__(
        self,
        embeddings: Float[Array, "B T D"],
        hidden: Float[Array, "B T D"],
        turn: Rotation,
        memory: Memory | None,
        view: View,
    ) -> tuple[Float[Array, "B T D"], Memory]:
        """One layer over every column."""
        w = self.wiring
        once = choose(w.double_norm, lambda: hidden, lambda: self.input_layernorm(hidden))
        hidden_half = self.hidden_norm(once)
        residual = choose(w.residual, lambda: hidden, lambda: hidden_half, lambda: embeddings)
        pair = jnp.concatenate([self.input_layernorm(embeddings), hidden_half], axis=-1)
        mixed, memory = self.self_attn(pair, turn, memory, view)
        x = residual + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), memory


class Drafter(nn.Module):
    """An EAGLE-3 draft as a pure function of its parameters.

    `__call__` is step 0: it reads the target's aux states. `extend` is step k > 0: it reads the
    state that the draft itself produced. Logits are `ops.project(step.head_input, kernel)` with
    the kernel of `head_kernel`, so that a caller may take them in chunks.

    Attributes:
        config: what the draft holds.
        wiring: how that is joined; by default as the config says.
    """

    config: DraftConfig
    wiring: Wiring | None = None

    def setup(self) -> None:
        """Declare what the config says that the checkpoint holds, no more."""
        c = self.config
        if c.num_aux:
            self.fc = nn.Dense(c.hidden_size, use_bias=c.fc_bias)
        if c.norm_before_fc:
            self.input_norm = RMSNorm(c.aux_width, c.rms_norm_eps)
        if c.fc_norm:
            self.fc_norm = [RMSNorm(c.target_hidden_size, c.rms_norm_eps) for _ in range(c.num_aux)]
        self.joined = self.wiring or Wiring.of(c)
        later = [DecoderLayer(c) for _ in range(c.num_layers - 1)]
        self.layers = [FirstLayer(c, self.joined), *later]
        if c.final_norm:
            self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        if c.head == "own":
            self.lm_head = nn.Dense(c.draft_vocab_size, use_bias=False)

    def __call__(
        self,
        embeddings: Float[Array, "B T D"],
        aux: Float[Array, "B T AD"],
        positions: Int[Array, "B T"],
        *,
        memory: tuple[Memory, ...] | None = None,
        start: Int[Array, " B"] | None = None,
        valid: Bool[Array, "B T"] | None = None,
    ) -> DraftStep:
        """Step 0 over T columns.

        Args:
            embeddings: of each column's *next* token, x[t+1].
            aux: the target's states at x[t]: A boundaries, ascending, laid side by side.
            positions: RoPE position of each column.
            memory: keys of earlier columns, to go on after them; none for a whole text.
            start: `[B]`, context slot of each row's first column; needs `memory`.
            valid: false on padding, whose keys nobody sees; without `memory` only.

        Returns:
            States, head input and the memory with the new context keys.

        Raises:
            ValueError: when `aux` has another width than the draft's `fc` reads.
        """
        if aux.shape[-1] != self.config.aux_width:
            raise ValueError(
                f"aux states have width {aux.shape[-1]}, expected {self.config.aux_width}: "
                f"{max(self.config.num_aux, 1)} x {self.config.target_hidden_size}"
            )
        slots = None if start is None else start[:, None] + jnp.arange(embeddings.shape[1])
        view = View(slots, self.config.attention.sliding_window, key_valid=valid, start=start)
        return self._step(embeddings, self.fuse(aux), positions, memory, view)

    def extend(
        self,
        embeddings: Float[Array, "B T D"],
        state: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        memory: tuple[Memory, ...],
        view: View,
    ) -> DraftStep:
        """Step k > 0 over T columns.

        Args:
            embeddings: of each column's token of this step, x[t+1+k] or the draft's own.
            state: the state that each column was handed by step k-1.
            positions: RoPE position of each column at this step: that of step 0, plus k.
            memory: context keys, and the branch or the room that `view` writes into.
            view: a branch slot for all columns of a text, or the next context slot for one.

        Returns:
            States, head input and the memory with the new keys.
        """
        return self._step(embeddings, state, positions, memory, view)

    def fuse(self, aux: Float[Array, "B T AD"]) -> Float[Array, "B T D"]:
        """Project the target's states to the draft's width; without `fc` they pass unchanged."""
        aux = choose(self.joined.pre_fc_norm, lambda: aux, lambda: self._norm_aux(aux))
        return self.fc(aux) if self.config.num_aux else aux

    def _norm_aux(self, aux: Float[Array, "B T AD"]) -> Float[Array, "B T AD"]:
        if self.config.norm_before_fc:
            return self.input_norm(aux)
        parts = jnp.split(aux, self.config.num_aux, axis=-1)
        normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
        return jnp.concatenate(normed, axis=-1)

    def _step(
        self,
        embeddings: Float[Array, "B T D"],
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        memory: tuple[Memory, ...] | None,
        view: View,
    ) -> DraftStep:
        c, w = self.config, self.joined
        dim = c.attention.rope_dim
        turn = choose(w.rope, *(partial(rotation, rope, dim, positions) for rope in w.ropes))
        remembered = []
        for index, layer in enumerate(self.layers):
            earlier = None if memory is None else memory[index]
            if index == 0:
                x, kept = layer(embeddings, x, turn, earlier, view)
            else:
                x, kept = layer(x, turn, earlier, view)
            remembered.append(kept)
        head_input = choose(w.final_norm, lambda: x, lambda: self.norm(x))
        state = choose(w.norm_output, lambda: x, lambda: head_input)
        if self.is_initializing() and c.head == "own":
            self.lm_head(head_input)
        return DraftStep(state, head_input, tuple(remembered))


def empty_memory(
    config: DraftConfig, rows: int, length: int, dtype: DTypeLike
) -> tuple[Memory, ...]:
    """Room for `length` columns in each of `rows` rows, for cached drafting."""
    a = config.attention
    keys, values = (
        jnp.zeros((rows, a.num_kv_heads, length, width), dtype)
        for width in (a.head_dim, a.v_head_dim)
    )
    layer = Memory(KV(keys, values))
    return (layer,) * config.num_layers


def head_kernel(
    config: DraftConfig,
    params: dict[str, Any],
    embedding_table: Float[Array, "V D"] | None = None,
    target_head: Float[Array, "D V"] | None = None,
) -> Float[Array, "D W"]:
    """The rows that make logits, as `[D, W]`, from where the config says they are.

    Raises:
        ValueError: when they are the embeddings' or the target's and those are not given, or are
            of another shape.
    """
    due = (config.hidden_size, config.draft_vocab_size)
    if config.head == "own":
        kernel = params["lm_head"]["kernel"]
        require_shape("the draft's head", kernel, "[D,W]", due)
        return kernel
    if config.head == "tied":
        if embedding_table is None:
            raise ValueError("the draft's head is its embedding table, which is not given")
        require_shape("the draft's embedding table", embedding_table, "[V,D]", due[::-1])
        return embedding_table.T
    if target_head is None:
        raise ValueError("the draft has no head, expected the target's head")
    require_shape("the target's head", target_head, "[D,V]", due)
    return target_head


def require_shape(
    name: str, array: Array | np.ndarray, letters: str, expected: tuple[int, ...]
) -> None:
    """Refuse an array of another shape than a draft's config says.

    Args:
        name: of the array, for the message.
        array: on the host or the device.
        letters: its axes.
        expected: their lengths.

    Raises:
        ValueError: when it is of another shape.
    """
    if array.shape != expected:
        raise ValueError(
            f"{name} has shape {list(array.shape)}, expected {letters} = {list(expected)}"
        )

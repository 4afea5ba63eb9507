"""What a draft and a target are made of: frozen, validated, free of JAX.

Every knob by which EAGLE-3 checkpoints differ is one named field here, so a converter that fills
a `DraftConfig` completely has lost nothing. Foreign key names and their defaults live in
`converters`; here a value is always explicit or has the one default of the EAGLE-3 paper's draft.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LinearScaling:
    """Positions divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class DynamicScaling:
    """NTK-aware theta that grows once a row is longer than `original_max_positions`."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: a ramp over dimensions between extrapolation and interpolation, and a magnitude."""

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE (Phi-3): one divisor per frequency, another list past `original_max_positions`."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_positions: int
    factor: float
    attention_factor: float | None = None


RopeScaling = LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base, rotated share of a head, and the scaling, if any.

    Attributes:
        theta: base of the geometric frequencies.
        partial: share of an attention's `rope_dim` that is rotated; the rest passes through
            untouched.
        scaling: how frequencies change for long contexts; `None` is the plain form.
    """

    theta: float = 10000.0
    partial: float = 1.0
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        """Refuse a base or a share that no model can have."""
        if not self.theta > 0:
            raise ValueError(f"rope theta is {self.theta}, expected a positive number")
        if self.scaling is not None and not self.scaling.factor > 0:
            raise ValueError(f"rope factor is {self.scaling.factor}, expected a positive number")
        if not 0 < self.partial <= 1:
            raise ValueError(f"rope partial is {self.partial}, expected 0 < partial <= 1")

    def rotated(self, rope_dim: int) -> int:
        """Dimensions that are rotated of the `rope_dim` of a head that RoPE is given.

        Raises:
            ValueError: when that number is odd, or LongRoPE lists do not fit it.
        """
        size = int(rope_dim * self.partial)
        if size % 2:
            raise ValueError(
                f"rope rotates {size} of {rope_dim} dimensions, expected an even number"
            )
        if isinstance(self.scaling, LongRopeScaling):
            for name in ("short_factor", "long_factor"):
                found = len(getattr(self.scaling, name))
                if found != size // 2:
                    raise ValueError(f"rope {name} has {found} values, expected {size // 2}")
        return size


@dataclass(frozen=True)
class AttentionConfig:
    """Grouped-query attention: N query heads, K key-value heads of H dimensions each.

    Attributes:
        bias: q, k and v projections have a bias.
        output_bias: the output projection has a bias.
        qk_norm: RMSNorm over each query and key head before RoPE (Qwen3).
        sliding_window: a query sees only keys less than this many positions back.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        """Refuse head counts that cannot be grouped."""
        _require_positive(
            num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim
        )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.sliding_window is not None:
            _require_positive(sliding_window=self.sliding_window)

    @property
    def v_head_dim(self) -> int:
        """Width of a value head: that of a key head."""
        return self.head_dim

    @property
    def rope_dim(self) -> int:
        """Width of the part of a head that RoPE is given: all of it."""
        return self.head_dim


@dataclass(frozen=True)
class LatentAttentionConfig:
    """Multi-head latent attention (MLA): queries, keys and values made from narrow latents.

    A query or key head is a slice without position and a slice that RoPE turns, which all key
    heads share; a value head has a width of its own. There are no biases and no window.

    Attributes:
        num_heads: N, heads of queries, keys and values alike.
        q_lora_rank: width of the query latent; `None` projects queries straight from the input.
        kv_lora_rank: width of the latent that keys and values share.
        qk_nope_head_dim: width of the slice of a query or key head without position.
        qk_rope_head_dim: width of the slice that RoPE turns.
        v_head_dim: width of a value head.
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        """Refuse widths that no layer could have."""
        _require_positive(
            num_heads=self.num_heads,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
        )
        if self.q_lora_rank is not None:
            _require_positive(q_lora_rank=self.q_lora_rank)

    @property
    def head_dim(self) -> int:
        """H, width of a query or key head: both its slices."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def num_kv_heads(self) -> int:
        """K: each query head has a key head of its own."""
        return self.num_heads

    @property
    def rope_dim(self) -> int:
        """Width of the part of a head that RoPE is given."""
        return self.qk_rope_head_dim

    @property
    def sliding_window(self) -> None:
        """No window: a query sees all earlier keys."""
        return None


HeadSource = Literal["own", "tied", "target"]


@dataclass(frozen=True)
class DraftConfig:
    """An EAGLE-3 draft: dimensions and every knob by which checkpoints differ.

    Attributes:
        hidden_size: D, width of the draft.
        target_hidden_size: Dt, width of the target.
        intermediate_size: F.
        vocab_size: V, the target's vocabulary, which the draft's token ids are in.
        draft_vocab_size: W <= V, rows of the head.
        attention: heads of every layer, grouped-query or latent.
        rope: rotary embedding of every layer.
        num_aux: A, target states that feed `fc`; 0 is the last-state-only draft without `fc`.
        num_layers: decoder layers; only the first reads the embedding.
        rms_norm_eps: epsilon of every RMSNorm.
        norm_before_residual: the residual is the normed hidden state, not the raw one.
        norm_before_fc: one RMSNorm over the A*Dt fused states (`input_norm`).
        fc_norm: A RMSNorms, one per state (`fc_norm.{a}`).
        norm_output: the state fed back to the next step is the normed one.
        double_norm: the hidden half is normed by `input_layernorm` before `hidden_norm`, as
            ModelOpt's trainer does.
        final_norm: `norm` exists; without it the head reads the raw state.
        fc_bias: `fc` has a bias.
        mlp_bias: the MLP's projections have biases.
        head: whose rows make logits: the draft's own `lm_head`, its token embeddings, or the
            target's head.
    """

    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    vocab_size: int
    draft_vocab_size: int
    attention: AttentionConfig | LatentAttentionConfig
    rope: RopeConfig = field(default_factory=RopeConfig)
    num_aux: int = 3
    num_layers: int = 1
    rms_norm_eps: float = 1e-5
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    double_norm: bool = False
    final_norm: bool = True
    fc_bias: bool = False
    mlp_bias: bool = False
    head: HeadSource = "own"

    def __post_init__(self) -> None:
        """Refuse combinations that no forward pass could mean."""
        _require_positive(
            hidden_size=self.hidden_size,
            target_hidden_size=self.target_hidden_size,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            draft_vocab_size=self.draft_vocab_size,
            num_layers=self.num_layers,
        )
        self.rope.rotated(self.attention.rope_dim)
        if self.num_aux < 0:
            raise ValueError(f"num_aux is {self.num_aux}, expected 0 or more")
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(
                f"draft_vocab_size {self.draft_vocab_size} is larger than "
                f"vocab_size {self.vocab_size}"
            )
        if self.norm_before_fc and self.fc_norm:
            raise ValueError(
                "norm_before_fc and fc_norm are both set, expected at most one: frameworks "
                "disagree on the order of the two"
            )
        if self.num_aux == 0:
            self._check_last_state_only()
        if self.head != "own" and self.draft_vocab_size != self.vocab_size:
            raise ValueError(
                f"head {self.head!r} has vocab_size {self.vocab_size} rows, "
                f"found draft_vocab_size {self.draft_vocab_size}"
            )

    def _check_last_state_only(self) -> None:
        if self.target_hidden_size != self.hidden_size:
            raise ValueError(
                f"a draft without fc reads states of width {self.target_hidden_size}, "
                f"expected its own width {self.hidden_size}"
            )
        for name in ("norm_before_fc", "fc_norm", "fc_bias"):
            if getattr(self, name):
                raise ValueError(f"{name} is set, but a draft with num_aux 0 has no fc")

    @property
    def aux_width(self) -> int:
        """Width of the target features that step 0 reads: A*Dt, or Dt without `fc`."""
        return max(self.num_aux, 1) * self.target_hidden_size


@dataclass(frozen=True)
class TargetConfig:
    """A dense Llama-family target: Llama, Qwen2, Qwen3, Mistral.

    Attributes:
        num_layers: L.
        windows: per layer, the sliding window or `None`; its length is L.
        tie_embeddings: the head is the embedding table.
    """

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_layers: int
    attention: AttentionConfig
    rope: RopeConfig = field(default_factory=RopeConfig)
    rms_norm_eps: float = 1e-5
    mlp_bias: bool = False
    tie_embeddings: bool = False
    windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        """Refuse sizes that no model can have."""
        _require_positive(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            vocab_size=self.vocab_size,
            num_layers=self.num_layers,
        )
        self.rope.rotated(self.attention.rope_dim)
        if self.windows and len(self.windows) != self.num_layers:
            raise ValueError(
                f"windows has {len(self.windows)} entries, expected one per layer: "
                f"{self.num_layers}"
            )


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}, expected a positive number")

"""Every tensor that a draft of some config holds."""

from eagle3_jax.config import AttentionConfig, DraftConfig


def expected_shapes(c: DraftConfig) -> dict[str, list[int]]:
    """The shape of each parameter, `[out, in]`, under canonical names."""
    d = c.hidden_size
    shapes: dict[str, list[int]] = {}

    def linear(name: str, rows: int, columns: int, bias: bool = False) -> None:
        shapes[f"{name}.weight"] = [rows, columns]
        if bias:
            shapes[f"{name}.bias"] = [rows]

    if c.num_aux:
        linear("fc", d, c.aux_width, c.fc_bias)
    if c.norm_before_fc:
        shapes["input_norm.weight"] = [c.aux_width]
    if c.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": [c.target_hidden_size] for i in range(c.num_aux)}
    for index in range(c.num_layers):
        layer = f"layers.{index}"
        for name, shape in _attention(c, 2 * d if index == 0 else d).items():
            shapes[f"{layer}.self_attn.{name}"] = shape
        linear(f"{layer}.mlp.gate_proj", c.intermediate_size, d, c.mlp_bias)
        linear(f"{layer}.mlp.up_proj", c.intermediate_size, d, c.mlp_bias)
        linear(f"{layer}.mlp.down_proj", d, c.intermediate_size, c.mlp_bias)
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["hidden_norm"] if index == 0 else []
        shapes |= {f"{layer}.{norm}.weight": [d] for norm in norms}
    if c.final_norm:
        shapes["norm.weight"] = [d]
    if c.head == "own":
        shapes["lm_head.weight"] = [c.draft_vocab_size, d]
    return shapes


def _attention(c: DraftConfig, width: int) -> dict[str, list[int]]:
    a, d = c.attention, c.hidden_size
    if not isinstance(a, AttentionConfig):
        queries = a.num_heads * a.head_dim
        shapes = {
            "kv_a_proj_with_mqa.weight": [a.kv_lora_rank + a.qk_rope_head_dim, width],
            "kv_a_layernorm.weight": [a.kv_lora_rank],
            "kv_b_proj.weight": [
                a.num_heads * (a.qk_nope_head_dim + a.v_head_dim),
                a.kv_lora_rank,
            ],
            "o_proj.weight": [d, a.num_heads * a.v_head_dim],
        }
        if a.q_lora_rank is None:
            return shapes | {"q_proj.weight": [queries, width]}
        return shapes | {
            "q_a_proj.weight": [a.q_lora_rank, width],
            "q_a_layernorm.weight": [a.q_lora_rank],
            "q_b_proj.weight": [queries, a.q_lora_rank],
        }
    rows = {
        "q_proj": a.num_heads * a.head_dim,
        "k_proj": a.num_kv_heads * a.head_dim,
        "v_proj": a.num_kv_heads * a.head_dim,
    }
    shapes = {f"{name}.weight": [count, width] for name, count in rows.items()}
    shapes["o_proj.weight"] = [d, a.num_heads * a.head_dim]
    if a.bias:
        shapes |= {f"{name}.bias": [count] for name, count in rows.items()}
    if a.output_bias:
        shapes["o_proj.bias"] = [d]
    if a.qk_norm:
        shapes |= {f"{x}_norm.weight": [a.head_dim] for x in "qk"}
    return shapes

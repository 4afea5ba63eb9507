"""SGLang, its trainer and its port to JAX."""

from converters.dialects.base import (
    NO_PRE_FC_NORM,
    NO_SLOT,
    RAW_RESIDUAL,
    SERVED,
    Dialect,
    without,
)
from converters.dialects.safeailab import PLAIN_FLAGS, PLAIN_LACKS

_RAW = {"norm_before_residual": (False, RAW_RESIDUAL)}
_TRAINER_LACKS = (
    {name: why for name, why in PLAIN_LACKS.items() if name not in ("fc_norm", "norm_output")}
    | without("it has none", "longrope", "yarn_attention_factor")
    | without("it divides by mscale alone", "lone_mscale")
    | without("it stretches short texts too", "dynamic")
)

# `norm_output` changed its meaning: SpecForge up to 0.2.0 (a6b6b023) norms what the head reads
# where it is true, which is its default, and never feeds a normed state back; from its pull
# request 879 on it says, as servers have it, whether the state fed back is the normed one.
SPECFORGE = Dialect(
    name="specforge",
    title="SpecForge, from pull request 879 on",
    source="sgl-project/SpecForge a6b6b023 and pull request 879, specforge/modeling/draft",
    witness="specforge",
    architecture="LlamaForCausalLMEagle3",
    ids="eagle_config",
    eagle_config={},
    spelled_yarn=True,
    embeddings="replaced",
    always=_RAW | {"norm_before_fc": (False, NO_PRE_FC_NORM)},
    lacks=_TRAINER_LACKS,
)
SPECFORGE_OLD = Dialect(
    name="specforge-0.2",
    title="SpecForge up to 0.2.0",
    source=SPECFORGE.source,
    witness="specforge",
    architecture=SPECFORGE.architecture,
    ids="eagle_config",
    eagle_config={},
    spelled_yarn=True,
    embeddings="replaced",
    always=SPECFORGE.always,
    lacks={name: why for name, why in _TRAINER_LACKS.items() if name != "no_final_norm"}
    | {"norm_output": PLAIN_LACKS["norm_output"]},
    norm_output_is_final_norm=True,
)
# srt/models/llama_eagle3.py: names that it does not know are dropped without a word.
# srt/layers/rotary_embedding/factory.py: dynamic scaling stretches short texts too, LongRoPE's
# factor is max_position_embeddings over the original length.
SGLANG = Dialect(
    name="sglang",
    title="SGLang",
    source="SGLang 0.5.23, srt/models/llama_eagle3.py and kimi_k25_eagle3.py",
    witness="sglang",
    architecture="LlamaForCausalLMEagle3",
    latent_architecture="Eagle3DeepseekV2ForCausalLM",
    later_norm="hidden_norm",
    ids="eagle_config",
    eagle_config={},
    embeddings="replaced",
    tied_head=True,
    borrowed_head=True,
    latent_counts_ids=True,
    biases="o",
    fc_bias_brings_output_bias=True,
    always=_RAW,
    lacks=SERVED
    | without(RAW_RESIDUAL, "norm_before_residual")
    | without("its projections have no biases, o_proj's aside", "attention_bias", "mlp_bias")
    | without(NO_SLOT, "qk_norm")
    | without("the window is an option of its server", "sliding_window")
    | without("it tells whether to apply fc by the width of what it reads", "square_fc")
    | without("its class with latent attention has none", "latent_norm_before_fc")
    | without("its class with latent attention has one layer", "latent_layers")
    | without("it fuses q_a_proj with kv_a_proj_with_mqa", "direct_queries")
    | without("it stretches short texts too", "dynamic")
    | without("its class with latent attention always turns by YaRN", "latent_other_scaling")
    | without("it reads none", "yarn_attention_factor", "longrope_attention_factor")
    | without("it takes the factor from the lengths", "longrope_factor"),
)
SGLANG_JAX = Dialect(
    name="sglang-jax",
    title="SGLang-JAX",
    source="sgl-project/sglang-jax cddbf6f1, models/llama_eagle3.py",
    architecture="LlamaForCausalLMEagle3",
    embeddings="unread",
    tied_head=True,
    borrowed_head=True,
    rope_parameters=True,
    always=PLAIN_FLAGS,
    lacks=PLAIN_LACKS
    | without("it tells whether to apply fc by the width of what it reads", "square_fc")
    | without("it never applies a scaling", "linear", "dynamic", "llama3", "yarn", "longrope"),
)

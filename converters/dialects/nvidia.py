"""NVIDIA's trainers and TensorRT-LLM."""

from converters.dialects.base import (
    ALWAYS_HEADED,
    FEEDS_RAW,
    NO_PRE_FC_NORM,
    NO_SLOT,
    NO_WINDOW,
    ONE_LAYER,
    RAW_RESIDUAL,
    SERVED,
    Dialect,
    without,
)

_RAW = {"norm_before_residual": (False, RAW_RESIDUAL)}
_TWICE = "its Hugging Face trainer norms the hidden half twice (since 2025-12-18, bdd10c2db)"
_MODELOPT_LACKS = (
    without(RAW_RESIDUAL, "norm_before_residual")
    | without(FEEDS_RAW, "norm_output")
    | without(NO_PRE_FC_NORM, "norm_before_fc", "fc_norm")
    | without(NO_SLOT, "fc_bias", "qk_norm")
    | without(NO_WINDOW, "sliding_window")
    | without("its fc reads states of the draft's own width", "target_width")
    | without("it turns whole heads", "partial_rotary")
    | without(ALWAYS_HEADED, "no_final_norm")
)

MODELOPT = Dialect(
    name="modelopt",
    title="ModelOpt's Hugging Face export (layers.*)",
    source="NVIDIA/Model-Optimizer a2fbac7b, torch/speculative/plugins and torch/export/plugins",
    witness="modelopt",
    architecture="LlamaForCausalLMEagle3",
    latent_architecture="Eagle3DeepseekV2ForCausalLM",
    first_layer="layers.0.",
    ids="eagle_config",
    eagle_config={
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
    },
    embeddings="unread",
    added_yarn=(32.0, 2048),
    maps=("d2t",),
    whole_maps=False,
    counts_ids=True,
    biases="qkvo",
    always=_RAW | {"norm_output": (False, FEEDS_RAW), "double_norm": (True, _TWICE)},
    doubts={
        "double_norm": f"{_TWICE}, and no server does: where another trainer made this draft, "
        "--set double_norm=false reads it so"
    },
    lacks=_MODELOPT_LACKS | without(_TWICE, "single_norm"),
)
MODELOPT_2025 = Dialect(
    name="modelopt-2025",
    title="ModelOpt's older export (midlayer.*)",
    source="NVIDIA/Model-Optimizer a6fa34cda to a34d613d3",
    architecture="LlamaForCausalLMEagle3",
    later_layers="midlayer.{i}.",
    ids="eagle_config",
    eagle_config={
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
    },
    embeddings="unread",
    added_yarn=(32.0, 2048),
    maps=("d2t",),
    whole_maps=False,
    counts_ids=True,
    biases="qkvo",
    always=_RAW | {"norm_output": (False, FEEDS_RAW)},
    doubts={
        "double_norm": "files of this form that ModelOpt wrote from 2025-12-18 on were trained "
        "with the hidden half normed twice: --set double_norm=true reads them so"
    },
    lacks=_MODELOPT_LACKS | SERVED,
)
MEGATRON = Dialect(
    name="modelopt-megatron",
    title="ModelOpt's Megatron export",
    source="NVIDIA/Model-Optimizer a2fbac7b, torch/export/plugins/mcore_llama.py",
    architecture="LlamaForCausalLMEagle3",
    later_layers="midlayer.{i}.",
    ids="eagle_config",
    eagle_config={},
    embeddings="unread",
    added_yarn=(32.0, 2048),
    maps=(),
    always=MODELOPT_2025.always,
    lacks=MODELOPT_2025.lacks,
    writable=False,
)
TENSORRT_LLM = Dialect(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    source="NVIDIA/TensorRT-LLM 00679c66, _torch/models/modeling_speculative.py",
    architecture="LlamaForCausalLMEagle3",
    later_layers="midlayer.{i}.",
    later_norm="hidden_norm",
    ids="eagle_config",
    eagle_config={},
    feedback_key="return_hidden_post_norm",
    embeddings="replaced",
    borrowed_head=True,
    whole_maps=False,
    biases="qkvo",
    always=_RAW,
    lacks=SERVED
    | without(RAW_RESIDUAL, "norm_before_residual")
    | without(NO_SLOT, "qk_norm")
    | without(NO_WINDOW, "sliding_window")
    | without("it tells whether to apply fc by the width of what it reads", "square_fc")
    | without("no architectures string is known to lead to its class", "latent_attention")
    | without("it reads none", "yarn_attention_factor", "longrope_attention_factor")
    | without("it takes the factor from the lengths", "longrope_factor"),
)
AUTOMODEL = Dialect(
    name="automodel",
    title="NeMo AutoModel",
    source="NVIDIA-NeMo/Automodel 36044ad3, components/speculative/eagle/draft_llama.py",
    architecture="LlamaEagle3DraftModel",
    latent_architecture="LlamaEagle3DraftModel",
    latent_model_type="deepseek_v3",
    first_layer="model.layers.0.",
    latent_first_layer="model.layers.0.",
    later_layers="model.layers.{i}.",
    prefix="model.",
    embeddings="needed",
    target_width_key=True,
    whole_maps=False,
    dtype_key="dtype",
    biases="qkvo",
    always=_RAW | {"norm_before_fc": (False, NO_PRE_FC_NORM)},
    lacks=SERVED
    | without(RAW_RESIDUAL, "norm_before_residual")
    | without(NO_PRE_FC_NORM, "norm_before_fc")
    | without(NO_SLOT, "fc_bias", "qk_norm")
    | without(ONE_LAYER, "layers")
    | without(NO_WINDOW, "sliding_window")
    | without("it always fuses aux states", "last_state_only")
    | without("its latent attention leaves mscale out of the scores", "latent_scaling"),
)

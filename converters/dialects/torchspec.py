"""TorchSpec: SpecForge's names, and latent attention."""

from converters.dialects.base import (
    NO_PRE_FC_NORM,
    NO_SLOT,
    NO_WINDOW,
    ONE_LAYER,
    RAW_RESIDUAL,
    SERVED,
    Dialect,
    without,
)

TORCHSPEC = Dialect(
    name="torchspec",
    title="TorchSpec",
    source="lightseekorg/TorchSpec 6f21829c, torchspec/models and tools/convert_to_hf.py",
    architecture="LlamaForCausalLMEagle3",
    latent_architecture="Eagle3DeepseekV2ForCausalLM",
    latent_first_layer="midlayer.",
    ids="eagle_config",
    eagle_config={},
    embeddings="own",
    whole_maps=False,
    always={
        "norm_before_residual": (False, RAW_RESIDUAL),
        "norm_before_fc": (False, NO_PRE_FC_NORM),
    },
    lacks=SERVED
    | without(RAW_RESIDUAL, "norm_before_residual")
    | without(NO_PRE_FC_NORM, "norm_before_fc")
    | without(NO_SLOT, "attention_bias", "output_bias", "mlp_bias", "fc_bias", "qk_norm")
    | without(NO_WINDOW, "sliding_window")
    | without("it always fuses aux states", "last_state_only")
    | without(ONE_LAYER, "layers")
    | without("it turns whole heads", "partial_rotary")
    | without("it has no such rotation", "longrope")
    | without("it stretches short texts too", "dynamic"),
)

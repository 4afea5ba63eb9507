"""vLLM, its port to TPUs and its trainer: boundaries at the top of the config."""

from converters.dialects.base import (
    NO_SLOT,
    NO_WINDOW,
    ONE_LAYER,
    SERVED,
    THREE_STATES,
    Dialect,
    without,
)
from converters.dialects.safeailab import PLAIN_FLAGS, PLAIN_LACKS

VLLM = Dialect(
    name="vllm",
    title="vLLM",
    source="vLLM 0.33.0, model_executor/models/llama_eagle3.py",
    architecture="Eagle3LlamaForCausalLM",
    latent_architecture="Eagle3DeepseekV2ForCausalLM",
    qk_norm_architecture="Eagle3Qwen3ForCausalLM",
    first_layer="layers.0.",
    numbering="boundary",
    ids="top",
    eagle_config={},
    embeddings="shared",
    borrowed_head=True,
    whole_maps=False,
    biases="qkvo",
    lacks=SERVED
    | without("its fc has no bias", "fc_bias")
    | without("its class with q/k norms has none", "qk_norm_mlp_bias", "qk_norm_output_bias")
    | without("its class with latent attention has none", "latent_norm_before_fc")
    | without("its class with latent attention always turns by YaRN", "latent_other_scaling"),
)
TPU_INFERENCE = Dialect(
    name="tpu-inference",
    title="tpu-inference",
    source="vllm-project/tpu-inference b8692ff0, models/jax/llama_eagle3.py",
    architecture="Eagle3LlamaForCausalLM",
    numbering="boundary",
    embeddings="own",
    always={name: value for name, value in PLAIN_FLAGS.items() if name != "norm_before_residual"},
    lacks={name: reason for name, reason in PLAIN_LACKS.items() if name != "norm_before_residual"}
    | without("it scales every rotation as Llama 3's", "linear", "dynamic", "yarn", "longrope"),
)
_ABSENT = (
    "speculators' class takes false where it is absent, its trainer's command line and vLLM's "
    "adapter take true"
)
SPECULATORS = Dialect(
    name="speculators",
    title="speculators, as its trainer saves",
    source="vllm-project/speculators 0.9.0, models/eagle3",
    witness="speculators",
    architecture="Eagle3DraftModel",
    first_layer="layers.0.",
    numbering="boundary",
    ids="top",
    embeddings="needed",
    whole_maps=False,
    dtype_key="dtype",
    biases="qkvo",
    nested_config=True,
    counts_ids=True,
    doubts={"norm_before_residual": _ABSENT},
    lacks=SERVED
    | without("its fc has no bias", "fc_bias")
    | without("it always fuses aux states", "last_state_only")
    | without("its fc reads states of the draft's own width", "target_width")
    | without("its layers are those of Llama and Qwen3", "latent_attention")
    | without("Qwen3's MLP has none", "qk_norm_mlp_bias"),
)
CONVERTED = Dialect(
    name="speculators-converted",
    title="speculators, as its converter writes",
    source="vllm-project/speculators 0.9.0, convert/eagle",
    witness="speculators",
    architecture="Eagle3Speculator",
    first_layer="layers.0.",
    numbering="boundary",
    ids="top",
    embeddings="shared",
    whole_maps=False,
    dtype_key="dtype",
    biases="qkvo",
    nested_config=True,
    doubts={"norm_before_residual": _ABSENT},
    lacks={name: reason for name, reason in SPECULATORS.lacks.items() if name != "target_width"}
    | without("it drops their weights", "norm_before_fc", "fc_norm")
    | without(NO_WINDOW, "sliding_window")
    | without(THREE_STATES, "num_aux")
    | without(ONE_LAYER, "layers")
    | without(NO_SLOT, "qk_norm"),
)

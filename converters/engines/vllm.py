"""vLLM with both of its runners, its port to TPUs, and its trainer as a reader."""

from dataclasses import replace

from converters.dialects.vllm import SPECULATORS as SPECULATORS_FILES
from converters.dialects.vllm import TPU_INFERENCE as TPU_FILES
from converters.dialects.vllm import VLLM as VLLM_FILES
from converters.engines.base import ClassRule, Engine, Kind, Option

_RAW = ClassRule("boundary", source="model_executor/models/interfaces.py:1616-1650")
_LLAMA: dict[str, Kind] = dict.fromkeys(
    (
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "PEagleDraftModel",
        "PeagleLlamaForCausalLM",
    ),
    "llama",
)
_REGISTRY: dict[str, Kind] = _LLAMA | {
    "Eagle3Qwen3ForCausalLM": "qwen3",
    "PeagleQwen3ForCausalLM": "qwen3",
    "Eagle3DeepseekV2ForCausalLM": "latent",
    "Eagle3DeepseekV3ForCausalLM": "latent",
}
_TOP_FLAGS = {
    name: (name,) for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
}
# transformers_utils/configs/speculators/algos.py:37: where the key is absent.
_ADAPTER = {"norm_before_residual": True}
_STATED = ("num_aux_hidden_states", "eagle_config ids")

VLLM = Engine(
    name="vllm",
    version="0.33.0, V1 runner",
    dialect=VLLM_FILES,
    source=f"{VLLM_FILES.source}, v1/worker/gpu_model_runner.py:5190-5224",
    general=_RAW,
    places=("top", "eagle_config"),
    counts={
        "llama": _STATED,
        "latent": _STATED,
        "qwen3": ("num_aux_layers", "num_aux_hidden_states", "top ids", "eagle_config ids"),
    },
    reads_last_state_only=True,
    architectures=_REGISTRY,
    renaming="prefix",
    nested="adapted",
    adapter_defaults=_ADAPTER,
    first=("midlayer.", "layers.0."),
    later=("layers.{i}.",),
    unknown="refused",
    silent=("input_norm.", "fc.weight"),
    builds="stated",
    flag_keys=_TOP_FLAGS | {"norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc")},
    output_bias=("attention_bias", "bias"),
    whole_map="refused",
    launch=(
        Option(
            '--speculative-config {{"method": "eagle3", "model": "{draft}", '
            '"num_speculative_tokens": 3}}'
        ),
    ),
    rules=(
        Option("layer ids are boundaries wherever they stand: outputs are read one layer early"),
        Option(
            "the draft's max_position_embeddings gives way to the target's context length "
            "(config/speculative.py)"
        ),
    ),
)
VLLM_NEW_RUNNER = replace(
    VLLM,
    name="vllm-new-runner",
    version="0.33.0, new runner",
    source=f"{VLLM_FILES.source}, v1/worker/gpu/spec_decode/eagle/eagle3_utils.py:114-150",
    places=("top", "eagle_config.layer_ids"),
    rules=(
        Option(
            "eagle_config.eagle_aux_hidden_state_layer_ids is never read: only ids at the top, or "
            "eagle_config.layer_ids, both as boundaries"
        ),
        *VLLM.rules[1:],
    ),
)
TPU_INFERENCE = Engine(
    name="tpu-inference",
    version="b8692ff0",
    dialect=TPU_FILES,
    source=f"{TPU_FILES.source}, models/jax/llama3.py:338-340, models/jax/utils/weight_utils.py",
    classes={"llama": ClassRule("boundary", source="models/jax/llama3.py:338-340")},
    general=ClassRule("boundary", source="models/jax/llama3.py:338-340"),
    architectures={"Eagle3LlamaForCausalLM": "llama"},
    renaming="prefix",
    nested="adapted",
    adapter_defaults=_ADAPTER,
    unknown="refused",
    flag_keys={"norm_before_residual": ("norm_before_residual",)},
    needs_draft_vocab=True,
    rope="llama3",
    default_theta=500000.0,
    launch=VLLM.launch,
    rules=(
        Option("layer ids are never read: boundaries 2, L//2, L-3, fixed"),
        Option("without rope_theta it turns with 500000 (models/jax/llama3.py)"),
        Option("of its JAX targets only Llama captures states for EAGLE-3", "other_class"),
    ),
)
SPECULATORS = Engine(
    name="speculators",
    version="0.9.0",
    dialect=SPECULATORS_FILES,
    source=f"{SPECULATORS_FILES.source}, scripts/launch_vllm.py:119-141",
    general=ClassRule("boundary", source="scripts/launch_vllm.py:119-141"),
    places=("top",),
    counts={"llama": ("top ids",), "qwen3": ("top ids",)},
    architectures={"Eagle3DraftModel": "llama"},
    nested="needed",
    first=("layers.0.",),
    later=("layers.{i}.",),
    builds="stated",
    flag_keys=_TOP_FLAGS,
    output_bias=("attention_bias",),
    rules=(
        Option(
            "it trains and converts; its drafts are served by vLLM, whose adapter takes "
            "norm_before_residual as true where the key is absent"
        ),
    ),
)

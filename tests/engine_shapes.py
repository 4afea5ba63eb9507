"""Widths, layers, states and classes that not every server builds; expectations by hand."""

from tests.engine_samples import (
    ATTENTION,
    EVEN,
    EVEN_KEYS,
    LATENT,
    LATENT_KEYS,
    SECOND,
    WIDE_FC,
    Trap,
)
from tests.raw_drafts import ABSENT, LAYER_IDS, WHOLE, noise

VLLM_ARCH = {"architectures": ["Eagle3LlamaForCausalLM"]}


TRAPS = [
    Trap(
        "a wrong head_dim",
        {
            "sglang vllm": {
                "refused": "it builds heads of 2 (config head_dim 2), the tensors' are of 4"
            }
        },
        {"head_dim": 2, "num_attention_heads": 4},
    ),
    Trap(
        "other sizes in the config",
        {"sglang vllm": {"refused": "intermediate_size is 64 in the config, 16 by the tensors"}},
        {"intermediate_size": 64},
    ),
    Trap(
        "a second layer's norm, vLLM's name",
        {
            "sglang": {
                "config.num_layers": 2,
                "missing": ("layers.1.hidden_norm.weight",),
                "dropped": {"layers.1.input_layernorm.weight": "it norms with hidden_norm there"},
            },
            "vllm": {"missing": (), "dropped": {}, "refused": None},
            "safeailab": {"config.num_layers": 1, "missing": ()},
            "sglang-jax llama.cpp": {"refused": "num_hidden_layers is 2, it takes 1"},
        },
        {"num_hidden_layers": 2},
        SECOND | {"layers.1.input_layernorm.weight": noise(8)},
        dialect="vllm",
    ),
    Trap(
        "a second layer's norm, SGLang's name",
        {
            "sglang": {"missing": (), "dropped": {}},
            "vllm": {
                "missing": ("layers.1.input_layernorm.weight",),
                "dropped": {"layers.1.hidden_norm.weight": "it norms with input_layernorm there"},
                "refused": None,
            },
        },
        {"num_hidden_layers": 2},
        SECOND | {"layers.1.hidden_norm.weight": noise(8)},
    ),
    Trap(
        "the target's number of layers",
        {
            "sglang vllm": {
                "config.num_layers": 36,
                "differences": "num_hidden_layers is 36 here, 1 as trained",
            },
            "tpu-inference": {"config.num_layers": 1},
        },
        {"num_hidden_layers": 36},
    ),
    Trap(
        "four states, ids at the top",
        {
            "vllm sglang": {
                "refused": "its fc is built for 3 states of width 8, the file's reads 32 columns"
            },
            "safeailab tensorrt-llm tpu-inference": {
                "refused": "its fc is built for 3 states of width 8, the file's reads 32 columns"
            },
        },
        {"eagle_config": ABSENT, LAYER_IDS: [1, 3, 4, 6]},
        WIDE_FC,
    ),
    Trap(
        "four states, nested ids",
        {
            "sglang": {"refused": None, "boundaries": (2, 4, 5, 7), "config.num_aux": 4},
            "vllm": {"refused": None, "boundaries": (1, 3, 4, 6), "config.num_aux": 4},
            "tensorrt-llm vllm-new-runner": {"boundaries": (2, 6, 9)},
        },
        {"eagle_config": {LAYER_IDS: [1, 3, 4, 6]}},
        WIDE_FC,
    ),
    Trap(
        "four states, counted",
        {
            "vllm": {"refused": None, "boundaries": (1, 3, 4, 6)},
            "sglang": {"refused": "it captures 3 states, its fc reads 4"},
        },
        {"eagle_config": ABSENT, LAYER_IDS: [1, 3, 4, 6], "num_aux_hidden_states": 4},
        WIDE_FC,
    ),
    Trap(
        "a null target_hidden_size",
        {"sglang": {"refused": "target_hidden_size is null"}, "vllm": {"refused": None}},
        {"target_hidden_size": None},
    ),
    Trap(
        "the last state alone",
        {
            "sglang vllm": {"boundaries": (), "config.num_aux": 0, "refused": None},
            "safeailab sglang-jax": {"boundaries": (2, 6, 9), "missing": ("fc.weight",)},
        },
        EVEN_KEYS | {"eagle_config": {"use_aux_hidden_state": False}},
        EVEN | {"fc.weight": None},
    ),
    Trap(
        "latent attention",
        {
            "sglang vllm": {"refused": None, "missing": (), "dropped": {}},
            "tensorrt-llm tpu-inference sglang-jax llama.cpp": {
                "refused": "architectures name Eagle3DeepseekV2ForCausalLM, under which "
                "it has no draft"
            },
            "safeailab": {
                "refused": "its class is one of grouped queries, the tensors are latent attention"
            },
        },
        LATENT_KEYS,
        LATENT,
    ),
    Trap(
        "a norm before fc under latent attention",
        {
            "sglang": {
                "refused": None,
                "config.norm_before_fc": False,
                "differences": "norm_before_fc under latent attention: its class with latent "
                "attention has none",
            },
            "vllm": {"refused": "it has no parameter for input_norm.weight"},
        },
        LATENT_KEYS | {"norm_before_fc": True},
        LATENT | {"input_norm.weight": noise(24)},
    ),
    Trap(
        "latent attention without a draft_vocab_size",
        {
            "sglang": {
                "refused": None,
                "head": "target",
                "dropped": {"lm_head.weight": "its head is that of the target"},
            },
            "vllm": {"refused": None, "head": "own"},
        },
        LATENT_KEYS | {"draft_vocab_size": ABSENT},
        LATENT | WHOLE | {"lm_head.weight": noise(32, 8)},
    ),
    Trap(
        "q/k norms for a class without",
        {
            "vllm": {
                "refused": f"it has no parameter for {ATTENTION}k_norm.weight, "
                f"{ATTENTION}q_norm.weight"
            },
            "sglang": {
                "dropped": {
                    f"layers.0.self_attn.{x}_norm.weight": "it has no place for the tensors"
                    for x in "qk"
                }
            },
        },
        {},
        {f"{ATTENTION}{x}_norm.weight": noise(4) for x in "qk"},
        dialect="vllm",
    ),
    Trap(
        "q/k norms",
        {
            "vllm": {"config.attention.qk_norm": True, "refused": None},
            "sglang": {"config.attention.qk_norm": False},
        },
        {"architectures": ["Eagle3Qwen3ForCausalLM"]},
        {f"{ATTENTION}{x}_norm.weight": noise(4) for x in "qk"},
        dialect="vllm",
    ),
    Trap(
        "latent queries without a rank",
        {
            "sglang": {
                "refused": "latent attention without q_lora_rank: it fuses q_a_proj with "
                "kv_a_proj_with_mqa"
            },
            "vllm": {"refused": None, "missing": ()},
        },
        LATENT_KEYS | {"q_lora_rank": None},
        LATENT
        | {f"{ATTENTION}q_{part}.weight": None for part in ("a_proj", "a_layernorm", "b_proj")}
        | {f"{ATTENTION}q_proj.weight": noise(24, 16)},
    ),
    Trap(
        "a draft wider than its target",
        {
            "sglang vllm safeailab": {"embeddings": "own", "missing": ("embed_tokens.weight",)},
            "sglang-jax": {
                "embeddings": "target",
                "refused": "the target's token embeddings are 4 wide, the draft reads 8",
            },
            "speculators": {
                "refused": "a target of another width: its fc reads states of the draft's own width"
            },
        },
        EVEN_KEYS | {"target_hidden_size": 4},
        EVEN | {"fc.weight": noise(8, 12)},
    ),
    Trap(
        "a wider draft that is told to do without its fc",
        {"sglang": {"boundaries": (), "refused": "it captures 0 states, its fc reads 3"}},
        {
            "target_hidden_size": 4,
            "num_aux_hidden_states": 3,
            "eagle_config": {"use_aux_hidden_state": False},
        },
        {"fc.weight": noise(8, 12)},
    ),
    Trap(
        "a target of another width",
        {
            "sglang vllm safeailab": {
                "refused": "the target's states are 16 wide, the draft reads 8"
            }
        },
        options={"target_hidden_size": 16},
    ),
    Trap(
        "TensorRT-LLM is told the capture at launch",
        {
            "tensorrt-llm": {
                "boundaries": (2, 6, 9),
                "flags": "speculative_config.eagle3_layers_to_capture: [1, 3, 4]",
                "differences": "capture: boundaries [2, 6, 9], trained on [2, 4, 5]",
            }
        },
    ),
    Trap(
        "a target too shallow for TensorRT-LLM",
        {"tensorrt-llm": {"refused": "its default needs a target of 6 layers or more, found 5"}},
        options={"layers": 5},
    ),
    Trap(
        "tpu-inference's other targets",
        {"tpu-inference": {"rules": "of its JAX targets only Llama captures states for EAGLE-3"}},
        VLLM_ARCH,
        options={"target_class": "qwen3"},
    ),
]

"""Norms and biases that not every server heeds; expectations by hand."""

from tests.engine_samples import (
    ATTENTION,
    EVEN,
    EVEN_KEYS,
    FC_NORMS,
    QKV_BIASES,
    SPECULATORS_KEYS,
    Trap,
    renamed,
)
from tests.raw_drafts import LAYER, LAYER_IDS, noise

NORMED, RAW = {"config.norm_before_residual": True}, {"config.norm_before_residual": False}
VLLM_ARCH = {"architectures": ["Eagle3LlamaForCausalLM"]}


TRAPS = [
    Trap(
        "norm_before_residual is heeded by vLLM's kin and llama.cpp alone",
        {
            "vllm vllm-new-runner tpu-inference llama.cpp-old llama.cpp": NORMED,
            "sglang sglang-jax safeailab tensorrt-llm": RAW
            | {"differences": "norm_before_residual: its residual is always the raw state"},
        },
        VLLM_ARCH | {"norm_before_residual": True},
        dialect="vllm",
    ),
    Trap(
        "vLLM's adapter norms before the residual unless told otherwise",
        {
            "vllm": NORMED
            | {
                "config.norm_output": True,
                "boundaries": (2, 5, 7),
                "refused": None,
                "embeddings": "own",
                "differences": "norm_before_residual is true here, false as trained",
            },
            "tpu-inference": NORMED,
            "speculators": RAW | {"refused": None},
            "llama.cpp": RAW | {"refused": None},
            "sglang": {
                "refused": "config keeps its decoder layer in transformer_layer_config, which it "
                "does not read"
            },
            "safeailab tensorrt-llm sglang-jax": {
                "refused": "config keeps its decoder layer in transformer_layer_config, which it "
                "does not read"
            },
        },
        SPECULATORS_KEYS | {"norm_output": True, LAYER_IDS: [2, 5, 7]},
        renamed(LAYER, "layers.0.") | {"embed_tokens.weight": noise(32, 8)},
        dialect="speculators",
    ),
    Trap(
        "norm_output is ignored by the plain ones",
        {
            "sglang": {"config.norm_output": True, "differences": ()},
            "vllm tensorrt-llm": {"config.norm_output": True},
            "safeailab tpu-inference sglang-jax llama.cpp": {
                "config.norm_output": False,
                "differences": "norm_output: it always feeds back the raw state",
            },
        },
        {"norm_output": True},
    ),
    Trap(
        "fc_norm is dropped, or refused by its names",
        {
            "sglang vllm tensorrt-llm": {"config.fc_norm": True, "dropped": {}, "refused": None},
            "safeailab sglang-jax": {
                "config.fc_norm": False,
                "dropped": dict.fromkeys(FC_NORMS, "it has no norm before fc"),
            },
            "tpu-inference llama.cpp": {
                "refused": "it has no parameter for fc_norm.0.weight, fc_norm.1.weight, "
                "fc_norm.2.weight"
            },
        },
        EVEN_KEYS | {"fc_norm": True},
        EVEN | FC_NORMS,
    ),
    Trap(
        "use_aux_norm and its names are SGLang's",
        {
            "sglang": {"config.fc_norm": True, "dropped": {}, "missing": ()},
            "vllm": {
                "config.fc_norm": False,
                "refused": "it has no parameter for aux_norm_high.weight, "
                "aux_norm_low.weight, aux_norm_mid.weight",
            },
            "safeailab": {
                "dropped": {
                    f"fc_norm.{i}.weight": f"aux_norm_{place}.weight is no name that it knows"
                    for i, place in enumerate(("low", "mid", "high"))
                }
            },
        },
        {"use_aux_norm": True},
        {f"aux_norm_{place}.weight": noise(8) for place in ("low", "mid", "high")},
    ),
    Trap(
        "a nested norm_before_fc is lost where only the top is read",
        {
            "sglang vllm tensorrt-llm": {"config.norm_before_fc": True, "dropped": {}},
            "safeailab": {
                "config.norm_before_fc": False,
                "dropped": {"input_norm.weight": "it has no norm before fc"},
            },
            "speculators": {"config.norm_before_fc": False},
        },
        EVEN_KEYS | {"eagle_config": {"norm_before_fc": True, LAYER_IDS: [1, 3, 4]}},
        EVEN | {"input_norm.weight": noise(24)},
    ),
    Trap(
        "TensorRT-LLM wants norm_before_fc nested",
        {
            "sglang vllm": {"config.norm_before_fc": True, "missing": ()},
            "tensorrt-llm": {
                "config.norm_before_fc": False,
                "dropped": {
                    "input_norm.weight": "norm_before_fc is off in the config as it reads it"
                },
            },
        },
        {"norm_before_fc": True},
        {"input_norm.weight": noise(24)},
    ),
    Trap(
        "input_norm without its flag goes without a word",
        {"vllm sglang": {"refused": None, "config.norm_before_fc": False}},
        {},
        {"input_norm.weight": noise(24)},
        settings={"norm_before_fc": False},
    ),
    Trap(
        "two norms before fc are chained, or one of them wins",
        {
            "sglang vllm": {
                "config": None,
                "dropped": {},
                "differences": "norm_before_fc and fc_norm are both on: it applies one after the "
                "other",
            },
            "tensorrt-llm": {
                "config.norm_before_fc": False,
                "config.fc_norm": True,
                "differences": "norm_before_fc and fc_norm are both on: it applies fc_norm alone",
            },
        },
        {"fc_norm": True, "eagle_config": {"norm_before_fc": True, LAYER_IDS: [1, 3, 4]}},
        FC_NORMS | {"input_norm.weight": noise(24)},
        settings={"norm_before_fc": False},
    ),
    Trap(
        "SGLang drops the biases of q, k and v, and makes one for o",
        {
            "sglang": {
                "config.attention.bias": False,
                "config.attention.output_bias": True,
                "dropped": dict.fromkeys(
                    (name.replace(LAYER, "layers.0.") for name in QKV_BIASES),
                    "its projections have no biases, o_proj's aside",
                ),
                "missing": ("layers.0.self_attn.o_proj.bias",),
                "differences": "q/k/v biases: its projections have no biases, o_proj's aside",
            },
            "vllm": {"config.attention.bias": True, "dropped": {}, "refused": None},
        },
        {"attention_bias": True},
        QKV_BIASES,
    ),
    Trap(
        "biases without their flag have no parameter in vLLM",
        {
            "vllm": {
                "config.attention.bias": False,
                "refused": f"it has no parameter for {ATTENTION}k_proj.bias, "
                f"{ATTENTION}q_proj.bias, {ATTENTION}v_proj.bias",
            }
        },
        {},
        QKV_BIASES,
    ),
    Trap(
        "fc's bias",
        {
            "sglang tensorrt-llm": {"config.fc_bias": True},
            "sglang-jax": {
                "config.fc_bias": False,
                "dropped": dict.fromkeys(
                    ("fc.bias", "layers.0.self_attn.o_proj.bias"),
                    "it has no place for the tensors",
                ),
            },
            "vllm": {"refused": "it has no parameter for fc.bias"},
        },
        {"bias": True},
        {"fc.bias": noise(8), f"{ATTENTION}o_proj.bias": noise(8)},
        dialect="sglang",
    ),
    Trap(
        "fc's bias without its flag",
        {
            "sglang": {
                "config.fc_bias": False,
                "dropped": {"fc.bias": "fc_bias is off in the config as it reads it"},
                "differences": "fc_bias is false here, true as trained",
            }
        },
        {},
        {"fc.bias": noise(8)},
    ),
    Trap(
        "ModelOpt's double norm, on a server",
        {
            "sglang vllm": {
                "config.double_norm": False,
                "differences": "double_norm: it norms the hidden half once",
            }
        },
        settings={"double_norm": True},
    ),
    Trap(
        "an older SpecForge's head without its norm",
        {
            "sglang": {
                "config.final_norm": True,
                "differences": "a missing final norm: its head always reads a normed state",
            }
        },
        {"norm_output": False},
        dialect="specforge-0.2",
    ),
]

"""Rotations and windows that not every server turns alike; expectations by hand."""

from eagle3_jax.config import LinearScaling, Llama3Scaling, YarnScaling
from tests.engine_samples import (
    EVEN,
    EVEN_KEYS,
    Trap,
)
from tests.raw_drafts import ABSENT

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 32,
    "attention_factor": 1.7,
}
THREE_KEYS = {"type": "linear", "rope_type": "linear", "factor": 2.0}
TRAPS = [
    Trap(
        "a Llama 3 scaling",
        {
            "sglang vllm": {"config.rope.scaling": Llama3Scaling(4.0, 1.0, 3.0, 16)},
            "sglang-jax": {
                "config.rope.scaling": None,
                "config.rope.theta": 500000.0,
                "differences": "llama3 RoPE scaling: it never applies a scaling",
            },
            "llama.cpp": {"config.rope.scaling": Llama3Scaling(4.0, 1.0, 3.0, 8192)},
            "safeailab": {
                "refused": f"rope_scaling is {LLAMA3}: expected exactly type, linear or dynamic, "
                "and factor (eagle/model/configs.py:126-145)"
            },
        },
        {"rope_theta": 500000.0, "rope_scaling": LLAMA3},
    ),
    Trap(
        "EAGLE forgets the base beside a linear scaling, tpu-inference takes it for Llama 3's",
        {
            "safeailab": {
                "config.rope.theta": 10000.0,
                "config.rope.scaling": LinearScaling(2.0),
                "differences": "rope_theta is 10000.0 here, 500000.0 as trained",
                "refused": None,
            },
            "tpu-inference": {"config.rope.scaling": Llama3Scaling(2.0, 1.0, 4.0, 8192)},
            "sglang vllm": {"config.rope.theta": 500000.0},
        },
        EVEN_KEYS | {"rope_theta": 500000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        EVEN,
    ),
    Trap(
        "a third key in EAGLE's scaling",
        {
            "safeailab": {
                "refused": f"rope_scaling is {THREE_KEYS}: expected exactly type, linear or "
                "dynamic, and factor (eagle/model/configs.py:126-145)"
            },
            "sglang": {"config.rope.scaling": LinearScaling(2.0)},
        },
        EVEN_KEYS | {"rope_scaling": THREE_KEYS},
        EVEN,
    ),
    Trap(
        "no rope_theta",
        {
            "sglang vllm safeailab": {"config.rope.theta": 10000.0},
            "tpu-inference": {"config.rope.theta": 500000.0},
        },
        {"rope_theta": ABSENT},
    ),
    Trap(
        "rope_parameters are no key of EAGLE's",
        {
            "safeailab": {"config.rope.theta": 10000.0},
            "sglang tpu-inference": {"config.rope.theta": 7.0},
        },
        {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
    ),
    Trap(
        "a sliding window",
        {
            "vllm": {"config.attention.sliding_window": 6, "differences": ()},
            "sglang": {
                "config.attention.sliding_window": None,
                "flags": "--speculative-draft-window-size 6",
                "differences": "a sliding window: the window is an option of its server",
            },
            "tpu-inference sglang-jax": {"config.attention.sliding_window": None},
        },
        {"layer_types": ["sliding_attention"], "sliding_window": 6},
        dialect="vllm",
    ),
    Trap(
        "a window that the trainer had not",
        {
            "vllm": {
                "config.attention.sliding_window": 6,
                "differences": "sliding_window is 6 here, none as trained",
            },
            "sglang": {"config.attention.sliding_window": None, "differences": ()},
        },
        {"layer_types": ["sliding_attention"], "sliding_window": 6},
    ),
    Trap(
        "YaRN's attention_factor",
        {
            "sglang": {
                "config.rope.scaling": YarnScaling(2.0, 32),
                "differences": "YaRN's attention_factor: it reads none",
            },
            "vllm": {"config.rope.scaling": YarnScaling(2.0, 32, attention_factor=1.7)},
            "tpu-inference": {"config.rope.scaling": Llama3Scaling(2.0, 1.0, 4.0, 32)},
        },
        {"rope_scaling": YARN},
    ),
    Trap(
        "half a head turned",
        {
            "sglang vllm": {"config.rope.partial": 0.5},
            "tpu-inference sglang-jax safeailab": {
                "config.rope.partial": 1.0,
                "differences": "a partial rotary factor: it turns whole heads",
            },
        },
        {"partial_rotary_factor": 0.5},
    ),
]

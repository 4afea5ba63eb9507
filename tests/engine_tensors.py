"""Names, heads, vocabularies and tables that not every server finds; expectations by hand."""

import numpy as np

from tests.engine_samples import (
    ABSOLUTE,
    EVEN,
    EVEN_KEYS,
    Trap,
    renamed,
)
from tests.raw_drafts import ABSENT, IDS, LAYER, WHOLE, noise, raw_tensors

FIRST_IDS = ("map", np.arange(12))
SWAPPED = np.array([1, 0, *range(2, 32)])
TRAINED_IDS = ("map", IDS)
BARE_LAYER = tuple(
    sorted(
        f"layers.0.{name.removeprefix(LAYER)}" for name in raw_tensors() if name.startswith(LAYER)
    )
)
TRAPS = [
    Trap(
        "tied embeddings make SGLang's head",
        {
            "sglang sglang-jax": {
                "head": "tied",
                "config": None,
                "dropped": {"lm_head.weight": "its head is the token embeddings"},
                "differences": "its head is the target's embedding table, while the draft ids are "
                "12 of 32",
            },
            "vllm tensorrt-llm safeailab": {"head": "own", "dropped": {}},
        },
        EVEN_KEYS | {"tie_word_embeddings": True},
        EVEN,
    ),
    Trap(
        "a null draft_vocab_size is the target's head for SGLang",
        {
            "sglang sglang-jax vllm tensorrt-llm": {"head": "target", "config.head": "target"},
            "tpu-inference safeailab": {
                "head": "own",
                "missing": ("lm_head.weight",),
                "refused": "draft_vocab_size is null",
            },
        },
        {"draft_vocab_size": None},
        WHOLE,
    ),
    Trap(
        "a null draft_vocab_size beside a head",
        {
            "sglang": {
                "head": "target",
                "dropped": {"lm_head.weight": "its head is that of the target"},
                "differences": "head is target here, own as trained",
            },
            "vllm tensorrt-llm": {"head": "own", "dropped": {}},
        },
        {"draft_vocab_size": None},
        WHOLE | {"lm_head.weight": noise(32, 8)},
    ),
    Trap(
        "an absent draft_vocab_size",
        {
            "sglang sglang-jax safeailab llama.cpp": {"refused": "config has no draft_vocab_size"},
            "vllm": {"refused": None},
        },
        {"draft_vocab_size": ABSENT},
    ),
    Trap(
        "no d2t: the first ids",
        {
            "sglang vllm safeailab sglang-jax tpu-inference": {
                "vocab": FIRST_IDS,
                "differences": "vocabulary: 2 of 12 draft ids mean the same token",
            },
            "llama.cpp": {"refused": "a head of 12 rows needs a d2t"},
        },
        {},
        {"d2t": None},
    ),
    Trap(
        "target ids in d2t are added to once more",
        {
            "sglang vllm": {
                "refused": None,
                "vocab": ("raw", IDS + np.arange(12)),
                "differences": "vocabulary: 1 of 12 draft ids mean the same token, 2 none of the "
                "32",
            },
            "llama.cpp": {"refused": "d2t means ids that repeat or lie outside the vocabulary"},
        },
        {},
        ABSOLUTE,
    ),
    Trap(
        "a whole vocabulary with a d2t",
        {
            "vllm": {"refused": "d2t has no parameter where the draft vocabulary is the target's"},
            "sglang tpu-inference": {"vocab": ("map", SWAPPED)},
            "safeailab": {"vocab": ("map", np.arange(32))},
        },
        {"draft_vocab_size": 32},
        {
            "lm_head.weight": noise(32, 8),
            "d2t": SWAPPED - np.arange(32),
            "t2d": np.ones(32, np.bool_),
        },
    ),
    Trap(
        "the prefix model.",
        {
            "sglang": {"refused": None, "missing": (), "vocab": TRAINED_IDS},
            "vllm vllm-new-runner": {
                "refused": "it has no parameter for model.midlayer.hidden_norm.weight, "
                "model.midlayer.input_layernorm.weight, model.midlayer.mlp.down_proj.weight and 7 "
                "more"
            },
            "tensorrt-llm": {
                "refused": "it finds no tensor for layers.0.hidden_norm.weight, "
                "layers.0.input_layernorm.weight, layers.0.mlp.down_proj.weight and 7 more"
            },
            "sglang-jax safeailab": {
                "missing": BARE_LAYER,
                "dropped": {
                    name: f"model.{LAYER}{name.removeprefix('layers.0.')} is no name that it knows"
                    for name in BARE_LAYER
                },
            },
        },
        {},
        renamed(LAYER, f"model.{LAYER}"),
    ),
    Trap(
        "the prefix layers.0.",
        {
            "sglang vllm tensorrt-llm llama.cpp": {"refused": None, "missing": ()},
            "sglang-jax safeailab": {"missing": BARE_LAYER},
            "tpu-inference": {
                "missing": BARE_LAYER,
                "refused": "it has no parameter for layers.0.hidden_norm.weight, "
                "layers.0.input_layernorm.weight, layers.0.mlp.down_proj.weight and 7 more",
            },
        },
        {},
        renamed(LAYER, "layers.0."),
    ),
    Trap(
        "the prefix midlayer.0.",
        {
            "sglang sglang-jax": {"missing": BARE_LAYER},
            "vllm": {"missing": BARE_LAYER},
        },
        {},
        renamed(LAYER, "midlayer.0."),
    ),
    Trap(
        "an architecture that no server knows",
        {
            "sglang vllm tensorrt-llm tpu-inference sglang-jax llama.cpp": {
                "refused": "architectures name LlamaEagle3DraftModel, under which it has no draft"
            },
            "safeailab": {"refused": None},
        },
        EVEN_KEYS | {"architectures": ["LlamaEagle3DraftModel"]},
        EVEN,
    ),
    Trap(
        "EAGLE's architecture",
        {
            "sglang": {
                "refused": "architectures name LlamaForCausalLM, under which it has no draft"
            },
            "safeailab vllm tensorrt-llm tpu-inference sglang-jax llama.cpp": {"refused": None},
        },
        EVEN_KEYS | {"architectures": ["LlamaForCausalLM"]},
        EVEN,
    ),
    Trap(
        "heads wider than their share",
        {
            "safeailab": {
                "refused": "it builds heads of 2 (hidden_size / heads), the tensors' are of 4"
            },
            "sglang vllm sglang-jax": {"refused": None},
        },
    ),
    Trap(
        "the draft's own embeddings",
        {
            "sglang": {
                "embeddings": "target",
                "dropped": {"embed_tokens.weight": "the target's token embeddings take its place"},
                "differences": "token embeddings: the target's, not the draft's own",
            },
            "sglang-jax": {"embeddings": "target"},
            "vllm safeailab tpu-inference llama.cpp": {"embeddings": "own"},
        },
        EVEN_KEYS,
        EVEN | {"embed_tokens.weight": noise(32, 8)},
    ),
    Trap(
        "target_hidden_size keeps EAGLE from taking the target's table",
        {
            "safeailab": {"embeddings": "own", "missing": ("embed_tokens.weight",)},
            "sglang vllm": {"embeddings": "target", "missing": ()},
        },
        EVEN_KEYS | {"target_hidden_size": 8},
        EVEN,
    ),
]

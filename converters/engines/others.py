"""The root implementation, TensorRT-LLM and llama.cpp, as servers."""

from dataclasses import replace

from converters.dialects.base import (
    FEEDS_RAW,
    NO_PRE_FC_NORM,
    Dialect,
)
from converters.dialects.nvidia import TENSORRT_LLM as TENSORRT_LLM_FILES
from converters.dialects.safeailab import EAGLE, PLAIN_LACKS
from converters.engines.base import ClassRule, Engine, Option

SAFEAILAB = Engine(
    name="safeailab",
    version="cb7e0841",
    dialect=EAGLE,
    source=f"{EAGLE.source}, eagle/model/modeling_llama_kv.py:1137-1139",
    general=ClassRule("boundary", source="eagle/model/modeling_llama_kv.py:1137-1139"),
    needs_draft_vocab=True,
    width_key_ends_sharing=True,
    whole_map="deleted",
    rope="eagle",
    head_width="derived",
    launch=(Option("--ea-model-path {draft}"),),
    rules=(Option("layer ids are never read: boundaries 2, L//2, L-3, fixed"),),
)
TENSORRT_LLM = Engine(
    name="tensorrt-llm",
    version="00679c66",
    dialect=TENSORRT_LLM_FILES,
    source=f"{TENSORRT_LLM_FILES.source}, _torch/speculative/eagle3.py and utils.py",
    general=ClassRule("output", source="_torch/speculative/eagle3.py, Eagle3SpecMetadata"),
    least_layers=6,
    architectures={"EAGLE3LlamaForCausalLM": "llama"},
    renaming="suffix",
    first=("midlayer.", "layers.0."),
    later=("layers.{i}.", "midlayer.{i}."),
    absent="refused",
    builds="stated",
    flag_keys={
        "norm_before_fc": ("eagle_config.norm_before_fc",),
        "fc_norm": ("fc_norm",),
        "norm_output": ("norm_output", "eagle_config.return_hidden_post_norm"),
    },
    both_norms="fc_norm",
    output_bias=("attention_bias",),
    launch=(
        Option("speculative_config.decoding_type: Eagle3"),
        Option("speculative_config.speculative_model: {draft}"),
        Option("speculative_config.max_draft_len: 3"),
        Option("speculative_config.eagle3_layers_to_capture: {ids}", "captured"),
    ),
    rules=(
        Option(
            "layer ids of the draft's config are never read: eagle3_layers_to_capture, a set of "
            "outputs in the speculative config, is the only place"
        ),
    ),
)
# Its converter and its graph are one reader; it writes no checkpoints, so it is no dialect of
# files that others read.
_GGUF = Dialect(
    name="llama.cpp",
    title="llama.cpp",
    source="ggml-org/llama.cpp 0274f0fc, conversion/llama.py and src/models/eagle3.cpp",
    architecture="LlamaForCausalLM",
    numbering="boundary",
    embeddings="shared",
    borrowed_head=True,
    always={
        "norm_before_fc": (False, NO_PRE_FC_NORM),
        "fc_norm": (False, NO_PRE_FC_NORM),
        "norm_output": (False, FEEDS_RAW),
    },
    lacks={name: why for name, why in PLAIN_LACKS.items() if name != "norm_before_residual"},
    writable=False,
)
LLAMA_CPP_OLD = Engine(
    name="llama.cpp-old",
    version="0274f0fc",
    dialect=_GGUF,
    source=_GGUF.source,
    general=ClassRule("boundary", source="conversion/llama.py, extract_layers"),
    architectures=dict.fromkeys(
        ("LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Speculator", "Eagle3DraftModel"),
        "llama",
    ),
    nested="merged",
    first=("midlayer.", "layers.0.", "model.layers.0."),
    unknown="refused",
    absent="refused",
    flag_keys={"norm_before_residual": ("norm_before_residual",)},
    needs_draft_vocab=True,
    checks_map=True,
    rope="gguf",
    one_layer=True,
    launch=(Option("--spec-type draft-eagle3"), Option("--model-draft {draft} (as GGUF)")),
    rules=(Option("its converter ignores layer ids: boundaries 2, L//2, L-3, fixed"),),
)
LLAMA_CPP = replace(
    LLAMA_CPP_OLD,
    name="llama.cpp",
    version="since pull request 25794",
    source=f"{_GGUF.source}; pull requests 25794, 24977 and 27040 as descriptions",
    places=("top",),
    counts={"llama": ("top ids",)},
    architectures={**(LLAMA_CPP_OLD.architectures or {}), "Eagle3LlamaForCausalLM": "llama"},
    rules=(
        Option(
            "its converter reads layer ids at the config's top alone, as boundaries: those of "
            "eagle_config give way to the default (pull request 27040)"
        ),
    ),
)

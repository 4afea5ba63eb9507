"""SGLang and its port to JAX, as servers."""

from converters.dialects.sgl import SGLANG as SGLANG_FILES
from converters.dialects.sgl import SGLANG_JAX as SGLANG_JAX_FILES
from converters.engines.base import ClassRule, Engine, Option

_MODELS = "srt/models"
_FIRST = ClassRule(
    "output if ids[0] is 1",
    captures_end=False,
    source=f"{_MODELS}/deepseek_v2.py:3458-3473",
)
# Targets whose ids SGLang reads by a rule of their own; `model_type` of the target's config.
_CLASSES: dict[str, ClassRule] = {
    **dict.fromkeys(
        (
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "kimi_k2",
            "kimi_k25",
            "mistral_large_3",
        ),
        _FIRST,
    ),
    "glm4_moe_lite": _FIRST._replace(source=f"{_MODELS}/glm4_moe_lite.py:805-820"),
    "gpt_oss": ClassRule(
        "boundary if max(ids) is L", source=f"{_MODELS}/gpt_oss.py:1337-1352,732-736"
    ),
    "minimax_m3_vl": ClassRule(
        "output", default_offset=1, source=f"{_MODELS}/minimax_m3_vl.py:246-263"
    ),
    # The same rule as the general one; these also capture what leaves the last layer.
    **{
        name: ClassRule("output", source=f"{_MODELS}/{name}.py")
        for name in ("gemma3", "gemma4", "minimax_m3")
    },
}
_GENERAL = frozenset(
    (
        "apertus",
        "bailing_moe",
        "exaone_moe",
        "glm4_moe",
        "glm5_next",
        "llama",
        "llama4",
        "longcat_flash",
        "minimax_m2",
        "mistral",
        "qwen2",
        "qwen2_5_vl",
        "qwen2_moe",
        "qwen3",
        "qwen3_5",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_vl",
    )
)

SGLANG = Engine(
    name="sglang",
    version="0.5.23",
    dialect=SGLANG_FILES,
    source=f"{SGLANG_FILES.source}, srt/arg_groups/speculative_hook.py",
    classes=_CLASSES,
    general=ClassRule("output", captures_end=False, source=f"{_MODELS}/llama.py:929-941"),
    known=_GENERAL,
    places=("eagle_config",),
    counts={
        "llama": ("num_aux_hidden_states", "eagle_config ids"),
        "latent": ("eagle_config ids", "top ids"),
    },
    reads_last_state_only=True,
    architectures={"LlamaForCausalLMEagle3": "llama", "Eagle3DeepseekV2ForCausalLM": "latent"},
    prefixes=("", "model."),
    first=("midlayer.", "layers.0."),
    later=("layers.{i}.",),
    old_norm_names=True,
    builds="stated",
    flag_keys={
        "norm_before_fc": ("eagle_config.norm_before_fc", "norm_before_fc"),
        "fc_norm": ("fc_norm", "use_aux_norm"),
        "norm_output": ("norm_output",),
    },
    output_bias=("attention_bias", "bias"),
    needs_draft_vocab=True,
    null_head=True,
    null_width_fails=True,
    launch=(
        Option("--speculative-algorithm EAGLE3"),
        Option("--speculative-draft-model-path {draft}"),
        Option("--speculative-num-steps 3"),
        Option("--speculative-eagle-topk 1"),
        Option("--speculative-num-draft-tokens 4"),
        Option("--speculative-draft-window-size {window}", "window"),
    ),
    rules=(
        Option(
            "layer ids are outputs, so that -1 is the embedding; DeepSeek's kin, Kimi and "
            "GLM-4-MoE-Lite read them as outputs only where ids[0] is 1, gpt-oss unless the "
            "largest is L"
        ),
        Option(
            "with --speculative-eagle-topk 1, --speculative-num-draft-tokens becomes "
            "--speculative-num-steps + 1 whatever was asked (arg_groups/speculative_hook.py:1255)"
        ),
        Option(
            "without --speculative-num-steps it chooses steps, topk and draft tokens itself: "
            "5, 4, 8 for LlamaForCausalLM, else 3, 1, 4 (speculative_hook.py:1430)"
        ),
        Option(
            "--speculative-use-rejection-sampling needs topk 1 and a draft vocabulary that is the "
            "target's: it refuses this one (speculative/eagle_worker_v2.py:261)",
            "pruned",
        ),
        Option(
            "its Llama draft attends to a window only by --speculative-draft-window-size",
            "window",
        ),
    ),
)
SGLANG_JAX = Engine(
    name="sglang-jax",
    version="cddbf6f1",
    dialect=SGLANG_JAX_FILES,
    source=f"{SGLANG_JAX_FILES.source}, model_executor/model_runner.py:584-592",
    general=ClassRule("boundary", source="model_executor/model_runner.py:584-592"),
    architectures={"LlamaForCausalLMEagle3": "llama", "LlamaForCausalLM": "llama"},
    needs_draft_vocab=True,
    null_head=True,
    rope="plain",
    one_layer=True,
    launch=(
        Option("--speculative-algorithm EAGLE3"),
        Option("--speculative-draft-model-path {draft}"),
    ),
    rules=(
        Option(
            "it looks for eagle_config in the target's config, where none stands: the capture is "
            "always the default"
        ),
    ),
)

"""Whose file a draft is: files as each framework writes them, told by their tensors and keys.

The configs are those that the frameworks' own exporters write (SpecForge 0.2.0, ModelOpt 0.47.0 and
speculators 0.9.0 were run for them; the others are their example files and templates), with tiny
sizes.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.detect import MARK, Clues, detect
from converters.dialects import DIALECTS
from converters.drafts import OpenDraft, Reading, open_draft
from converters.trees import to_tensors
from eagle3_jax.config import Llama3Scaling, RopeConfig, YarnScaling
from tests.conftest import latent_heads, tiny_config
from tests.test_drafts import LAYER_IDS, MASK, OFFSETS, V, attention, draft_of, refused

SIZES = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "model_type": "llama",
}
TEXT = {
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
    "pad_token_id": None,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "transformers_version": "5.8.1",
    "use_cache": True,
}
FLAT = {**SIZES, **TEXT, "head_dim": 4, "draft_vocab_size": 12}
NO_BIASES = {"attention_bias": False, "mlp_bias": False}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELOPT = {
    LAYER_IDS: [1, 3, 5],
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
ADDED_YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 2048}
LATENT = {
    **{key: value for key, value in SIZES.items() if key != "model_type"},
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 7,
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 4,
    "v_head_dim": 3,
}
KIMI_YARN = {
    "type": "yarn",
    "factor": 64.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 1.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
MOE = {
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_nextn_predict_layers": 0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
}
OLD_GENERATION = dict.fromkeys(
    """
    chunk_size_feed_forward diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    forced_bos_token_id forced_eos_token_id id2label is_decoder is_encoder_decoder label2id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores pruned_heads
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    temperature tf_legacy_loss tie_encoder_decoder top_k top_p torchscript typical_p use_bfloat16
    """.split()  # noqa: SIM905
)


def speculators(**changes: Any) -> dict[str, Any]:
    layer = {**SIZES, **NO_BIASES, "head_dim": 4, "rope_parameters": {"rope_theta": 1e4}}
    return {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": 12,
        "dtype": "float32",
        LAYER_IDS: [2, 4, 5],
        "embed_requires_grad": False,
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "meta/llama"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformers_version": "5.19.0",
        **changes,
        "transformer_layer_config": layer | changes.get("transformer_layer_config", {}),
    }


class File(NamedTuple):
    """A draft as a framework writes it.

    Attributes:
        dialect: whose it is.
        told: part of what tells so.
        config: its config.json.
        holds: changes of the draft that its tensors make.
        reads: changes of the draft that its config makes.
        boundaries: what its layer ids mean.
        layer: the prefix of its first layer.
        beside: the tensors that not everyone writes.
        before: the prefix of the others.
    """

    dialect: str
    told: str
    config: Mapping[str, Any]
    holds: Mapping[str, Any] = {}
    reads: Mapping[str, Any] = {}
    boundaries: tuple[int, ...] | None = None
    layer: str = "midlayer."
    beside: str = "d2t t2d"
    before: str = ""


QWEN = {
    "model_type": "qwen3",
    "layer_types": ["sliding_attention"] * 2,
    "max_window_layers": 28,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "num_hidden_layers": 2,
}
FILES = {
    "EAGLE's trainer": File(
        "eagle",
        "without rope keys",
        {
            **SIZES,
            "architectures": ["LlamaForCausalLM"],
            "bos_token_id": 1,
            "eos_token_id": 2,
            "initializer_range": 0.02,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
            "torch_dtype": "float16",
            "transformers_version": "4.28.1",
            "use_cache": True,
            "draft_vocab_size": 12,
        },
        {"attention": attention(head_dim=2)},
    ),
    "SpecForge, to SGLang": File(
        "specforge",
        "LlamaForCausalLMEagle3",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaForCausalLMEagle3"],
            "dtype": "bfloat16",
            "eagle_config": {LAYER_IDS: [1, 3, 4]},
            "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
            "rope_theta": 1e4,
            "target_hidden_size": 8,
        },
        boundaries=(2, 4, 5),
    ),
    "SpecForge, to Hugging Face": File(
        "specforge",
        "LlamaForCausalLMEagle3",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaForCausalLMEagle3"],
            "dtype": "bfloat16",
            "eagle_config": {LAYER_IDS: [1, 3, 4], "use_aux_hidden_state": True},
            "rope_parameters": {**LLAMA3, "rope_theta": 5e5},
            "rope_scaling": LLAMA3,
            "rope_theta": 5e5,
        },
        reads={"rope": RopeConfig(5e5, scaling=Llama3Scaling(8.0, 1.0, 4.0, 32))},
        boundaries=(2, 4, 5),
        beside="d2t t2d embed_tokens.weight",
    ),
    "a head for SGLang": File(
        "sglang",
        "knobs of servers",
        {
            **FLAT,
            "architectures": ["LlamaForCausalLMEagle3"],
            "torch_dtype": "bfloat16",
            "num_aux_hidden_states": 3,
            "norm_before_fc": True,
            "eagle_config": {LAYER_IDS: [1, 3, 4]},
        },
        {"norm_before_fc": True},
        boundaries=(2, 4, 5),
    ),
    "a head for vLLM": File(
        "vllm",
        LAYER_IDS,
        {**FLAT, "architectures": ["Eagle3LlamaForCausalLM"], LAYER_IDS: [2, 4, 5]},
        boundaries=(2, 4, 5),
        layer="layers.0.",
    ),
    "a head for vLLM's Qwen3": File(
        "vllm",
        "q/k norms",
        {**FLAT, "architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"},
        {"attention": attention(qk_norm=True)},
    ),
    "a head with a normed residual": File(
        "vllm",
        "norm_before_residual",
        {**FLAT, "architectures": ["LlamaForCausalLMEagle3"], "norm_before_residual": True},
        reads={"norm_before_residual": True},
    ),
    "speculators": File(
        "speculators",
        "speculators_config",
        speculators(
            norm_before_fc=True,
            norm_before_residual=True,
            norm_output=True,
            transformer_layer_config={"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        ),
        {"norm_before_fc": True},
        {
            "norm_before_residual": True,
            "norm_output": True,
            "rope": RopeConfig(5e5, scaling=Llama3Scaling(8.0, 1.0, 4.0, 32)),
        },
        (2, 4, 5),
        "layers.0.",
        "d2t t2d embed_tokens.weight",
    ),
    "speculators with four states of Qwen3": File(
        "speculators",
        "speculators_config",
        speculators(**{LAYER_IDS: [2, 4, 5, 7]}, transformer_layer_config=QWEN),
        {"num_aux": 4, "num_layers": 2, "attention": attention(qk_norm=True)},
        {"attention": attention(qk_norm=True, sliding_window=2048)},
        (2, 4, 5, 7),
        "layers.0.",
        "d2t t2d embed_tokens.weight",
    ),
    "speculators' converter": File(
        "speculators-converted",
        "Eagle3Speculator",
        speculators(
            architectures=["Eagle3Speculator"],
            target_hidden_size=8,
            **{LAYER_IDS: None},
            transformer_layer_config={"dtype": "float32"},
        ),
        layer="layers.0.",
    ),
    "AngelSlim": File(
        "angelslim",
        "Eagle3LlamaForCausalLM",
        {
            **FLAT,
            "architectures": ["Eagle3LlamaForCausalLM"],
            "attention_bias": False,
            "max_window_layers": 36,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_sliding_window": False,
        },
        reads={"rope": RopeConfig(1e6)},
        beside="d2t t2d embed_tokens.weight",
    ),
    "AngelSlim of a VLM": File(
        "angelslim",
        "modal_type",
        {
            **FLAT,
            "architectures": ["Eagle3LlamaForCausalLM"],
            "dtype": "bfloat16",
            "modal_type": "VLM",
            "rope_scaling": {
                "type": "default",
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": [24, 20, 20],
            },
            "rope_theta": 5e6,
        },
        reads={"rope": RopeConfig(5e6)},
        beside="d2t t2d embed_tokens.weight",
    ),
    "ModelOpt": File(
        "modelopt",
        "ModelOpt's keys",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaForCausalLMEagle3"],
            "rope_scaling": {"rope_type": "default", "rope_theta": 1e4},
            "rope_theta": 1e4,
            "torch_dtype": "float32",
            "transformers_version": None,
            "eagle_config": {
                **MODELOPT,
                "next_layer_regular": True,
                "parallel_draft_step": 1,
                "parallel_draft_heads_num_layers": None,
            },
        },
        reads={"double_norm": True},
        boundaries=(2, 4, 6),
        layer="layers.0.",
        beside="d2t",
    ),
    "ModelOpt with the target's head": File(
        "modelopt",
        "ModelOpt's keys",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaForCausalLMEagle3"],
            "attention_bias": True,
            "mlp_bias": True,
            "draft_vocab_size": 32,
            "rope_scaling": ADDED_YARN,
            "rope_theta": 1e4,
            "torch_dtype": "float32",
            "eagle_config": {**MODELOPT, "next_layer_regular": True},
        },
        {
            "draft_vocab_size": V,
            "mlp_bias": True,
            "attention": attention(bias=True, output_bias=True),
        },
        {"double_norm": True, "rope": RopeConfig(scaling=YarnScaling(32.0, 2048))},
        (2, 4, 6),
        "layers.0.",
        "",
    ),
    "ModelOpt's Kimi template": File(
        "modelopt",
        "ModelOpt's keys",
        {
            **LATENT,
            **MOE,
            **OLD_GENERATION,
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": None,
            "torch_dtype": "bfloat16",
            "rope_theta": 5e4,
            "rope_scaling": {**KIMI_YARN, "rope_theta": 5e4},
            "eagle_config": {**MODELOPT, "next_layer_regular": True},
        },
        {"attention": latent_heads()},
        {
            "double_norm": True,
            "rope": RopeConfig(5e4, scaling=YarnScaling(64.0, 4096, 1.0, 1.0, 1.0, 1.0)),
        },
        (2, 4, 6),
        "layers.0.",
        "d2t",
    ),
    "ModelOpt in 2025": File(
        "modelopt-2025",
        "ModelOpt's keys",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaForCausalLM"],
            "torch_dtype": "bfloat16",
            "eagle_config": MODELOPT,
        },
        boundaries=(2, 4, 6),
        beside="d2t",
    ),
    "SpecJAX": File(
        "specjax",
        "rope_theta beside a draft vocabulary",
        {
            **{
                k: v for k, v in SIZES.items() if k not in ("hidden_act", "max_position_embeddings")
            },
            "architectures": ["LlamaForCausalLM"],
            "head_dim": 4,
            "draft_vocab_size": 12,
            "rope_theta": 5e5,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
        },
        reads={"rope": RopeConfig(5e5)},
    ),
    "NeMo AutoModel": File(
        "automodel",
        "model.layers.0",
        {
            **FLAT,
            **NO_BIASES,
            "architectures": ["LlamaEagle3DraftModel"],
            "attn_implementation": "sdpa",
            "dtype": "bfloat16",
            "fc_norm": True,
            "norm_output": True,
            "num_hidden_layers": 32,
            "parallel_drafting": False,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"},
            "target_hidden_size": 8,
        },
        {"fc_norm": True},
        {"norm_output": True, "rope": RopeConfig(5e5)},
        layer="model.layers.0.",
        before="model.",
        beside="d2t t2d model.embed_tokens.weight",
    ),
    "NeMo AutoModel of DeepSeek": File(
        "automodel",
        "model.layers.0",
        {
            **LATENT,
            **MOE,
            **TEXT,
            "architectures": ["LlamaEagle3DraftModel"],
            "model_type": "deepseek_v3",
            "draft_vocab_size": 12,
            "num_hidden_layers": 61,
            "qk_head_dim": 6,
            "rope_interleave": True,
            "rope_theta": 1e4,
            "rope_scaling": None,
            "target_hidden_size": 8,
        },
        {"attention": latent_heads()},
        layer="model.layers.0.",
        before="model.",
        beside="d2t t2d model.embed_tokens.weight",
    ),
    "TorchSpec": File(
        "torchspec",
        "torchspec_version",
        {
            **FLAT,
            "architectures": ["LlamaForCausalLMEagle3"],
            "attention_bias": False,
            "draft_vocab_size": 32,
            "num_aux_hidden_states": 3,
            "rope_theta": 1e7,
            "target_hidden_size": 8,
            "torch_dtype": "bfloat16",
            "_torchspec_version": "0.1.0",
        },
        {"draft_vocab_size": V},
        {"rope": RopeConfig(1e7)},
        beside="embed_tokens.weight",
    ),
    "TorchSpec of Kimi": File(
        "torchspec",
        "torchspec_version",
        {
            **LATENT,
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "model_type": "kimi_k2",
            "draft_vocab_size": 32,
            "rope_theta": 5e4,
            "rope_scaling": KIMI_YARN,
            "torch_dtype": "bfloat16",
            "_torchspec_version": "0.1.0",
            "eagle_config": MODELOPT,
        },
        {"attention": latent_heads(), "draft_vocab_size": V},
        {"rope": RopeConfig(5e4, scaling=YarnScaling(64.0, 4096, 1.0, 1.0, 1.0, 1.0))},
        (2, 4, 6),
        beside="embed_tokens.weight",
    ),
    "a head for TensorRT-LLM": File(
        "tensorrt-llm",
        "return_hidden_post_norm",
        {
            **FLAT,
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {LAYER_IDS: [1, 3, 4], "return_hidden_post_norm": True},
        },
        reads={"norm_output": True},
        boundaries=(2, 4, 5),
    ),
    "nobody's": File(
        "sglang",
        "no framework's fingerprint",
        {**FLAT, "architectures": ["MyDraft"]},
        layer="layers.0.",
    ),
}


def write(directory, file: File, metadata=None):
    """A framework's file, its numbers random."""
    tensors = to_tensors(draft_of(**file.holds).params)
    named: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        later = name.startswith("layers.") and not name.startswith("layers.0.")
        if name.startswith("layers.0."):
            name = file.layer + name.removeprefix("layers.0.")
        elif not later and name != "lm_head.weight":
            name = file.before + name
        named[name] = np.ascontiguousarray(tensor)
    table = np.random.default_rng(9).normal(size=(V, 8)).astype(np.float32)
    extra = {"d2t": OFFSETS, "t2d": MASK}
    named |= {name: extra.get(name, table) for name in file.beside.split()}
    directory.mkdir()
    save_file(named, directory / "model.safetensors", metadata)
    (directory / "config.json").write_text(json.dumps(file.config))
    return directory


@pytest.mark.parametrize("name", FILES)
def test_files_of_every_framework_are_told_and_read(tmp_path, name):
    file = FILES[name]
    draft = open_draft(write(tmp_path / "draft", file))
    assert draft.dialect.name == file.dialect
    assert file.told in draft.evidence[0]
    assert draft.config == tiny_config(**{**file.holds, **file.reads})
    assert draft.boundaries == file.boundaries
    assert (draft.embeddings is not None) == ("embed_tokens" in file.beside)


def test_every_trainer_has_a_file_here():
    # No trainer writes these: they read the others' files, or are told apart only by the user.
    readers = {"native", "specforge-0.2", "sglang-jax", "tpu-inference", "modelopt-megatron"}
    assert {file.dialect for file in FILES.values()} == DIALECTS.keys() - readers


def test_a_megatron_export_has_lost_its_vocabulary(tmp_path):
    config = {**FILES["ModelOpt"].config, "eagle_config": {**MODELOPT, "next_layer_regular": True}}
    place = write(tmp_path / "draft", File("modelopt-megatron", "", config, beside=""))
    clues = Clues(config, frozenset(load_file(place / "model.safetensors")), {})
    assert detect(clues).dialect.name == "modelopt-megatron"
    with refused(
        f"{place}: a draft vocabulary of 12 of 32 ids has neither d2t nor t2d, expected one of "
        "them (--vocab-mapping FILE gives it)"
    ):
        open_draft(place)


ARCHITECTURES = """
    LlamaForCausalLM LlamaForCausalLMEagle3 Eagle3LlamaForCausalLM LlamaForCausalLMEagle3Deep
    Eagle3DraftModel Eagle3Speculator LlamaEagle3DraftModel Eagle3DeepseekV2ForCausalLM
    Eagle3DeepseekV3ForCausalLM Eagle3Qwen3ForCausalLM Eagle3MiniMaxM2ForCausalLM
    Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3vlForCausalLM EAGLE3LlamaForCausalLM PEagleDraftModel
""".split()  # noqa: SIM905


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_tensors_tell_the_draft_and_not_its_name(tmp_path, architecture):
    expected = to_tensors(draft_of().params)
    config = {**FLAT, "architectures": [architecture]}
    for layer in ("midlayer.", "layers.0."):
        for before in ("", "model."):
            file = File("", "", config, layer=before + layer, before=before)
            draft: OpenDraft = open_draft(write(tmp_path / f"{before}{layer}draft", file))
            assert draft.config == tiny_config()
            assert draft.tensors.keys() == expected.keys()
            for name, tensor in draft.tensors.items():
                assert tensor.read().tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("dialect", ["specjax", "vllm", "modelopt"])
def test_the_mark_of_this_project_wins_over_fingerprints(tmp_path, dialect):
    file = FILES["EAGLE's trainer"]
    marked = open_draft(write(tmp_path / "draft", file, {MARK: dialect}))
    told = f"written for {dialect} by this program (metadata)"
    assert (marked.dialect.name, marked.evidence) == (dialect, (told,))
    assert marked.config.double_norm == (dialect == "modelopt")


def test_a_mark_that_nobody_knows_is_none(tmp_path):
    place = write(tmp_path / "draft", FILES["EAGLE's trainer"], {MARK: "medusa"})
    assert open_draft(place).dialect.name == "eagle"


def test_the_user_wins_over_everything(tmp_path):
    place = write(tmp_path / "draft", FILES["SpecForge, to SGLang"], {MARK: "specforge"})
    draft = open_draft(place, Reading(dialect="vllm"))
    assert (draft.dialect.name, draft.evidence) == ("vllm", ("--from",))
    assert draft.boundaries == (1, 3, 4)  # vLLM takes the same numbers for boundaries


def test_an_unknown_dialect(tmp_path):
    place = write(tmp_path / "draft", FILES["SpecForge, to SGLang"])
    with refused(f"dialect 'medusa' is unknown, expected one of {', '.join(DIALECTS)}"):
        open_draft(place, Reading(dialect="medusa"))


class TestNormOutputOfSpecForge:
    """The key changed its meaning, and no file says which one it has."""

    def write(self, directory, stated, metadata=None):
        config = {**FILES["SpecForge, to SGLang"].config, "fc_norm": True, "norm_output": stated}
        return write(directory, File("specforge", "", config, {"fc_norm": True}), metadata)

    @pytest.mark.parametrize("stated", [True, False])
    def test_asks(self, tmp_path, stated):
        place = self.write(tmp_path / "draft", stated)
        with refused(
            f"{place / 'config.json'}: norm_output is {stated} in a SpecForge draft, and its "
            "meaning changed: --from specforge-0.2 (up to 0.2.0: whether the head reads a normed "
            "state; the raw one is fed back) or --from specforge (later: whether the normed one is "
            "fed back)"
        ):
            open_draft(place)

    @pytest.mark.parametrize("stated", [True, False])
    def test_has_two_readings(self, tmp_path, stated):
        place = self.write(tmp_path / "draft", stated)
        older = open_draft(place, Reading(dialect="specforge-0.2"))
        newer = open_draft(place, Reading(dialect="specforge"))
        assert (older.config.norm_output, older.config.final_norm) == (False, stated)
        assert (newer.config.norm_output, newer.config.final_norm) == (stated, True)
        dropped = [reason for _, reason in older.unread]
        assert dropped == ([] if stated else ["the head reads the raw state, says norm_output"])

    @pytest.mark.parametrize("dialect", ["specforge", "specforge-0.2"])
    def test_is_known_of_our_own_files(self, tmp_path, dialect):
        place = self.write(tmp_path / "draft", True, {MARK: dialect})
        assert open_draft(place).dialect.name == dialect

    def test_is_settled_by_the_user(self, tmp_path):
        place = self.write(tmp_path / "draft", True)
        draft = open_draft(place, Reading(settings={"norm_output": False}))
        assert not draft.config.norm_output

    def test_does_not_matter_where_it_is_absent(self, tmp_path):
        place = write(tmp_path / "draft", FILES["SpecForge, to SGLang"])
        for dialect in ("specforge", "specforge-0.2"):
            config = open_draft(place, Reading(dialect=dialect)).config
            assert (config.norm_output, config.final_norm) == (False, True)

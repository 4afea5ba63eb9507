"""Config and tensors -> one draft: every value has a source, every correction is told."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from converters.description import numbered_captures, values_of
from converters.drafts import Reading, open_draft
from converters.ledger import parse_settings
from eagle3_jax.errors import InputError
from tests.raw_drafts import (
    ABSENT,
    CONFIG,
    IDS,
    LAYER,
    LAYER_IDS,
    OFFSETS,
    SHAPES,
    WHOLE,
    noise,
    raw_tensors,
    write_raw,
)

UNKNOWN_CAPTURE = (
    "no layer ids: which target states feed the draft is unknown (--boundaries says it, "
    "--target-layers gives the default)"
)
Q_NORMS = {f"{LAYER}self_attn.{x}_norm.weight": noise(4) for x in "qk"}
Q_BIASES = {f"{LAYER}self_attn.{x}_proj.bias": noise(n) for x, n in (("q", 16), ("k", 8), ("v", 8))}
FC_NORMS = {f"fc_norm.{i}.weight": noise(8, seed=i) for i in range(3)}
LATENT = {
    **{f"{LAYER}self_attn.{x}_proj.weight": None for x in "qkv"},
    f"{LAYER}self_attn.q_a_proj.weight": noise(7, 16),
    f"{LAYER}self_attn.q_a_layernorm.weight": noise(7),
    f"{LAYER}self_attn.q_b_proj.weight": noise(4 * 6, 7),
    f"{LAYER}self_attn.kv_a_proj_with_mqa.weight": noise(5 + 4, 16),
    f"{LAYER}self_attn.kv_a_layernorm.weight": noise(5),
    f"{LAYER}self_attn.kv_b_proj.weight": noise(4 * (2 + 3), 5),
    f"{LAYER}self_attn.o_proj.weight": noise(8, 12),
}


@pytest.fixture
def opened(tmp_path):
    def open_raw(keys=None, tensors=None, settings=(), **reading):
        directory = write_raw(tmp_path / "draft", keys, tensors)
        return open_draft(directory, Reading(settings=parse_settings(settings), **reading))

    return open_raw


@pytest.fixture
def refusal(tmp_path, opened):
    """What a reader of the directory is told, without where."""

    def told(*arguments, **options):
        with pytest.raises(InputError) as caught:
            opened(*arguments, **options)
        message = str(caught.value)
        assert "\n" not in message
        return re.sub(f"^{re.escape(str(tmp_path))}/draft(/config.json)?: ", "", message)

    return told


# name, value, source | keys | tensors
SOURCES = [
    ("hidden_size", 8, "shape of hidden_norm", {}, {}),
    ("intermediate_size", 16, "shape of gate_proj", {}, {}),
    ("vocab_size", 32, "length of t2d", {}, {}),
    ("vocab_size", 32, "length of embed_tokens", {}, {"embed_tokens.weight": noise(32, 8)}),
    ("vocab_size", 32, "config vocab_size", {}, {"t2d": None}),
    ("draft_vocab_size", 12, "shape of lm_head", {"draft_vocab_size": None}, {}),
    ("draft_vocab_size", 12, "shape of lm_head", {"draft_vocab_size": ABSENT}, {}),
    ("draft_vocab_size", 32, "the target's vocabulary", {"draft_vocab_size": None}, WHOLE),
    ("draft_vocab_size", 32, "the target's vocabulary", {"draft_vocab_size": 32}, WHOLE),
    ("head", "target", "tensor lm_head.weight and tie_word_embeddings", {"draft_vocab_size": None},
     WHOLE),
    ("head", "tied", "tensor lm_head.weight and tie_word_embeddings",
     {"draft_vocab_size": None, "tie_word_embeddings": True}, WHOLE),
    ("target_hidden_size", 8, "the draft's own width", {}, {}),
    ("target_hidden_size", 8, "the draft's own width", {"target_hidden_size": None}, {}),
    ("target_hidden_size", 12, "config target_hidden_size", {"target_hidden_size": 12},
     {"fc.weight": noise(8, 36)}),
    ("num_aux", 3, "shape of fc", {}, {}),
    ("num_aux", 0, "no tensor fc.weight", {"eagle_config": ABSENT}, {"fc.weight": None}),
    ("num_hidden_layers", 1, "tensors' names", {}, {}),
    ("num_attention_heads", 4, "config num_attention_heads", {}, {}),
    ("num_key_value_heads", 2, "shape of k_proj", {"num_key_value_heads": ABSENT}, {}),
    ("head_dim", 4, "shape of q_proj", {"head_dim": ABSENT}, {}),
    ("rms_norm_eps", 1e-5, "config rms_norm_eps", {}, {}),
    ("attention_bias", True, "tensor q_proj.bias", {}, Q_BIASES),
    ("output_bias", True, "tensor o_proj.bias", {}, {f"{LAYER}self_attn.o_proj.bias": noise(8)}),
    ("fc_bias", True, "tensor fc.bias", {}, {"fc.bias": noise(8)}),
    ("qk_norm", True, "tensor q_norm.weight", {}, Q_NORMS),
    ("norm_before_fc", True, "config norm_before_fc", {"norm_before_fc": True},
     {"input_norm.weight": noise(24)}),
    ("norm_before_fc", True, "config eagle_config.norm_before_fc",
     {"bias": False, "eagle_config": {"norm_before_fc": True}}, {"input_norm.weight": noise(24)}),
    ("fc_norm", True, "config use_aux_norm", {"use_aux_norm": True}, FC_NORMS),
    ("norm_output", True, "config eagle_config.return_hidden_post_norm",
     {"eagle_config": {"return_hidden_post_norm": True}}, {}),
    ("norm_output", True, "config norm_output", {"norm_output": True, "bias": False}, {}),
    ("norm_output", False, "specforge's default", {}, {}),
    ("norm_before_residual", True, "config norm_before_residual", {"norm_before_residual": True},
     {}),
    ("norm_before_residual", False, "specforge's rule: its residual is always the raw state", {},
     {}),
    ("rope_theta", 10000.0, "specforge's default", {"rope_theta": ABSENT}, {}),
    ("rope_theta", 5e5, "config rope_theta", {"rope_theta": 500000}, {}),
    ("rope_theta", 5e5, "config rope_parameters.rope_theta",
     {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}),
    ("rope_theta", 5e5, "config rope_scaling.rope_theta",
     {"rope_theta": None, "rope_scaling": {"type": "default", "rope_theta": 500000}}, {}),
    ("rope_theta", 5e5, "config rope_theta",
     {"rope_theta": 500000, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {}),
    ("rope_theta", 5e5, "config transformer_layer_config.rope_theta",
     {"rope_theta": ABSENT, "transformer_layer_config": {"rope_theta": 5e5}}, {}),
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "config rope_scaling",
     {"rope_scaling": {"type": "linear", "factor": 2.0}}, {}),
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "config rope_parameters",
     {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, {}),
    ("rope_scaling", None, "config rope_scaling", {"rope_scaling": None}, {}),
    ("rope_scaling", None, "specforge's default", {}, {}),
    ("partial_rotary_factor", 0.5, "config partial_rotary_factor", {"partial_rotary_factor": 0.5},
     {}),
    ("partial_rotary_factor", 0.5, "config rope_parameters.partial_rotary_factor",
     {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, {}),
    ("q_lora_rank", 7, "q_a_proj", {}, LATENT),
    ("kv_lora_rank", 5, "shape of kv_a_layernorm", {}, LATENT),
    ("qk_nope_head_dim", 2, "shape of q_b_proj.weight", {}, LATENT),
    ("qk_rope_head_dim", 4, "shape of kv_a_proj_with_mqa", {}, LATENT),
    ("v_head_dim", 3, "shape of kv_b_proj", {}, LATENT),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "source", "keys", "tensors"), SOURCES)
def test_each_value_remembers_where_it_came_from(opened, name, value, source, keys, tensors):
    draft = opened(keys, tensors)
    assert values_of(draft.config)[name] == value
    assert draft.sources[name] == source


def test_no_value_is_without_a_source(opened):
    draft = opened({"partial_rotary_factor": 0.5})
    assert values_of(draft.config).keys() - draft.sources.keys() == set()
    assert {"boundaries", "vocabulary"} <= draft.sources.keys()


@pytest.mark.parametrize(
    ("setting", "name", "value", "keys"),
    [
        ("rope_theta=5e5", "rope_theta", 5e5, {"rope_theta": 1e6}),
        ("rope_theta=5e5", "rope_theta", 5e5, {"rope_theta": "a word"}),
        ("rope_theta=5e5", "rope_theta", 5e5,
         {"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 2e6}}),
        ("rope_scaling=none", "rope_scaling", None,
         {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("rope_scaling=none", "rope_scaling", None, {"rope_scaling": {"rope_type": "foo"}}),
        ("rms_norm_eps=1e-6", "rms_norm_eps", 1e-6, {"rms_norm_eps": ABSENT}),
        ("num_attention_heads=8", "num_attention_heads", 8, {"num_attention_heads": "four"}),
        ("norm_output=true", "norm_output", True, {"norm_output": False}),
        ("norm_before_residual=true", "norm_before_residual", True, {}),
        ("double_norm=TRUE", "double_norm", True, {}),
        ("final_norm=false", "final_norm", False, {}),
        ("sliding_window=4", "sliding_window", 4, {}),
        ("sliding_window=none", "sliding_window", None,
         {"sliding_window": 5, "layer_types": ["sliding_attention"]}),
    ],
)  # fmt: skip
def test_what_the_user_sets_wins_over_the_file(opened, setting, name, value, keys):
    draft = opened(keys, settings=[setting])
    assert values_of(draft.config)[name] == value
    assert draft.sources[name] == "--set"


def test_a_scaling_that_is_set_aside_leaves_its_base(opened):
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    draft = opened({"rope_theta": ABSENT, "rope_scaling": scaling}, settings=["rope_scaling=none"])
    assert draft.config.rope.theta == 5e5
    assert draft.sources["rope_theta"] == "config rope_scaling.rope_theta"


def test_a_norm_that_the_user_switches_off_is_told(opened):
    draft = opened(settings=["final_norm=false"])
    assert "norm.weight is left out: the head reads the raw state, says --set" in draft.notes


ONE_OF = (
    "norm_before_residual, norm_before_fc, fc_norm, norm_output, double_norm, final_norm, "
    "num_attention_heads, rms_norm_eps, rope_theta, rope_scaling, sliding_window, d2t"
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["norm_outptu=true"],
         f"--set is 'norm_outptu=true', expected NAME=VALUE with one of {ONE_OF}"),
        (["norm_output"], f"--set is 'norm_output', expected NAME=VALUE with one of {ONE_OF}"),
        ([""], f"--set is '', expected NAME=VALUE with one of {ONE_OF}"),
        (["norm_output=1"], "--set norm_output is '1', expected true or false"),
        (["norm_output=none"], "--set norm_output is 'none', expected true or false"),
        (["rope_theta=true"], "--set rope_theta is 'true', expected a positive number"),
        (["rope_theta=nan"], "--set rope_theta is 'nan', expected a positive number"),
        (["rope_theta=inf"], "--set rope_theta is 'inf', expected a positive number"),
        (["rope_theta=0"], "--set rope_theta is '0', expected a positive number"),
        (["rms_norm_eps=-1e-5"], "--set rms_norm_eps is '-1e-5', expected a positive number"),
        (["rope_scaling=yarn"], "--set rope_scaling is 'yarn', expected none"),
        (["num_attention_heads=2.5"],
         "--set num_attention_heads is '2.5', expected a positive whole number"),
        (["num_attention_heads=1e999"],
         "--set num_attention_heads is '1e999', expected a positive whole number"),
        (["sliding_window=0.5"],
         "--set sliding_window is '0.5', expected a positive whole number or none"),
        (["sliding_window=inf"],
         "--set sliding_window is 'inf', expected a positive whole number or none"),
        (["d2t=offsets"], "--set d2t is 'offsets', expected offset or absolute"),
        (["norm_output=true", "norm_output=false"],
         "--set norm_output is given twice, expected one value"),
    ],
)  # fmt: skip
def test_settings_that_are_none(settings, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        parse_settings(settings)


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        ({"hidden_size": 9}, "hidden_size is 9 in the config, 8 by the shape of hidden_norm"),
        ({"hidden_size": "8"}, "hidden_size is '8' in the config, 8 by the shape of hidden_norm"),
        ({"head_dim": 2}, "head_dim is 2 in the config, 4 by the shape of q_proj"),
        ({"head_dim": [4]}, "head_dim is [4] in the config, 4 by the shape of q_proj"),
        ({"num_hidden_layers": 36},
         "num_hidden_layers is 36 in the config, 1 by the tensors' names"),
        ({"num_hidden_layers": True},
         "num_hidden_layers is True in the config, 1 by the tensors' names"),
        ({"draft_vocab_size": -1},
         "draft_vocab_size is -1 in the config, 12 by the shape of lm_head"),
        ({"vocab_size": 40}, "vocab_size is 40 in the config, 32 by the length of t2d"),
        ({"tie_word_embeddings": True},
         "tie_word_embeddings is true beside an own lm_head: the own one is used"),
    ],
)  # fmt: skip
def test_a_config_that_shapes_prove_wrong_is_corrected_and_told(opened, keys, note):
    draft = opened(keys)
    assert draft.notes == (note,)
    assert draft.config == opened().config


FUSED = "states of width 8, but fc reads 24 columns, expected"
PATH = f"eagle_config.{LAYER_IDS}"
NUMBER = "expected a number below 1e+18"


@pytest.mark.parametrize(
    ("keys", "tensors", "message"),
    [
        ({"draft_vocab_size": 12}, WHOLE,
         "draft_vocab_size is 12, but the file holds no lm_head.weight, expected one of 12 rows: "
         "without it the head is another's, of 32"),
        ({"vocab_size": 10**9}, {"t2d": None}, "vocab_size is 1000000000, expected at most "
         "16777216"),
        ({}, {"layers.5.mlp.gate_proj.weight": noise(16, 8)},
         "the file holds tensors of layers 0, 5, expected layers from 0 without a gap"),
        ({}, {"layers.99999999999.x": noise(1)},
         "the file holds tensors of layers 0, 99999999999, expected layers from 0 without a gap"),
        ({"rms_norm_eps": math.nan}, {}, f"rms_norm_eps is nan, {NUMBER}"),
        ({"rms_norm_eps": 10**400}, {}, f"rms_norm_eps is 100000000000, {NUMBER}"),
        ({"rms_norm_eps": -1e-5}, {}, "rms_norm_eps is -1e-05, expected a positive number"),
        ({"rope_theta": math.inf}, {}, f"rope_theta is inf, {NUMBER}"),
        ({"rope_scaling": {"type": "linear", "factor": math.inf}}, {},
         f"rope_scaling.factor is inf, {NUMBER}"),
        ({"eagle_config": {LAYER_IDS: [1, 3, 10**30]}}, {}, f"{PATH} is 100000000000, {NUMBER}"),
        ({"layer_types": ["chunked_attention"]}, {},
         "layer_types is ['chunked_attention'], expected a list of full_attention and "
         "sliding_attention"),
        ({"layer_types": [{}]}, {},
         "layer_types is [{}], expected a list of full_attention and sliding_attention"),
        ({"eagle_config": {LAYER_IDS: [1, 3]}}, {}, f"{PATH} means 2 {FUSED} 16"),
        ({"eagle_config": {LAYER_IDS: []}}, {}, f"{PATH} means 0 {FUSED} 0"),
        ({"eagle_config": {LAYER_IDS: [True, 3, 4]}}, {},
         f"{PATH} is [True, 3, 4], expected a list of integers"),
        ({"eagle_config": {LAYER_IDS: [1.0, 3, 4]}}, {},
         f"{PATH} is [1.0, 3, 4], expected a list of integers"),
        ({"eagle_config": {LAYER_IDS: "1,3,4"}}, {},
         f"{PATH} is '1,3,4', expected a list of integers"),
        ({"eagle_config": {LAYER_IDS: [4, 3, 1]}}, {},
         f"{PATH} is [4, 3, 1]: layer ids [4, 3, 1] do not ascend, expected each higher than the "
         "last"),
        ({LAYER_IDS: [2, 4, 6]}, {},
         f"{LAYER_IDS} [2, 4, 6] and {PATH} [1, 3, 4] differ, expected one (--boundaries decides)"),
        ({"num_aux_hidden_states": 4}, {}, f"num_aux_hidden_states means 4 {FUSED} 32"),
        ({"logit_scale": 0.5}, {}, "logit_scale is 0.5, expected 1"),
        ({"rope_interleave": False}, LATENT,
         "rope_interleave is false, expected true: latent attention turns neighbours"),
        ({"target_hidden_size": 12}, {},
         f"{PATH} means 3 states of width 12, but fc reads 24 columns, expected 36"),
        ({"norm_before_fc": True}, {},
         "norm_before_fc is on, but the file holds no input_norm.weight: one of them is wrong, and "
         "acceptance hangs on it (--set norm_before_fc=true or false decides)"),
        ({}, {"input_norm.weight": noise(24)},
         "norm_before_fc is off, but the file holds input_norm.weight: one of them is wrong, and "
         "acceptance hangs on it (--set norm_before_fc=true or false decides)"),
        ({"norm_before_fc": True, "eagle_config": {"norm_before_fc": False}}, {},
         "config norm_before_fc true and config eagle_config.norm_before_fc false differ, expected "
         "one value (--set norm_before_fc=... decides)"),
        ({}, {"fc.weight": None},
         f"{PATH} names 3 states, but the file holds no fc.weight that fuses them, expected one, "
         "or use_aux_hidden_state false for a draft of the target's last state alone"),
        ({"fc_norm": True, "norm_before_fc": True}, {"input_norm.weight": noise(24), **FC_NORMS},
         "norm_before_fc and fc_norm are both set, expected at most one: frameworks disagree on "
         "the order of the two"),
        ({"norm_before_residual": "true"}, {},
         "norm_before_residual is 'true', expected true or false"),
        ({"norm_output": True}, {},
         "norm_output is True in a SpecForge draft, and its meaning changed: --from specforge-0.2 "
         "(up to 0.2.0: whether the head reads a normed state; the raw one is fed back) or --from "
         "specforge (later: whether the normed one is fed back)"),
        ({"rope_theta": 1e6, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {},
         "rope_theta is 1000000.0 at the top and 500000.0 nested, expected one"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, {},
         "rope_type and type are linear and yarn, expected one type"),
        ({"foo": 1, "bar": 2}, {}, "unknown keys bar, foo, expected none (--allow KEY passes over "
         "one that changes no number)"),
        ({"eagle_config": {"foo": 1}}, {}, "eagle_config has unknown keys foo, expected none "
         "(--allow KEY passes over one that changes no number)"),
        ({"quantization_config": {"bits": 4}}, {},
         "quantization_config marks quantised weights, expected an EAGLE-3 draft in floating point "
         "that drafts one token after another (--allow quantization_config passes over it)"),
    ],
)  # fmt: skip
def test_contradictions_that_no_shape_decides_are_refused(refusal, keys, tensors, message):
    assert refusal(keys, tensors) == message


@pytest.mark.parametrize(
    "keys",
    [
        {LAYER_IDS: [2, 4, 5]},
        {"eagle_config": {LAYER_IDS: [1, 3]}},
        {"eagle_config": {LAYER_IDS: "1,3,4"}},
        {"eagle_config": None},
    ],
)
def test_boundaries_of_the_user_decide_whatever_the_config_states(opened, keys):
    draft = opened(keys, boundaries=(2, 4, 6))
    assert (draft.boundaries, draft.sources["boundaries"]) == ((2, 4, 6), "--boundaries")


@pytest.mark.parametrize(
    ("boundaries", "layers", "message"),
    [
        ((2, 4), None, f"--boundaries means 2 {FUSED} 16"),
        ((4, 2, 5), None, "boundaries [4, 2, 5]: layer ids [4, 2, 5] do not ascend, expected each "
         "higher than the last"),
        ((2, 4, 9), 8, "boundaries [2, 4, 9]: layer id 9 is outside the target, expected 0 to 8"),
    ],
)  # fmt: skip
def test_boundaries_that_cannot_be(refusal, boundaries, layers, message):
    assert refusal(boundaries=boundaries, target_layers=layers) == message


@pytest.mark.parametrize(
    ("keys", "dialect", "boundaries", "numbering"),
    [
        ({}, "specforge", (2, 4, 5), "output"),
        ({}, "vllm", (1, 3, 4), "boundary"),
        ({"eagle_config": None, LAYER_IDS: [2, 4, 5]}, "vllm", (2, 4, 5), "boundary"),
        ({"eagle_config": {LAYER_IDS: [-1, 3, 7]}}, "sglang", (0, 4, 8), "output"),
    ],
)
def test_layer_ids_mean_what_their_framework_means(opened, keys, dialect, boundaries, numbering):
    draft = opened(keys, dialect=dialect, target_layers=8)
    assert draft.boundaries == boundaries
    assert draft.sources["boundaries"].endswith(f", numbered by {numbering}")


def test_the_last_block_is_a_capture_and_what_follows_is_not(opened, refusal):
    keys = {"eagle_config": {LAYER_IDS: [4, 6, 8]}}
    assert opened(keys, dialect="vllm", target_layers=8).boundaries == (4, 6, 8)
    message = "layer id 8 is outside the target, expected -1 to 7"
    assert refusal(keys, target_layers=8) == f"{PATH} is [4, 6, 8]: {message}"


def test_unknown_and_assumed_captures_are_told(opened):
    unknown = opened({"eagle_config": None})
    assert (unknown.boundaries, unknown.notes) == (None, (UNKNOWN_CAPTURE,))
    assumed = opened({"eagle_config": None}, target_layers=30)
    assert assumed.boundaries == (2, 15, 27)
    assert assumed.sources["boundaries"] == "specforge's default for 30 target layers"
    assert assumed.notes == (
        "no layer ids: assumed are boundaries [2, 15, 27], what SpecForge, from pull request 879 "
        "on takes of a target of 30 layers",
    )


def test_the_usual_ids_in_the_other_numbering_are_suspected(opened):
    (note,) = opened({"eagle_config": {LAYER_IDS: [2, 4, 5]}}, target_layers=8).notes
    assert note == (
        "layer ids [2, 4, 5] are numbered by output in SpecForge, from pull request 879 on; they "
        "look like the usual ones numbered by boundary: --boundaries 2,4,5 reads them so"
    )


def test_a_shallow_target_has_captures_in_every_numbering_but_no_default():
    rows = {row.dialect: row for row in numbered_captures((1, 2, 4), 5)}
    assert rows["vllm"].ids == [1, 2, 4]
    assert rows["sglang"].ids == [0, 1, 3]
    assert (rows["eagle"].ids, rows["eagle"].fits) == (None, None)


@pytest.mark.parametrize(
    ("tensors", "settings", "told"),
    [
        ({"d2t": IDS.astype(np.int64)}, [],
         "d2t holds target ids (0 to 31) instead of offsets, as t2d proves: read as such"),
        ({"d2t": IDS.astype(np.int64), "t2d": None}, [],
         "d2t holds target ids (0 to 31) instead of offsets, since as offsets some would lie "
         "outside the vocabulary: read as such"),
        ({"d2t": IDS.astype(np.int64), "t2d": None}, ["d2t=absolute"],
         "no t2d: rebuilt from d2t"),
        ({"t2d": None}, [], "no t2d: rebuilt from d2t"),
        ({"d2t": None}, [], "no d2t: rebuilt from t2d"),
        ({"d2t": OFFSETS.astype(np.int32)}, ["d2t=offset"], None),
    ],
)  # fmt: skip
def test_the_vocabulary_however_it_is_told(opened, tensors, settings, told):
    draft = opened({}, tensors, settings, dialect="specforge")
    np.testing.assert_array_equal(draft.vocab.target_ids, IDS)
    assert draft.vocab.in_draft.sum() == 12
    assert told is None or told in draft.notes


def test_a_lost_map_is_suspected_or_asked_for(opened, refusal):
    zeros = {"d2t": np.zeros(12, np.int64), "t2d": None}
    assert "d2t means the first 12 ids, almost surely a lost mapping" in opened({}, zeros).notes
    assert refusal({}, {"d2t": None, "t2d": None}) == (
        "a draft vocabulary of 12 of 32 ids has neither d2t nor t2d, expected one of them "
        "(--vocab-mapping FILE gives it)"
    )
    whole = {"lm_head.weight": noise(32, 8), "d2t": None, "t2d": None}
    draft = opened({"draft_vocab_size": 32}, whole)
    np.testing.assert_array_equal(draft.vocab.target_ids, np.arange(32))
    assert draft.sources["vocabulary"] == "the whole vocabulary"


# What trainers and exporters write beside what decides; nobody may stumble over it.
KINDRED = {
    "SafeAILab": {"bos_token_id": 128000, "eos_token_id": 128001, "initializer_range": 0.02,
                  "pad_token_id": 0, "transformers_version": "4.28.1", "use_cache": True,
                  "torch_dtype": "float16"},
    "SpecForge": {"max_window_layers": 48, "sliding_window": None, "use_sliding_window": False,
                  "attention_dropout": 0.0, "pretraining_tp": 1, "mlp_bias": False},
    "AngelSlim": {"target_model_type": "qwen3", "modal_type": "LLM", "dtype": "bfloat16"},
    "ModelOpt": {"eagle_config": {LAYER_IDS: [1, 3, 4], "use_aux_hidden_state": True,
                                  "use_input_layernorm_in_first_layer": True,
                                  "use_last_layernorm": True, "use_mtp_layernorm": False,
                                  "next_layer_regular": True, "parallel_draft_step": 1,
                                  "parallel_draft_heads_num_layers": None},
                 "bos_token_id": None, "pretraining_tp": None},
    "TorchSpec": {"num_aux_hidden_states": 3, "target_hidden_size": 8, "torchspec_version": "1"},
}  # fmt: skip


@pytest.mark.parametrize("keys", KINDRED.values(), ids=KINDRED)
def test_configs_as_each_framework_writes_them_are_read(opened, keys):
    assert opened(keys).boundaries == (2, 4, 5)


ODD: list[Any] = [None, True, -1, 0, 1.5, 10**30, math.nan, "x", [], [1], {}, {"a": [None]}, [[]]]
KEYS = [
    *CONFIG, "attention_bias", "bias", "fc_norm", "hidden_act", "kv_lora_rank", "layer_types",
    "mlp_bias", "norm_before_fc", "norm_before_residual", "norm_output", "num_aux_layers",
    "num_aux_hidden_states", "partial_rotary_factor", "rope_parameters", "rope_scaling",
    "sliding_window", "speculators_config", "target_hidden_size", "tie_word_embeddings",
    "transformer_layer_config", "use_aux_norm", "use_sliding_window", LAYER_IDS,
]  # fmt: skip


def outcome(directory):
    """The draft or, where it is refused, what is said."""
    try:
        return open_draft(directory)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("key", KEYS)
def test_odd_values_of_any_key_are_refused_or_read_never_a_traceback(tmp_path, key):
    directory = write_raw(tmp_path / "draft")
    for value in [*ODD, ABSENT]:
        config = {k: v for k, v in (CONFIG | {key: value}).items() if v is not ABSENT}
        (directory / "config.json").write_text(json.dumps(config))
        found = outcome(directory)
        if isinstance(found, str):
            assert found.startswith(f"{directory}/config.json: "), value
        else:
            assert found.config.hidden_size == 8


@pytest.mark.parametrize("name", [*SHAPES, "d2t", "t2d", "embed_tokens.weight"])
def test_odd_tensors_are_refused_or_told_never_a_traceback(tmp_path, name):
    whole = raw_tensors() | {"embed_tokens.weight": noise(32, 8)}
    right = whole[name]
    odd = [
        np.zeros((), right.dtype),
        np.zeros(0, right.dtype),
        np.zeros((0, 8), right.dtype),
        right[None, None],
        right[..., :-1],
        right[:-1],
        right.astype(np.int16),
        right.astype(np.float64),
    ]
    for tensor in odd:
        found = outcome(write_raw(tmp_path / "draft", {}, {**whole, name: tensor}))
        assert isinstance(found, str), tensor
        assert found.startswith(str(tmp_path / "draft"))


@pytest.mark.parametrize("name", [*SHAPES, "d2t", "t2d"])
def test_a_lost_tensor_is_refused_or_told(tmp_path, name):
    found = outcome(write_raw(tmp_path / "draft", {}, {name: None}))
    if isinstance(found, str):
        assert name.removeprefix(LAYER) in found
    else:
        assert any(name in note for note in found.notes)


@pytest.mark.parametrize(
    ("dialect", "place"), [("sglang", f"eagle_config.{LAYER_IDS}"), ("vllm", LAYER_IDS)]
)
def test_one_capture_in_two_numberings_is_no_contradiction(opened, dialect, place):
    draft = opened({LAYER_IDS: [2, 4, 5]}, dialect=dialect)
    assert draft.boundaries == (2, 4, 5)
    assert draft.sources["boundaries"].startswith(f"config {place} ")


def test_one_parallel_draft_step_is_none(opened, refusal):
    exported = {"parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1}
    nested = CONFIG["eagle_config"] | exported
    assert opened({"eagle_config": nested}, dialect="modelopt").config.num_aux == 3
    message = "parallel_draft_step 4 marks parallel drafting, expected 1"
    assert refusal({"eagle_config": nested | {"parallel_draft_step": 4}}) == message

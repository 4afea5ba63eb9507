"""Drafts on disk: what is written comes back, what would be lost is refused by name."""

import json
import re
from dataclasses import fields
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.drafts import LoadedDraft, load_draft
from converters.shapes import expected_shapes
from converters.trees import to_tensors, to_tree
from converters.writing import save_draft
from eagle3_jax.config import (
    AttentionConfig,
    DraftConfig,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap
from tests.conftest import tiny_config

V, W, D = 32, 12, 8
IDS = np.array([0, 1, 3, 4, 7, 8, 9, 15, 20, 21, 30, 31])
OFFSETS, MASK = IDS - np.arange(W), np.isin(np.arange(V), IDS)
MAX_POSITIONS = 64
NO_SUCH_KEYS = "expected none (--allow KEY passes over one that changes no number)"
HOLDS_IDS = "d2t holds target ids (0 to 31) instead of offsets"
MAYBE_IDS = "d2t is read as offsets, but it could be target ids as well (--set d2t=absolute)"
USUAL = object()  # as many boundaries as the draft reads, from 2 on
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
Q_PROJ = "midlayer.self_attn.q_proj.weight"


def refused(message):
    return pytest.raises(InputError, match=f"^{re.escape(message)}$")


def random_array(shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def draft_of(*, dtype=np.float32, embeddings=False, boundaries=USUAL, **changes):
    config = tiny_config(**changes)
    if boundaries is USUAL:
        boundaries = tuple(range(2, 2 + config.num_aux)) or None
    tensors = {
        name: random_array(shape, dtype, seed)
        for seed, (name, shape) in enumerate(expected_shapes(config).items())
    }
    whole = config.draft_vocab_size == V
    return LoadedDraft(
        config,
        to_tree(tensors),
        VocabMap.identity(V) if whole else VocabMap.from_ids(IDS, V),
        random_array((V, config.hidden_size), dtype, 99) if embeddings else None,
        boundaries,
        (),
    )


def attention(**changes):
    settings = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 4}
    return AttentionConfig(**(settings | changes))


@pytest.fixture
def saved(tmp_path):
    """A plain draft on disk, and a way to change it there; `None` takes a thing away."""

    def change(keys=None, tensors=None, rename=lambda name: name, **knobs):
        directory = tmp_path / "draft"
        save_draft(directory, draft_of(**knobs), max_positions=MAX_POSITIONS, overwrite=True)
        config = json.loads((directory / "config.json").read_text())
        absent = {key for key, value in (keys or {}).items() if value == "absent"}
        config = {k: v for k, v in (config | (keys or {})).items() if k not in absent}
        (directory / "config.json").write_text(json.dumps(config))
        on_disk = load_file(directory / "model.safetensors") | (tensors or {})
        kept = {rename(name): tensor for name, tensor in on_disk.items() if tensor is not None}
        save_file(kept, directory / "model.safetensors")
        return directory

    return change


def round_trip(tmp_path, draft):
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS)
    return load_draft(tmp_path / "draft")


def assert_same(found, expected, notes=()):
    """Config, every leaf to the byte, vocabulary, embeddings and capture."""
    assert found.config == expected.config
    ours, theirs = to_tensors(found.params), to_tensors(expected.params)
    if expected.embeddings is None:
        assert found.embeddings is None
    else:
        ours["embeddings"], theirs["embeddings"] = found.embeddings, expected.embeddings
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (tensor.dtype, tensor.shape), name
        assert ours[name].tobytes() == tensor.tobytes(), name
    for name in ("target_ids", "in_draft"):
        np.testing.assert_array_equal(getattr(found.vocab, name), getattr(expected.vocab, name))
    assert found.boundaries == expected.boundaries
    assert found.notes == notes


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_types_and_bytes_come_back(tmp_path, dtype):
    draft = draft_of(dtype=dtype, embeddings=True, boundaries=(2, 4, 5))
    assert_same(round_trip(tmp_path, draft), draft)
    stated = json.loads((tmp_path / "draft/config.json").read_text())["torch_dtype"]
    assert stated == np.dtype(dtype).name


def test_norms_of_a_wider_type_keep_it_and_do_not_name_the_file(tmp_path):
    draft = draft_of(dtype=ml_dtypes.bfloat16)
    draft.params["norm"]["scale"] = draft.params["norm"]["scale"].astype(np.float32)
    assert_same(round_trip(tmp_path, draft), draft)
    assert json.loads((tmp_path / "draft/config.json").read_text())["torch_dtype"] == "bfloat16"


# Field of DraftConfig -> changes that SGLang has a place for.
EXPRESSED: dict[str, list[dict[str, Any]]] = {
    "hidden_size": [{"hidden_size": 6, "target_hidden_size": 6}],
    "target_hidden_size": [{"target_hidden_size": 12, "embeddings": True}],
    "intermediate_size": [{"intermediate_size": 10}],
    "vocab_size": [],
    "draft_vocab_size": [{"draft_vocab_size": V}],
    "attention": [
        {"attention": attention(output_bias=True)},
        {"attention": attention(num_kv_heads=4)},
        {"attention": attention(num_kv_heads=1)},
        {"attention": attention(head_dim=2)},
        {"attention": attention(num_heads=3, num_kv_heads=1, head_dim=6)},
    ],
    "rope": [
        {"rope": RopeConfig(theta=5e5, partial=0.5)},
        {"rope": RopeConfig(scaling=LinearScaling(2.0))},
        {"rope": RopeConfig(scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192))},
        {"rope": RopeConfig(scaling=YarnScaling(4.0, 16))},
        {"rope": RopeConfig(5e5, 1.0, YarnScaling(4.0, 16, 16.0, 2.0, 1.0, 0.5, None, False))},
        {"rope": RopeConfig(scaling=LongRopeScaling((1.0, 1.5), (2.0, 4.0), 16, 4.0))},
    ],
    "num_aux": [{"num_aux": 2}, {"num_aux": 4, "boundaries": (0, 2, 4, 8)}],
    "num_layers": [{"num_layers": 3}],
    "rms_norm_eps": [{"rms_norm_eps": 1e-6}],
    "norm_before_fc": [{"norm_before_fc": True}],
    "fc_norm": [{"fc_norm": True}],
    "norm_output": [{"norm_output": True}],
    "fc_bias": [{"fc_bias": True, "attention": attention(output_bias=True)}],
    "head": [
        {"head": "tied", "draft_vocab_size": V, "embeddings": True},
        {"head": "tied", "draft_vocab_size": V},
        {"head": "target", "draft_vocab_size": V},
    ],
}
# Field of DraftConfig -> changes that it has no place for, and what the user is told.
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "norm_before_residual": [({"norm_before_residual": True}, "norm_before_residual")],
    "double_norm": [({"double_norm": True}, "double_norm")],
    "final_norm": [({"final_norm": False}, "a missing final norm")],
    "mlp_bias": [({"mlp_bias": True}, "mlp_bias")],
    "attention": [
        ({"attention": attention(bias=True)}, "q/k/v biases"),
        ({"attention": attention(qk_norm=True)}, "q/k norms"),
        ({"attention": attention(sliding_window=5)}, "a sliding window"),
    ],
    "num_aux": [
        ({"num_aux": 1}, "an fc that reads as many columns as it has rows"),
    ],
    "rope": [
        (
            {"rope": RopeConfig(scaling=DynamicScaling(2.0, MAX_POSITIONS))},
            "dynamic RoPE scaling",
        ),
        (
            {"rope": RopeConfig(scaling=YarnScaling(4.0, 16, attention_factor=1.2))},
            "YaRN's attention_factor",
        ),
        (
            {"rope": RopeConfig(scaling=LongRopeScaling((1.0, 1.5), (2.0, 4.0), 16, 4.0, 1.1))},
            "LongRoPE's attention_factor",
        ),
        (
            {"rope": RopeConfig(scaling=LongRopeScaling((1.0, 1.5), (2.0, 4.0), 16, 8.0))},
            "a LongRoPE factor other than max_positions / original length",
        ),
    ],
}


def test_every_knob_is_tried():
    assert {field.name for field in fields(DraftConfig)} == EXPRESSED.keys() | REFUSED.keys()


@pytest.mark.parametrize("changes", [change for row in EXPRESSED.values() for change in row])
def test_knobs_come_back(tmp_path, changes):
    draft = draft_of(**changes)
    assert_same(round_trip(tmp_path, draft), draft)


@pytest.mark.parametrize(("changes", "what"), [case for row in REFUSED.values() for case in row])
def test_knobs_without_a_place_are_refused_by_name(tmp_path, changes, what):
    message = f"{tmp_path / 'draft'}: sglang has no place for {what}: "
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        round_trip(tmp_path, draft_of(**changes))
    assert list(tmp_path.iterdir()) == []


def test_the_written_file_is_what_sglang_names_it(tmp_path):
    draft = draft_of(num_layers=2, fc_norm=True, boundaries=(2, 4, 5), rms_norm_eps=1e-6)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS)
    assert sorted(path.name for path in (tmp_path / "draft").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    tensors = load_file(tmp_path / "draft/model.safetensors")
    attention_and_mlp = [f"self_attn.{x}_proj" for x in "qkvo"] + [
        f"mlp.{x}_proj" for x in ("gate", "up", "down")
    ]
    assert tensors.keys() == {
        "fc.weight",
        *(f"fc_norm.{i}.weight" for i in range(3)),
        "midlayer.hidden_norm.weight",
        "midlayer.input_layernorm.weight",
        "midlayer.post_attention_layernorm.weight",
        *(f"midlayer.{name}.weight" for name in attention_and_mlp),
        "layers.1.hidden_norm.weight",
        "layers.1.post_attention_layernorm.weight",
        *(f"layers.1.{name}.weight" for name in attention_and_mlp),
        "norm.weight",
        "lm_head.weight",
        "d2t",
        "t2d",
    }
    assert tensors[Q_PROJ].shape == (16, 2 * D)  # [out, in]
    assert [str(tensors[name].dtype) for name in ("d2t", "t2d")] == ["int64", "bool"]
    np.testing.assert_array_equal(tensors["d2t"], OFFSETS)
    np.testing.assert_array_equal(tensors["t2d"], MASK)
    assert json.loads((tmp_path / "draft/config.json").read_text()) == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": 32,
        "draft_vocab_size": 12,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "bias": False,
        "attention_bias": False,
        "mlp_bias": False,
        "num_aux_hidden_states": 3,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": True,
        "norm_output": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eagle_config": {
            "use_aux_hidden_state": True,
            "norm_before_fc": False,
            "eagle_aux_hidden_state_layer_ids": [1, 3, 4],  # outputs of layers: boundaries - 1
        },
    }


def test_a_head_that_is_the_targets_is_written_as_null(tmp_path):
    draft = draft_of(head="target", draft_vocab_size=V)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    assert (config["draft_vocab_size"], config["tie_word_embeddings"]) == (None, False)


def test_the_targets_width_is_written_where_it_is_another(tmp_path):
    draft = draft_of(target_hidden_size=12, embeddings=True)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    assert config["target_hidden_size"] == 12


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda d: d._replace(params=d.params | {"gc": {"scale": random_array((2,))}}),
            "tensor gc.weight of [2] is unknown, expected none of that name",
        ),
        (
            lambda d: d._replace(params={k: v for k, v in d.params.items() if k != "fc"}),
            "found no tensor fc.weight, expected one of [8, 24]",
        ),
        (
            lambda d: d._replace(params=d.params | {"norm": {"scale": np.ones(8)}}),
            "tensor norm.weight has type float64, expected bfloat16, float16, float32 (quantised "
            "weights are not read)",
        ),
        (
            lambda d: d._replace(embeddings=random_array((V, 12))),
            "tensor embed_tokens.weight has shape [32, 12], expected [32, 8]",
        ),
        (
            lambda d: d._replace(vocab=VocabMap.from_ids(IDS[1:], V)),
            "the vocabulary map has 11 of 32 ids, expected 12 of 32",
        ),
        (
            lambda d: d._replace(boundaries=(2, 4)),
            "boundaries are (2, 4), expected 3 of them",
        ),
        (
            lambda _: draft_of(target_hidden_size=12),
            "found no token embeddings, expected the draft's own: the target's have width 12, the "
            "draft 8",
        ),
    ],
)
def test_a_draft_that_contradicts_itself_is_not_written(tmp_path, spoil, message):
    with refused(f"{tmp_path / 'draft'}: {message}"):
        save_draft(tmp_path / "draft", spoil(draft_of()), max_positions=MAX_POSITIONS)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_draft_stays_unless_told(tmp_path):
    first, second = draft_of(), draft_of(norm_output=True)
    round_trip(tmp_path, first)
    with refused(f"{tmp_path / 'draft'}: exists already, expected a new path or overwrite"):
        save_draft(tmp_path / "draft", second, max_positions=MAX_POSITIONS)
    assert_same(load_draft(tmp_path / "draft"), first)
    save_draft(tmp_path / "draft", second, max_positions=MAX_POSITIONS, overwrite=True)
    assert_same(load_draft(tmp_path / "draft"), second)


PREFIXES = {
    "midlayer": ("midlayer.", "midlayer."),
    "layers.0": ("midlayer.", "layers.0."),
    "midlayer.0": ("midlayer.", "midlayer.0."),
    "model.layers.0": ("midlayer.", "model.layers.0."),
    "model.midlayer": ("midlayer.", "model.midlayer."),
    "model.fc": ("fc.", "model.fc."),
    "model.norm": ("norm.", "model.norm."),
    "model.embed_tokens": ("embed_tokens.", "model.embed_tokens."),
}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", None])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_and_architectures_do_not_matter(saved, prefix, architecture):
    old, new = PREFIXES[prefix]
    directory = saved(
        {"architectures": None if architecture is None else [architecture]},
        rename=lambda name: re.sub(f"^{re.escape(old)}", new, name),
        embeddings=True,
    )
    assert any(name.startswith(new) for name in load_file(directory / "model.safetensors"))
    assert_same(load_draft(directory), draft_of(embeddings=True))


def test_older_names_of_the_fc_norms(saved):
    names = dict(zip("012", ("low", "mid", "high"), strict=True))
    directory = saved(
        {"fc_norm": "absent", "use_aux_norm": True},
        rename=lambda name: re.sub(r"^fc_norm\.(\d)", lambda m: f"aux_norm_{names[m[1]]}", name),
        fc_norm=True,
    )
    assert "aux_norm_mid.weight" in load_file(directory / "model.safetensors")
    assert_same(load_draft(directory), draft_of(fc_norm=True))


def test_later_layers_norm_their_input_under_either_name(saved):
    expected = draft_of(num_layers=3)
    directory = saved(num_layers=3)
    assert_same(load_draft(directory), expected)
    directory = saved(
        rename=lambda name: re.sub(r"^(layers\.[12]\.)hidden_norm", r"\1input_layernorm", name),
        num_layers=3,
    )
    assert "layers.2.input_layernorm.weight" in load_file(directory / "model.safetensors")
    assert_same(load_draft(directory), expected)
    directory = saved(tensors={"layers.1.input_layernorm.weight": random_array((8,))}, num_layers=3)
    told = "layers.1.input_layernorm.weight is left out: SGLang norms with hidden_norm there"
    assert_same(load_draft(directory), expected, (told,))


@pytest.mark.parametrize("offset_type", [np.int64, np.int32])
@pytest.mark.parametrize("mask_type", [np.bool_, np.uint8])
def test_types_of_the_vocabulary(saved, offset_type, mask_type):
    tensors = {"d2t": OFFSETS.astype(offset_type), "t2d": MASK.astype(mask_type)}
    assert_same(load_draft(saved(tensors=tensors)), draft_of())


REBUILT_D2T, REBUILT_T2D = "no d2t: rebuilt from t2d", "no t2d: rebuilt from d2t"
LOST = "d2t means the first 12 ids, almost surely a lost mapping"


@pytest.mark.parametrize(
    ("tensors", "ids", "notes"),
    [
        ({"d2t": None}, IDS, (REBUILT_D2T,)),
        ({"t2d": None}, IDS, (REBUILT_T2D,)),
        ({"d2t": np.zeros(W, np.int64), "t2d": None}, np.arange(W), (REBUILT_T2D, LOST)),
        ({"d2t": np.zeros(W, np.int64), "t2d": np.arange(V) < W}, np.arange(W), (LOST,)),
        (
            {"d2t": np.arange(W), "t2d": None},
            2 * np.arange(W),
            (MAYBE_IDS, REBUILT_T2D),
        ),
        ({"d2t": IDS}, IDS, (f"{HOLDS_IDS}, as t2d proves: read as such",)),
        (
            {"d2t": IDS, "t2d": None},
            IDS,
            (
                f"{HOLDS_IDS}, since as offsets some would lie outside the vocabulary: read as "
                "such",
                REBUILT_T2D,
            ),
        ),
        (  # an order of its own
            {"d2t": IDS[::-1] - np.arange(W)},
            IDS[::-1],
            (),
        ),
    ],
)
def test_a_vocabulary_that_is_told_in_half(saved, tensors, ids, notes):
    loaded = load_draft(saved(tensors=tensors))
    assert loaded.vocab.target_ids.tolist() == ids.tolist()
    assert np.flatnonzero(loaded.vocab.in_draft).tolist() == sorted(ids)
    assert loaded.notes == notes


@pytest.mark.parametrize("d2t", [None, np.zeros(V, np.int64)])
def test_a_whole_vocabulary_needs_no_map(saved, d2t):
    directory = saved(tensors={"d2t": d2t, "t2d": None}, draft_vocab_size=V)
    loaded = load_draft(directory)
    assert loaded.vocab.target_ids.tolist() == list(range(V))
    assert loaded.notes == (() if d2t is None else (REBUILT_T2D,))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"d2t": None, "t2d": None},
            "a draft vocabulary of 12 of 32 ids has neither d2t nor t2d, expected one of them "
            "(--vocab-mapping FILE gives it)",
        ),
        (
            {"t2d": np.arange(V) < W},
            "d2t means 12 ids that are not the 12 that t2d marks, expected the same ids",
        ),
        (
            {"d2t": np.zeros(W, np.int64)},
            "d2t means 12 ids that are not the 12 that t2d marks, expected the same ids",
        ),
        (
            {"d2t": OFFSETS[:-1], "t2d": None},
            "the vocabulary map has 11 ids, expected 12, the rows of the head",
        ),
        (
            {"d2t": OFFSETS + 2**40, "t2d": None},
            f"d2t means ids {2**40} to {2**40 + 31}, expected 0 to 31",
        ),
        ({"d2t": OFFSETS - 1, "t2d": None}, "d2t means ids -1 to 30, expected 0 to 31"),
        (
            {"d2t": OFFSETS.astype(np.float32)},
            "d2t has type float32 and shape [12], expected int64 or int32 and one axis",
        ),
        (
            {"d2t": OFFSETS[None]},
            "d2t has type int64 and shape [1, 12], expected int64 or int32 and one axis",
        ),
        (
            {"t2d": MASK.astype(np.int64)},
            "t2d has type int64 and shape [32], expected bool or uint8 and one axis",
        ),
        (
            {"t2d": np.full(V, 3, np.uint8)},
            "t2d holds 3, expected zeros and ones",
        ),
    ],
)
def test_vocabularies_that_are_none(saved, tensors, message):
    directory = saved(tensors=tensors)
    with refused(f"{directory}: {message}"):
        load_draft(directory)


def test_two_draft_ids_for_one_target_id(saved):
    directory = saved(tensors={"d2t": np.r_[0, -1, OFFSETS[2:]], "t2d": None})
    with refused(f"{directory}: draft vocabulary of 12 holds 11 distinct ids"):
        load_draft(directory)


@pytest.mark.parametrize(
    ("key", "stated", "found", "source"),
    [
        ("head_dim", 2, 4, "shape of q_proj"),
        ("num_hidden_layers", 36, 1, "tensors' names"),
        ("draft_vocab_size", 30, 12, "shape of lm_head"),
        ("draft_vocab_size", 32, 12, "shape of lm_head"),
        ("hidden_size", 16, 8, "shape of hidden_norm"),
        ("intermediate_size", 99, 16, "shape of gate_proj"),
        ("num_key_value_heads", 4, 2, "shape of k_proj"),
        ("vocab_size", 64, 32, "length of t2d"),
    ],
)
def test_shapes_win_over_the_config(saved, key, stated, found, source):
    note = f"{key} is {stated} in the config, {found} by the {source}"
    assert_same(load_draft(saved({key: stated})), draft_of(), (note,))


@pytest.mark.parametrize(
    "key",
    [
        "head_dim",
        "num_hidden_layers",
        "draft_vocab_size",
        "hidden_size",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "target_hidden_size",
        "num_aux_hidden_states",
        "norm_before_residual",
        "norm_output",
        "bias",
        "rope_theta",
        "tie_word_embeddings",
        "architectures",
        "max_position_embeddings",
        "hidden_act",
    ],
)
def test_what_shapes_or_one_default_say_may_be_absent(saved, key):
    assert_same(load_draft(saved({key: "absent"})), draft_of())


@pytest.mark.parametrize(
    ("keys", "note"),
    [
        (
            {"tie_word_embeddings": True},
            "tie_word_embeddings is true beside an own lm_head: the own one is used",
        ),
        ({"bias": True}, "bias is True in the config, but the file holds no fc.bias"),
        (
            {"attention_bias": True},
            "attention_bias is True in the config, but the file holds no "
            "layers.0.self_attn.o_proj.bias",
        ),
        (
            {"mlp_bias": True},
            "mlp_bias is True in the config, but the file holds no layers.0.mlp.down_proj.bias",
        ),
        (
            {"eagle_config": {"use_aux_hidden_state": False, LAYER_IDS: [1, 2, 3]}},
            "use_aux_hidden_state is False, but the file holds fc.weight",
        ),
        (
            {"sliding_window": 2048},
            "sliding_window is 2048 in the config, but SGLang attends to everything without "
            "layer_types that say otherwise, so it is ignored",
        ),
    ],
)
def test_what_the_config_claims_in_vain_is_told(saved, keys, note):
    assert_same(load_draft(saved(keys)), draft_of(), (note,))


def test_a_window_that_is_switched_off_is_no_news(saved):
    directory = saved({"sliding_window": 4096, "use_sliding_window": False})
    assert_same(load_draft(directory), draft_of())


def test_biases_and_norms_that_sglang_drops_are_read(saved):
    knobs = {"bias": True, "output_bias": True, "qk_norm": True}
    config = tiny_config(attention=attention(**knobs), mlp_bias=True, norm_before_residual=True)
    extra = {
        f"model.{name}": random_array(shape)
        for name, shape in expected_shapes(config).items()
        if name not in expected_shapes(tiny_config())
    }
    assert len(extra) == 9
    flags = dict.fromkeys(("attention_bias", "mlp_bias", "norm_before_residual"), True)
    loaded = load_draft(saved(flags, extra))
    assert loaded.config == config
    found = to_tensors(loaded.params)
    for name, tensor in extra.items():
        assert found[name.removeprefix("model.")].tobytes() == tensor.tobytes()


def test_a_draft_without_fc_reads_the_last_state(saved):
    gone = {"fc.weight": None, "lm_head.weight": None, "d2t": None, "t2d": None}
    loaded = load_draft(
        saved(
            {"draft_vocab_size": None, "num_aux_hidden_states": None}
            | {"eagle_config": {"use_aux_hidden_state": False, LAYER_IDS: [1, 3, 4]}},
            gone,
        )
    )
    assert loaded.config == tiny_config(num_aux=0, head="target", draft_vocab_size=V)
    assert loaded.notes == ("no fc: the draft reads the target's last state alone",)
    assert loaded.boundaries is None


@pytest.mark.parametrize("where", ["top", "nested"])
def test_norm_before_fc_is_found_in_both_places(saved, where):
    flag = {"norm_before_fc": True}
    ids = {LAYER_IDS: [1, 2, 3]}
    keys = {"norm_before_fc": "absent", "num_aux_hidden_states": 3, "eagle_config": ids}
    keys |= flag if where == "top" else {"eagle_config": ids | flag}
    assert_same(load_draft(saved(keys, norm_before_fc=True)), draft_of(norm_before_fc=True))
    directory = saved({"norm_before_fc": False}, norm_before_fc=True)
    with refused(
        f"{directory / 'config.json'}: config norm_before_fc false and config "
        "eagle_config.norm_before_fc true differ, expected one value (--set norm_before_fc=... "
        "decides)"
    ):
        load_draft(directory)


@pytest.mark.parametrize(
    ("key", "tensor"), [("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")]
)
def test_a_norm_and_its_flag_go_together(saved, key, tensor):
    told = f"one of them is wrong, and acceptance hangs on it (--set {key}=true or false decides)"
    directory = saved({key: "absent", "eagle_config": "absent"}, **{key: True})
    with refused(f"{directory / 'config.json'}: {key} is off, but the file holds {tensor}: {told}"):
        load_draft(directory)
    directory = saved({key: True, "eagle_config": None})
    with refused(
        f"{directory / 'config.json'}: {key} is on, but the file holds no {tensor}: {told}"
    ):
        load_draft(directory)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"foo": 1, "bar": 2}, f"unknown keys bar, foo, {NO_SUCH_KEYS}"),
        ({"eagle_config": {"foo": 1}}, f"eagle_config has unknown keys foo, {NO_SUCH_KEYS}"),
        ({"eagle_config": [1]}, "eagle_config is [1], expected an object or null"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config marks quantised weights, expected an EAGLE-3 draft in floating "
            "point that drafts one token after another (--allow quantization_config passes over "
            "it)",
        ),
        ({"num_attention_heads": None}, "num_attention_heads is None, expected a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
        (
            {"num_attention_heads": 3},
            "num_attention_heads is 3, expected a divisor of 16, the rows of q_proj",
        ),
        (
            {"num_attention_heads": 1},
            "k_proj has 8 rows, expected a multiple of the head_dim 16 that q_proj's 16 rows make "
            "with num_attention_heads 1",
        ),
        (
            {"num_attention_heads": 16},
            "rope rotates 1 of 1 dimensions, expected an even number",
        ),
        ({"rms_norm_eps": None}, "rms_norm_eps is None, expected a number"),
        ({"norm_output": "yes"}, "norm_output is 'yes', expected true or false"),
        ({"target_hidden_size": "8"}, "target_hidden_size is '8', expected a positive integer"),
        (
            {"target_hidden_size": 7, "num_aux_hidden_states": None, "eagle_config": None},
            "fc reads 24 columns, expected a multiple of the target's width 7",
        ),
        (
            {"num_aux_hidden_states": 4},
            "num_aux_hidden_states means 4 states of width 8, but fc reads 24 columns, expected 32",
        ),
        (
            {"eagle_config": {LAYER_IDS: [1, 3]}},
            f"eagle_config.{LAYER_IDS} means 2 states of width 8, but fc reads 24 columns, "
            "expected 16",
        ),
        (
            {"eagle_config": {LAYER_IDS: "1,3,4"}},
            f"eagle_config.{LAYER_IDS} is '1,3,4', expected a list of integers",
        ),
        (
            {"eagle_config": {LAYER_IDS: [4, 1, 3]}},
            f"eagle_config.{LAYER_IDS} is [4, 1, 3]: layer ids [4, 1, 3] do not ascend, expected "
            "each higher than the last",
        ),
        (
            {"eagle_config": {LAYER_IDS: [-2, 1, 3]}},
            f"eagle_config.{LAYER_IDS} is [-2, 1, 3]: layer id -2 is outside the target, expected "
            "-1 to L",
        ),
        (
            {"rope_scaling": {"rope_type": "foo"}},
            "rope type 'foo' is unknown, expected default, mrope, linear, dynamic, llama3, yarn, "
            "longrope",
        ),
    ],
)
def test_bad_configs(saved, keys, message):
    directory = saved(keys)
    with refused(f"{directory / 'config.json'}: {message}"):
        load_draft(directory)


def test_a_vocabulary_of_two_sizes(saved):
    directory = saved(tensors={"embed_tokens.weight": random_array((40, 8))})
    with refused(
        f"{directory / 'config.json'}: the vocabulary is 40 by embed_tokens, 32 by t2d, expected "
        "one size"
    ):
        load_draft(directory)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"midlayer.self_attn.v_proj.weight": None},
            "found no tensor layers.0.self_attn.v_proj.weight, expected one of [8, 16]",
        ),
        (
            {"foo.weight": random_array((3,))},
            "tensor foo.weight of [3] is unknown, expected none of that name",
        ),
        (
            {"midlayer.mlp.up_proj.weight": random_array((16, 9))},
            "tensor midlayer.mlp.up_proj.weight (layers.0.mlp.up_proj.weight) has shape [16, 9], "
            "expected [16, 8]",
        ),
        (
            {"norm.weight": random_array((8, 1))},
            "tensor norm.weight has shape [8, 1], expected [8]",
        ),
        (
            {"embed_tokens.weight": random_array((V, 12))},
            "tensor embed_tokens.weight has shape [32, 12], expected [32, 8]",
        ),
        (
            {"layers.1.mlp.up_proj.weight": random_array((16, 8))},
            "found no tensor layers.1.input_layernorm.weight, expected one of [8]",
        ),
        (
            {Q_PROJ: np.ones((16, 16), np.int8)},
            f"tensor {Q_PROJ} (layers.0.self_attn.q_proj.weight) has type int8, expected bfloat16, "
            "float16, float32 (quantised weights are not read)",
        ),
        (
            {"layers.0.hidden_norm.weight": random_array((8,))},
            "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight are both "
            "layers.0.hidden_norm.weight, expected one",
        ),
        (
            {Q_PROJ: None},
            "not an EAGLE-3 draft: found 'LlamaForCausalLMEagle3' without "
            "layers.0.self_attn.q_proj.weight, expected a midlayer that reads [embedding, hidden]",
        ),
        (
            {"midlayer.mlp.experts.0.up_proj.weight": random_array((8, 16))},
            "tensor midlayer.mlp.experts.0.up_proj.weight belongs to a mixture of experts, "
            "expected a dense EAGLE-3 draft that drafts one token after another",
        ),
        (
            {"mask_hidden": random_array((1, 1, 24))},
            "tensor mask_hidden belongs to parallel drafting (P-EAGLE), expected a dense EAGLE-3 "
            "draft that drafts one token after another",
        ),
    ],
)
def test_tensors_that_do_not_fit(saved, tensors, message):
    directory = saved(tensors=tensors)
    with refused(f"{directory}: {message}"):
        load_draft(directory)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "fc.weight",
            random_array((24,)),
            "tensor fc.weight has shape [24], expected rows and columns",
        ),
        (
            "midlayer.mlp.gate_proj.weight",
            None,
            "found no tensor layers.0.mlp.gate_proj.weight, expected it beside the others",
        ),
    ],
)
def test_matrices_that_dimensions_are_read_from(saved, name, tensor, message):
    directory = saved(tensors={name: tensor})
    with refused(f"{directory / 'config.json'}: {message}"):
        load_draft(directory)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "'LlamaForCausalLM'"),
        ({"architectures": [], "model_type": "llama"}, "'llama'"),
        ({"architectures": "absent", "model_type": "absent"}, "None"),
    ],
)
def test_a_plain_language_model_is_no_draft(saved, keys, found):
    directory = saved(keys, {"midlayer.hidden_norm.weight": None})
    with refused(
        f"{directory}: not an EAGLE-3 draft: found {found} without layers.0.hidden_norm.weight, "
        "expected a midlayer that reads [embedding, hidden]"
    ):
        load_draft(directory)


def test_directories_that_hold_no_draft(saved, tmp_path):
    with refused(f"{tmp_path / 'a'}: no such directory, expected a draft (config.json, weights)"):
        load_draft(tmp_path / "a")
    directory = saved()
    file = directory / "model.safetensors"
    with refused(f"{file}: found a file, expected the directory of a draft"):
        load_draft(file)
    (directory / "config.json").unlink()
    with refused(f"{directory / 'config.json'}: no such file, expected a JSON file"):
        load_draft(directory)


def test_the_native_form_is_not_written_as_a_foreign_one(tmp_path):
    """Its knobs have no keys: `double_norm` would come back false."""
    with pytest.raises(InputError, match=r"native form is written by eagle3_jax\.checkpoints"):
        save_draft(
            tmp_path / "draft",
            draft_of(double_norm=True),
            max_positions=MAX_POSITIONS,
            dialect="native",
        )
    assert not (tmp_path / "draft").exists()

"""From one dialect to another: what is given up, completed, taken from a target, and told."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from converters.conversion import fit
from converters.dialects import dialect_of
from converters.drafts import OpenDraft, Reading, in_memory, open_draft
from converters.features import LOSSES
from converters.shapes import expected_shapes
from converters.targets import open_target
from converters.trees import to_tensors
from converters.writing import fates, save_draft, write_draft
from eagle3_jax.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from eagle3_jax.vocab import VocabMap
from tests.conftest import latent_heads, tiny_config
from tests.samples import BOUNDARIES, TABLE, write_target
from tests.test_drafts import IDS, LAYER_IDS, MAX_POSITIONS, V, attention, draft_of, refused

SMALL = attention(head_dim=2)


def opened(*, ids=None, **changes) -> OpenDraft:
    """A draft in memory that a native file would hold."""
    draft = draft_of(**{"boundaries": BOUNDARIES[:3], **changes})
    vocab = draft.vocab if ids is None else VocabMap.from_ids(np.asarray(ids), V)
    return OpenDraft(
        draft.config,
        dict(to_tensors(draft.params)),
        vocab,
        draft.embeddings,
        draft.boundaries,
        dialect_of("native"),
    )


def fitted(draft, dialect, **options):
    return fit(draft, dialect_of(dialect), where="there", max_positions=MAX_POSITIONS, **options)


@pytest.fixture
def target(tmp_path):
    """A target with the embeddings `TABLE`, a head of its own, and as many layers as it is told."""

    def make(layers=8, **sizes):
        place = write_target(tmp_path / "target", **sizes)
        config = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        return open_target(place)

    return make


LAYER = "layers.0."
GIVEN_UP = {  # loss -> (who lacks it, the draft, what is left of its config, what it drops)
    "norm_before_residual": ("sglang", {"norm_before_residual": True}, {}, []),
    "norm_before_fc": ("specforge", {"norm_before_fc": True}, {}, ["input_norm.weight"]),
    "fc_norm": ("modelopt-2025", {"fc_norm": True}, {}, [f"fc_norm.{i}.weight" for i in range(3)]),
    "norm_output": ("tpu-inference", {"norm_output": True}, {}, []),
    "double_norm": ("vllm", {"double_norm": True}, {}, []),
    "single_norm": ("modelopt", {}, {"double_norm": True}, []),
    "attention_bias": (
        "sglang",
        {"attention": attention(bias=True)},
        {},
        [f"{LAYER}self_attn.{x}_proj.bias" for x in "kqv"],
    ),
    "output_bias": (
        "torchspec",
        {"attention": attention(output_bias=True)},
        {},
        [f"{LAYER}self_attn.o_proj.bias"],
    ),
    "mlp_bias": (
        "sglang",
        {"mlp_bias": True},
        {},
        [f"{LAYER}mlp.{x}_proj.bias" for x in ("down", "gate", "up")],
    ),
    "fc_bias": ("vllm", {"fc_bias": True}, {}, ["fc.bias"]),
    "qk_norm": (
        "sglang",
        {"attention": attention(qk_norm=True)},
        {},
        [f"{LAYER}self_attn.{x}_norm.weight" for x in "kq"],
    ),
    "sliding_window": ("sglang", {"attention": attention(sliding_window=5)}, {}, []),
    "partial_rotary": ("specforge", {"rope": RopeConfig(5e5, 0.5)}, {"rope": RopeConfig(5e5)}, []),
    "yarn": (
        "sglang-jax",
        {"rope": RopeConfig(5e5, scaling=YarnScaling(4.0, 16))},
        {"rope": RopeConfig(5e5)},
        [],
    ),
    "qk_norm_output_bias": (
        "vllm",
        {"attention": attention(qk_norm=True, bias=True, output_bias=True)},
        {"attention": attention(qk_norm=True, bias=True)},
        [f"{LAYER}self_attn.o_proj.bias"],
    ),
    "qk_norm_mlp_bias": (
        "speculators",
        {"attention": attention(qk_norm=True), "mlp_bias": True, "embeddings": True},
        {"attention": attention(qk_norm=True)},
        [f"{LAYER}mlp.{x}_proj.bias" for x in ("down", "gate", "up")],
    ),
    "latent_norm_before_fc": (
        "vllm",
        {"attention": latent_heads(), "norm_before_fc": True},
        {"attention": latent_heads()},
        ["input_norm.weight"],
    ),
}


@pytest.mark.parametrize("loss", GIVEN_UP)
def test_a_loss_is_refused_until_it_is_named(loss):
    dialect, changes, left, dropped = GIVEN_UP[loss]
    with pytest.raises(
        ValueError, match=rf"^there: {dialect} has no place for .*: .* \(--allow {loss} a"
    ):
        fitted(opened(**changes), dialect)
    result = fitted(opened(**changes), dialect, allowed=(loss, "boundaries"))
    assert result.draft.config == tiny_config(**left)
    assert result.dropped == dict.fromkeys(dropped, f"--allow {loss}")
    assert result.draft.tensors.keys() == expected_shapes(result.draft.config).keys()
    assert sum(f"is given up (--allow {loss}): " in note for note in result.notes) == 1


def test_the_losses_that_are_not_tried_are_rotations_of_the_same_kind():
    rotations = {"linear", "dynamic", "llama3", "longrope"}
    assert LOSSES - GIVEN_UP.keys() == rotations | {"boundaries", "embed_tokens"}


def test_all_that_is_refused_is_told_in_one_line():
    draft = opened(norm_before_residual=True, attention=attention(qk_norm=True))
    with refused(
        "there: sglang has no place for norm_before_residual: its residual is always the raw "
        "state; q/k norms: it has no place for the tensors (--allow norm_before_residual --allow "
        "qk_norm accepts that)"
    ):
        fitted(draft, "sglang")
    with refused(
        "there: sglang has no place for q/k norms: it has no place for the tensors (--allow "
        "qk_norm accepts that)"
    ):
        fitted(draft, "sglang", allowed=["norm_before_residual"])


def test_no_option_is_offered_where_nothing_would_be_left():
    draft = opened(attention=SMALL, fc_norm=True, num_aux=2, boundaries=(3, 6))
    with refused(
        "there: eagle has no place for fc_norm: it has no norm before fc; other than three aux "
        "states: its fc is built for three states"
    ):
        fitted(draft, "eagle", allowed=["num_aux"])


def test_a_dialect_that_is_only_read():
    with refused("there: ModelOpt's Megatron export is only read, expected another dialect"):
        fitted(opened(), "modelopt-megatron")


BIASES = {
    "attention_bias": ("sglang", {"attention": attention(bias=True)}),
    "output_bias": ("specforge", {"attention": attention(output_bias=True)}),
    "mlp_bias": ("sglang", {"mlp_bias": True}),
    "fc_bias": ("vllm", {"fc_bias": True}),
    "qk_norm_output_bias": (
        "vllm",
        {"attention": attention(qk_norm=True, bias=True, output_bias=True)},
    ),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases_that_add_nothing_go_and_are_told(name):
    dialect, changes = BIASES[name]
    draft = opened(**changes)
    gone = set(GIVEN_UP[name][3])
    zeros = {n: np.zeros_like(t) if n in gone else t for n, t in draft.tensors.items()}
    result = fitted(draft._replace(tensors=zeros), dialect)
    assert result.draft.config == tiny_config(**GIVEN_UP[name][2])
    assert result.dropped == dict.fromkeys(gone, "all zeros")
    assert result.draft.tensors.keys() == draft.tensors.keys() - gone
    assert "is all zeros and left out: " in result.notes[0]


@pytest.mark.parametrize("name", BIASES)
def test_one_number_of_a_bias_is_enough_to_refuse(name):
    dialect, changes = BIASES[name]
    draft = opened(**changes)
    gone = sorted(GIVEN_UP[name][3])
    zeros = {n: np.zeros_like(t) if n in gone else t for n, t in draft.tensors.items()}
    in_memory(zeros[gone[-1]])[-1] = 1e-6
    with pytest.raises(ValueError, match="has no place for"):
        fitted(draft._replace(tensors=zeros), dialect)


@pytest.mark.parametrize(
    ("dialect", "changes", "added"),
    [
        ("vllm", {"attention": attention(bias=True)}, "o"),
        ("vllm", {"attention": attention(output_bias=True)}, "qkv"),
        ("vllm", {"attention": attention(bias=True, qk_norm=True)}, ""),
        ("speculators", {"attention": attention(bias=True, qk_norm=True)}, "o"),
        ("tensorrt-llm", {"attention": attention(bias=True), "num_layers": 2}, "o"),
        ("modelopt-2025", {"attention": attention(output_bias=True)}, "qkv"),
        ("sglang", {"fc_bias": True}, "o"),
        ("sglang", {"attention": attention(output_bias=True)}, ""),
        ("tensorrt-llm", {"fc_bias": True}, ""),
        ("native", {"attention": attention(bias=True)}, ""),
        ("sglang", {"attention": latent_heads(), "fc_bias": True}, ""),
    ],
)
def test_zeros_are_written_where_one_flag_brings_biases_along(target, dialect, changes, added):
    result = fitted(opened(**changes), dialect, target=target())
    layers = range(changes.get("num_layers", 1))
    names = {f"layers.{i}.self_attn.{x}_proj.bias" for i in layers for x in added}
    assert result.added.keys() - {"embed_tokens.weight"} == names
    assert all(not np.any(result.draft.tensors[name]) for name in names)
    assert {result.added[name] for name in names} <= {f"zeros, {dialect} has it there"}
    told = (
        f"biases of zeros are added where one flag of {dialect_of(dialect).title} brings them along"
    )
    assert (told in result.notes) == bool(added)
    assert result.draft.tensors.keys() == expected_shapes(result.draft.config).keys()


EMBEDDING = "embed_tokens.weight"
KEEPS, DROPS, REFUSES, ADDS, NONE = "keeps", "drops", "refuses", "adds", "none"
POLICIES = {  # of the draft's table: without a target; equal to its, another; none, none without
    "own": ("torchspec", KEEPS, KEEPS, KEEPS, NONE, NONE),
    "shared": ("vllm", KEEPS, DROPS, KEEPS, NONE, NONE),
    "replaced": ("sglang", KEEPS, DROPS, REFUSES, NONE, NONE),
    "unread": ("specjax", REFUSES, DROPS, REFUSES, NONE, NONE),
    "needed": ("automodel", KEEPS, KEEPS, KEEPS, ADDS, REFUSES),
}


@pytest.mark.parametrize("at", range(5), ids=["alone", "equal", "another", "none", "none, alone"])
@pytest.mark.parametrize("policy", POLICIES)
def test_token_embeddings(target, policy, at):
    dialect, expected = POLICIES[policy][0], POLICIES[policy][1 + at]
    assert dialect_of(dialect).embeddings == policy
    draft = opened(embeddings=at < 3)
    if at == 1:
        draft = draft._replace(embeddings=TABLE)
    beside = target() if at in (1, 2, 3) else None
    if expected == REFUSES:
        told = "would make random ones" if policy == "needed" else "the draft's token embeddings"
        with pytest.raises(ValueError, match=f"^there: .*{told}.*"):
            fitted(draft, dialect, target=beside)
        if policy != "needed":
            result = fitted(draft, dialect, target=beside, allowed=["embed_tokens"])
            assert result.draft.embeddings is None
            assert result.dropped == {EMBEDDING: "--allow embed_tokens"}
        return
    result = fitted(draft, dialect, target=beside)
    table = result.draft.embeddings
    assert (table is None) == (expected in (DROPS, NONE))
    assert result.dropped == ({EMBEDDING: "equal to the target's"} if expected == DROPS else {})
    assert (EMBEDDING in result.added) == (expected == ADDS)
    if table is not None:
        whole = TABLE if expected == ADDS else draft.embeddings
        np.testing.assert_array_equal(in_memory(table), whole)
    replaced = "SGLang puts the target's in their place: --target with the target's directory"
    assert any(replaced in note for note in result.notes) == ((policy, at) == ("replaced", 0))


@pytest.mark.parametrize("dialect", ["sglang", "tensorrt-llm", "vllm", "eagle", "automodel"])
def test_embeddings_of_a_width_of_their_own_are_kept(target, dialect):
    draft = opened(attention=SMALL, target_hidden_size=12, embeddings=True)
    result = fitted(draft, dialect, target=target(width=12))
    assert result.draft.embeddings is draft.embeddings


def test_a_target_of_another_width_gives_no_embeddings(target):
    with refused(
        "there: the target's table has shape [32, 12], expected [32, 8], the draft's vocabulary "
        "and width"
    ):
        fitted(opened(), "automodel", target=target(width=12))


def head_of(result):
    assert result.draft.config.head == "own"
    return in_memory(result.draft.tensors["lm_head.weight"])


WHOLE = {"draft_vocab_size": V}


def test_a_tied_head_is_written_out_for_those_who_know_none(target):
    own = opened(head="tied", embeddings=True, **WHOLE)
    for dialect in ("vllm", "tensorrt-llm", "torchspec"):
        np.testing.assert_array_equal(head_of(fitted(own, dialect)), own.embeddings)
    beside = target()
    result = fitted(opened(head="tied", **WHOLE), "vllm", target=beside)
    np.testing.assert_array_equal(head_of(result), TABLE)
    assert result.added == {"lm_head.weight": f"token embeddings of {beside.directory}"}
    assert any(note.startswith("lm_head is written out: ") for note in result.notes)
    assert fitted(own, "sglang").draft.config.head == "tied"


def test_a_tied_head_keeps_the_table_that_it_is(target):
    draft = opened(head="tied", **WHOLE)._replace(embeddings=TABLE)
    assert fitted(draft, "sglang", target=target()).draft.embeddings is TABLE


def test_the_targets_head_is_written_out_for_those_who_do_not_borrow_it(target):
    draft, beside = opened(head="target", **WHOLE), target()
    result = fitted(draft, "specforge", target=beside)
    np.testing.assert_array_equal(head_of(result), in_memory(beside.head))
    assert not np.array_equal(in_memory(beside.head), TABLE)
    assert result.added == {"lm_head.weight": f"the head of {beside.directory}"}
    assert fitted(draft, "vllm").draft.config.head == "target"
    for head in ("target", "tied"):
        with refused(
            "there: the draft has no lm_head and specforge needs one in the file, expected "
            "--target with the target's directory, whose head the draft uses"
        ):
            fitted(opened(head=head, **WHOLE), "specforge")


UNKNOWN = "layer ids are unknown and not written: "


def test_a_capture_is_stated_where_there_is_a_place_for_it(tmp_path):
    for dialect, place, ids in (
        ("sglang", "eagle_config", [1, 3, 4]),
        ("modelopt-2025", "eagle_config", [1, 3, 4]),
        ("vllm", None, [2, 4, 5]),
        ("speculators", None, [2, 4, 5]),
    ):
        draft = draft_of(boundaries=(2, 4, 5), embeddings=dialect == "speculators")
        save_draft(tmp_path / dialect, draft, max_positions=MAX_POSITIONS, dialect=dialect)
        config = json.loads((tmp_path / dialect / "config.json").read_text())
        assert (config if place is None else config[place])[LAYER_IDS] == ids
        assert LAYER_IDS not in (config if place else config.get("eagle_config", {}))


def test_an_unknown_capture_is_told(target):
    for dialect in ("sglang", "eagle"):
        result = fitted(opened(attention=SMALL, boundaries=None), dialect)
        assert result.notes[0].startswith(UNKNOWN)
        assert result.draft.boundaries is None
    assert fitted(opened(num_aux=0, boundaries=None), "vllm").notes == ()


def test_a_capture_that_cannot_be_stated_is_checked_by_the_targets_depth(target):
    draft, beside = opened(attention=SMALL, boundaries=(2, 4, 5)), target(layers=8)
    assert fitted(draft, "eagle", target=beside).notes == ()
    assert fitted(draft, "eagle").notes == (
        "boundaries [2, 4, 5] are not written: SafeAILab EAGLE states none and takes 2, L//2, L-3 "
        "(--target checks that)",
    )
    other = opened(attention=SMALL, boundaries=(2, 4, 6))
    with refused(
        "there: eagle states no layer ids and takes boundaries [2, 4, 5] of this target, but the "
        "draft reads [2, 4, 6] (--allow boundaries writes it all the same)"
    ):
        fitted(other, "eagle", target=beside)
    result = fitted(other, "eagle", target=beside, allowed=["boundaries"])
    assert result.draft.boundaries == (2, 4, 6)


def test_a_target_too_shallow_for_the_usual_capture(target):
    draft, beside = opened(attention=SMALL, boundaries=(0, 1, 3)), target(layers=4)
    with refused(
        "there: eagle states no layer ids, and a target of 4 layers has no default capture: "
        "(2, 2, 1) are not three ascending boundaries (--allow boundaries writes it all the same)"
    ):
        fitted(draft, "eagle", target=beside)
    assert fitted(draft, "eagle", target=beside, allowed=["boundaries"]).draft.boundaries == (
        0,
        1,
        3,
    )


@pytest.mark.parametrize(
    ("dialect", "changes"),
    [
        ("speculators", {"embeddings": True}),
        ("modelopt-2025", {}),
        ("sglang", {"attention": latent_heads()}),
    ],
)
def test_those_who_count_states_by_layer_ids_need_them(dialect, changes):
    with refused(
        f"there: {dialect} counts aux states by layer ids, and the draft has none for its 2, "
        "expected --boundaries"
    ):
        fitted(opened(num_aux=2, boundaries=None, **changes), dialect)


def test_ids_in_an_order_that_is_not_heeded():
    whole = opened(attention=SMALL, ids=np.roll(np.arange(V), 1), **WHOLE)
    for dialect in ("vllm", "eagle", "tensorrt-llm"):
        with refused(
            f"there: {dialect} heeds no d2t of a whole vocabulary, but the draft's is in another "
            "order"
        ):
            fitted(whole, dialect)
    pruned = opened(ids=IDS[::-1])
    with refused(
        "there: specjax takes the ids of t2d as ascending, but the draft's are in another order"
    ):
        fitted(pruned, "specjax")
    assert fitted(pruned, "vllm").draft.vocab is pruned.vocab


def table_of(source, dialect, **options):
    """What became of every tensor: name in the file, fate, new name, reason."""
    result = fitted(source, dialect, **options)
    rows = fates(source, result)
    return result, [(row.source, row.fate, row.written, row.reason) for row in rows]


def test_the_fate_of_every_tensor(tmp_path, target):
    place = tmp_path / "draft"
    draft = draft_of(attention=attention(bias=True), fc_norm=True, embeddings=True)
    save_draft(place, draft, max_positions=MAX_POSITIONS, dialect="vllm")
    held = load_file(place / "model.safetensors")
    held |= {name: np.zeros_like(tensor) for name, tensor in held.items() if "bias" in name}
    held |= {
        "d2t": held["d2t"].astype(np.int32),
        "layers.0.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32),
        EMBEDDING: TABLE,
    }
    save_file(held, place / "model.safetensors")
    source = open_draft(place, Reading(dialect="vllm"))
    result, rows = table_of(source, "specforge", target=target())
    assert Counter(row[0] for row in rows if row[0]) == Counter(held.keys())
    fate = {row[0]: row[1:] for row in rows if row[0]}
    assert fate.pop("d2t") == ("rebuilt", "d2t", "from int32, as readers take it")
    assert fate.pop(EMBEDDING) == ("dropped", None, "equal to the target's")
    assert fate.pop("layers.0.self_attn.rotary_emb.inv_freq") == (
        "dropped",
        None,
        "computed from the config",
    )
    for name in [name for name in fate if name.endswith(".bias")]:
        assert fate.pop(name) == ("dropped", None, "all zeros")
    for name in [name for name in fate if name.startswith("layers.0.")]:
        assert fate.pop(name) == ("renamed", name.replace("layers.0.", "midlayer."), "")
    assert fate == {name: ("written", name, "") for name in fate}
    assert fate.keys() == {"fc.weight", "norm.weight", "lm_head.weight", "t2d"} | {
        f"fc_norm.{i}.weight" for i in range(3)
    }
    write_draft(tmp_path / "new", result)
    assert load_file(tmp_path / "new/model.safetensors").keys() == {
        row[2] for row in rows if row[2]
    }


def test_the_fate_of_what_is_added(tmp_path, target):
    draft = draft_of(boundaries=(2, 4, 5), head="target", fc_bias=True, **WHOLE)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect="tensorrt-llm")
    source, beside = open_draft(tmp_path / "draft"), target()
    _, rows = table_of(source, "automodel", target=beside, allowed=["fc_bias"])
    added = {row[2]: row[3] for row in rows if row[1] == "added"}
    assert added == {
        "lm_head.weight": f"the head of {beside.directory}",
        "model.embed_tokens.weight": f"token embeddings of {beside.directory}",
    }
    assert [row for row in rows if row[1] == "dropped"] == [
        ("fc.bias", "dropped", None, "--allow fc_bias")
    ]
    assert all(row[0] is None for row in rows if row[1] == "added")


@pytest.mark.parametrize(
    ("dialect", "whole", "fate"),
    [
        ("modelopt-2025", False, ("dropped", "rebuilt from d2t by readers")),
        ("vllm", True, ("dropped", "the whole vocabulary needs no map")),
        ("sglang", True, ("written", "")),
    ],
)
def test_the_fate_of_t2d(tmp_path, dialect, whole, fate):
    changes = WHOLE if whole else {}
    save_draft(tmp_path / "draft", draft_of(**changes), max_positions=MAX_POSITIONS)
    _, rows = table_of(open_draft(tmp_path / "draft"), dialect)
    assert [(row[1], row[3]) for row in rows if row[0] == "t2d"] == [fate]


# What each framework reads without a default, or takes for something else where it is missing.
COMMON = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": V,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "max_position_embeddings": MAX_POSITIONS,
    "rope_theta": 10000.0,
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
}
FLAT = {**COMMON, "draft_vocab_size": 12, "bias": False, "tie_word_embeddings": False}
TORCH = {"torch_dtype": "float32"}
OUTPUTS, ASKED = [1, 3, 4], {"use_aux_hidden_state": True, "norm_before_fc": False}
SERVED = {LAYER_IDS: OUTPUTS, **ASKED}
MODELOPT = {
    **SERVED,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}
NEEDED = {
    "eagle": {**FLAT, **TORCH, "architectures": ["LlamaForCausalLM"], "rope_scaling": None},
    "specjax": {**FLAT, **TORCH, "architectures": ["LlamaForCausalLM"]},
    "specforge": {**FLAT, **TORCH, **EAGLE3, "eagle_config": SERVED, "norm_output": False},
    "specforge-0.2": {**FLAT, **TORCH, **EAGLE3, "eagle_config": SERVED, "norm_output": True},
    "sglang": {**FLAT, **TORCH, **EAGLE3, "eagle_config": SERVED, "num_aux_hidden_states": 3},
    "sglang-jax": {
        **FLAT,
        **EAGLE3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "vllm": {
        **FLAT,
        "architectures": ["Eagle3LlamaForCausalLM"],
        LAYER_IDS: [2, 4, 5],
        "eagle_config": ASKED,
        "num_aux_hidden_states": 3,
        "norm_before_residual": False,
    },
    "tpu-inference": {
        **FLAT,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "norm_before_residual": False,
    },
    "tensorrt-llm": {
        **FLAT,
        **TORCH,
        **EAGLE3,
        "eagle_config": {**SERVED, "return_hidden_post_norm": False},
        "fc_norm": False,
        "norm_output": False,
    },
    "angelslim": {**FLAT, "architectures": ["Eagle3LlamaForCausalLM"]},
    "modelopt": {
        **FLAT,
        **TORCH,
        **EAGLE3,
        "eagle_config": {**MODELOPT, "next_layer_regular": True},
    },
    "modelopt-2025": {**FLAT, **TORCH, **EAGLE3, "eagle_config": MODELOPT},
    "automodel": {
        **FLAT,
        "architectures": ["LlamaEagle3DraftModel"],
        "target_hidden_size": 8,
        "num_aux_hidden_states": 3,
        "dtype": "float32",
    },
    "torchspec": {
        **FLAT,
        **TORCH,
        **EAGLE3,
        "eagle_config": SERVED,
        "num_aux_hidden_states": 3,
    },
}


@pytest.mark.parametrize("dialect", NEEDED)
def test_a_config_holds_what_its_reader_needs(tmp_path, dialect):
    embeddings = dialect_of(dialect).embeddings == "needed"
    draft = draft_of(attention=SMALL, boundaries=(2, 4, 5), embeddings=embeddings)
    draft = draft._replace(config=replace(draft.config, double_norm=dialect == "modelopt"))
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect=dialect)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    assert {key: config.get(key, "absent") for key in NEEDED[dialect]} == NEEDED[dialect]
    assert ("target_hidden_size" in config) == (dialect == "automodel")  # else null or harmful
    assert ("eagle_config" in config) == ("eagle_config" in NEEDED[dialect])
    assert (LAYER_IDS in config) == (dialect == "vllm")


@pytest.mark.parametrize(
    ("dialect", "architecture", "qk_norm"),
    [
        ("speculators", "Eagle3DraftModel", False),
        ("speculators", "Eagle3DraftModel", True),
        ("speculators-converted", "Eagle3Speculator", False),
    ],
)
def test_a_speculators_config_has_the_layer_apart(tmp_path, dialect, architecture, qk_norm):
    heads = attention(head_dim=2, qk_norm=qk_norm)
    draft = draft_of(attention=heads, boundaries=(2, 4, 5), embeddings=True)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect=dialect)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    expected = {**COMMON, "model_type": "qwen3" if qk_norm else "llama", "rope_scaling": None}
    if qk_norm:
        expected.pop("mlp_bias")  # not a key of Qwen3's config
    assert config.pop("transformer_layer_config") == expected
    assert config.pop("speculators_config")["algorithm"] == "eagle3"
    assert config == {
        "architectures": [architecture],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": 12,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "target_hidden_size": None,
        LAYER_IDS: [2, 4, 5],
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


@pytest.mark.parametrize(
    ("dialect", "architecture", "model_type"),
    [
        ("sglang", "Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
        ("vllm", "Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
        ("torchspec", "Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
        ("modelopt", "Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
        ("automodel", "LlamaEagle3DraftModel", "deepseek_v3"),
    ],
)
def test_a_config_of_latent_attention(tmp_path, dialect, architecture, model_type):
    draft = draft_of(
        attention=latent_heads(),
        double_norm=dialect == "modelopt",
        embeddings=dialect == "automodel",
    )
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect=dialect)
    config = json.loads((tmp_path / "draft/config.json").read_text())
    expected = {
        "architectures": [architecture],
        "model_type": model_type,
        "num_attention_heads": 3,
        "q_lora_rank": 7,
        "kv_lora_rank": 5,
        "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 4,
        "v_head_dim": 3,
        "rope_theta": 10000.0,
        "rope_scaling": None,
    }
    assert {key: config.get(key, "absent") for key in expected} == expected
    assert "head_dim" not in config


def test_a_config_of_vllms_class_with_qk_norms(tmp_path):
    draft = draft_of(attention=attention(qk_norm=True, sliding_window=5), num_layers=2)
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect="vllm")
    config = json.loads((tmp_path / "draft/config.json").read_text())
    expected = {
        "architectures": ["Eagle3Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "sliding_window": 5,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * 2,
    }
    assert {key: config.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("fc_bias", "output_bias", "flags"),
    [
        (False, False, (False, False)),
        (True, False, (True, True)),
        (False, True, (False, True)),
        (True, True, (True, True)),
    ],
)
def test_sglangs_flags_of_biases(tmp_path, fc_bias, output_bias, flags):
    """`bias` is fc's there and brings one of o_proj, `attention_bias` is o_proj's alone."""
    draft = draft_of(fc_bias=fc_bias, attention=attention(output_bias=output_bias))
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect="sglang")
    config = json.loads((tmp_path / "draft/config.json").read_text())
    assert (config["bias"], config["attention_bias"]) == flags
    held = load_file(tmp_path / "draft/model.safetensors").keys()
    assert ("midlayer.self_attn.o_proj.bias" in held) == (fc_bias or output_bias)


# What a trainer's own loader asks of a config


@pytest.mark.parametrize("dialect", ["specforge", "specforge-0.2", "sglang"])
def test_specforge_is_told_what_yarn_takes_by_default(tmp_path, dialect):
    draft = draft_of(rope=RopeConfig(scaling=YarnScaling(4.0, 16)))
    save_draft(tmp_path / "draft", draft, max_positions=MAX_POSITIONS, dialect=dialect)
    written = json.loads((tmp_path / "draft/config.json").read_text())["rope_scaling"]
    mscales = {name: written[name] for name in ("mscale", "mscale_all_dim") if name in written}
    assert mscales == ({} if dialect == "sglang" else {"mscale": 1.0, "mscale_all_dim": 0.0})
    assert open_draft(tmp_path / "draft").config == draft.config


def test_specforge_divides_by_an_mscale_that_others_pass_over():
    draft = opened(rope=RopeConfig(scaling=YarnScaling(4.0, 16, mscale=0.7)))
    told = "there: specforge has no place for YaRN's mscale without mscale_all_dim: "
    with refused(f"{told}it divides by mscale alone"):
        fitted(draft, "specforge")
    assert fitted(draft, "sglang").draft.config == draft.config


def test_speculators_is_told_where_the_target_is(tmp_path, target):
    draft, place = opened(embeddings=True), target()
    nameless = fitted(draft, "speculators")
    assert nameless.draft.target_name is None
    assert any(note.startswith("verifier.name_or_path is unknown") for note in nameless.notes)
    named = fitted(draft, "speculators", target=place)
    assert not any("verifier" in note for note in named.notes)
    write_draft(tmp_path / "draft", named)
    written = json.loads((tmp_path / "draft/config.json").read_text())
    assert written["speculators_config"]["verifier"]["name_or_path"] == str(tmp_path / "target")
    assert open_draft(tmp_path / "draft").target_name == str(tmp_path / "target")
    again = draft._replace(target_name="org/model")
    assert fitted(again, "speculators", target=place).draft.target_name == "org/model"


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
@pytest.mark.parametrize("scaling", [LinearScaling(2.0), Llama3Scaling(8.0, 1.0, 4.0, 8192)])
def test_servers_turn_latent_attention_by_yarn_whatever_is_stated(dialect, scaling):
    draft = opened(attention=latent_heads(), rope=RopeConfig(scaling=scaling))
    told = "RoPE scaling other than YaRN under latent attention: its class with latent attention"
    with refused(f"there: {dialect} has no place for {told} always turns by YaRN"):
        fitted(draft, dialect)
    yarn = YarnScaling(4.0, 16, mscale=1.0, mscale_all_dim=1.0)
    assert fitted(opened(attention=latent_heads(), rope=RopeConfig(scaling=yarn)), dialect)


def test_a_norm_that_nothing_reads_is_told_where_it_is_written():
    _, rows = table_of(opened(final_norm=False), "specforge-0.2")
    why = "ones, specforge-0.2 has it and its head does not read it"
    assert (None, "added", "norm.weight", why) in rows

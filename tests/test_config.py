"""Configurations that no model could have are refused, each with its own sentence."""

import dataclasses

import pytest

from eagle3_jax.config import (
    AttentionConfig,
    DraftConfig,
    DynamicScaling,
    LinearScaling,
    LongRopeScaling,
    RopeConfig,
    TargetConfig,
)
from tests.conftest import latent_heads, tiny_config

HEADS = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4)


def tiny_target(**changes):
    sizes = {"hidden_size": 8, "intermediate_size": 16, "vocab_size": 32, "num_layers": 2}
    return TargetConfig(**({**sizes, "attention": HEADS} | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0, expected a positive number"),
        ({"target_hidden_size": -1}, "target_hidden_size is -1, expected a positive number"),
        ({"intermediate_size": 0}, "intermediate_size is 0, expected a positive number"),
        ({"vocab_size": 0}, "^vocab_size is 0, expected a positive number"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0, expected a positive number"),
        ({"num_layers": 0}, "num_layers is 0, expected a positive number"),
        ({"num_aux": -1}, "num_aux is -1, expected 0 or more"),
        ({"draft_vocab_size": 33}, "draft_vocab_size 33 is larger than vocab_size 32"),
        (
            {"norm_before_fc": True, "fc_norm": True},
            "norm_before_fc and fc_norm are both set, expected at most one",
        ),
        (
            {"num_aux": 0, "target_hidden_size": 12},
            "a draft without fc reads states of width 12, expected its own width 8",
        ),
        ({"num_aux": 0, "fc_norm": True}, "fc_norm is set, but a draft with num_aux 0 has no fc"),
        ({"num_aux": 0, "norm_before_fc": True}, "norm_before_fc is set, but .* has no fc"),
        ({"num_aux": 0, "fc_bias": True}, "fc_bias is set, but .* has no fc"),
        ({"head": "tied"}, "head 'tied' has vocab_size 32 rows, found draft_vocab_size 12"),
        ({"head": "target"}, "head 'target' has vocab_size 32 rows, found draft_vocab_size 12"),
        (
            {"rope": RopeConfig(partial=0.25)},
            "rope rotates 1 of 4 dimensions, expected an even number",
        ),
        (
            {"attention": latent_heads(qk_nope_head_dim=3, qk_rope_head_dim=5)},
            "rope rotates 5 of 5 dimensions, expected an even number",
        ),
    ],
)
def test_an_impossible_draft_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0, expected a positive number"),
        ({"intermediate_size": 0}, "intermediate_size is 0, expected a positive number"),
        ({"vocab_size": 0}, "vocab_size is 0, expected a positive number"),
        ({"num_layers": 0}, "num_layers is 0, expected a positive number"),
        ({"windows": (None,)}, "windows has 1 entries, expected one per layer: 2"),
        ({"rope": RopeConfig(partial=0.75)}, "rope rotates 3 of 4 dimensions"),
    ],
)
def test_an_impossible_target_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        tiny_target(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads is 0, expected a positive number"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0, expected a positive number"),
        ({"head_dim": 0}, "head_dim is 0, expected a positive number"),
        ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        ({"sliding_window": 0}, "sliding_window is 0, expected a positive number"),
    ],
)
def test_heads_that_cannot_be_grouped_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(HEADS, **changes)


@pytest.mark.parametrize(
    "name",
    [
        "num_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
    ],
)
def test_latent_attention_without_a_width_is_refused(name):
    with pytest.raises(ValueError, match=f"^{name} is 0, expected a positive number"):
        latent_heads(**{name: 0})


def test_a_head_has_a_width_for_keys_for_values_and_for_rope():
    latent = latent_heads(q_lora_rank=None)
    assert (latent.head_dim, latent.v_head_dim, latent.rope_dim) == (6, 3, 4)
    assert (HEADS.head_dim, HEADS.v_head_dim, HEADS.rope_dim) == (4, 4, 4)
    assert (latent.num_heads, latent.num_kv_heads, latent.sliding_window) == (3, 3, None)
    # Only the slice that turns must be even, and LongRoPE's lists must fit it.
    tiny_config(attention=latent_heads(qk_nope_head_dim=3))
    lists = LongRopeScaling((1.0, 2.0), (1.0, 2.0), original_max_positions=8, factor=2.0)
    tiny_config(attention=latent, rope=RopeConfig(scaling=lists))


@pytest.mark.parametrize("theta", [0.0, -1.0, float("nan")])
def test_a_base_that_is_not_positive_is_refused(theta):
    with pytest.raises(ValueError, match=f"rope theta is {theta}, expected a positive number"):
        RopeConfig(theta=theta)


@pytest.mark.parametrize("partial", [0.0, 1.5])
def test_a_share_outside_a_head_is_refused(partial):
    message = f"rope partial is {partial}, expected 0 < partial <= 1"
    with pytest.raises(ValueError, match=message):
        RopeConfig(partial=partial)


@pytest.mark.parametrize("name", ["short_factor", "long_factor"])
def test_longrope_lists_of_another_length_than_the_pairs_are_refused(name):
    lists = {"short_factor": (1.0, 2.0), "long_factor": (1.0, 2.0)} | {name: (1.0,)}
    scaling = LongRopeScaling(**lists, original_max_positions=8, factor=2.0)
    with pytest.raises(ValueError, match=f"rope {name} has 1 values, expected 2"):
        tiny_config(rope=RopeConfig(scaling=scaling))


def test_the_aux_width_counts_the_states():
    assert tiny_config(target_hidden_size=12).aux_width == 36
    assert tiny_config(num_aux=5).aux_width == 40
    assert tiny_config(num_aux=1).aux_width == tiny_config(num_aux=0).aux_width == 8


def test_part_of_a_head_may_turn():
    assert RopeConfig(partial=0.5).rotated(4) == 2
    assert RopeConfig().rotated(6) == 6


def test_configurations_are_frozen_and_hashable():
    config = tiny_config(rope=RopeConfig(scaling=DynamicScaling(2.0, 8)))
    assert hash(config) == hash(dataclasses.replace(config))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_aux = 1


def test_the_defaults_are_those_of_the_papers_draft():
    found = {
        field.name: getattr(tiny_config(), field.name)
        for field in dataclasses.fields(DraftConfig)
        if field.default is not dataclasses.MISSING
    }
    assert found == {
        "num_aux": 3,
        "num_layers": 1,
        "rms_norm_eps": 1e-5,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "double_norm": False,
        "final_norm": True,
        "fc_bias": False,
        "mlp_bias": False,
        "head": "own",
    }
    assert tiny_config().rope == RopeConfig(theta=10000.0, partial=1.0, scaling=None)


@pytest.mark.parametrize("factor", [0.0, -2.0])
def test_a_rope_factor_is_positive(factor):
    with pytest.raises(ValueError, match=f"rope factor is {factor}, expected a positive number"):
        RopeConfig(scaling=LinearScaling(factor))

"""RoPE as config files write it: where the base stands, which types there are, what is refused."""

import re

import pytest

from converters.ropes import read_rope, write_rope
from eagle3_jax.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.errors import InputError

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {"short_factor": [1, 1.5], "long_factor": [2.0, 4]}


def scaled(kind, /, top=None, **keys):
    """The scaling that `rope_scaling` of a type means."""
    return read_rope({"rope_scaling": {"rope_type": kind, **keys}, **(top or {})}, "here").scaling


@pytest.mark.parametrize(
    ("config", "theta"),
    [
        ({}, 10000.0),
        ({"rope_theta": None, "rope_scaling": None, "rope_parameters": None}, 10000.0),
        ({"rope_theta": 500000}, 500000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 500000}}, 5e5),
        ({"rope_scaling": {"rope_theta": 5e5}, "rope_parameters": {"rope_theta": 5e5}}, 5e5),
    ],
)
def test_theta_wherever_it_stands(config, theta):
    assert read_rope(config, "here").theta == theta


@pytest.mark.parametrize(
    ("config", "partial"),
    [
        ({}, 1.0),
        ({"partial_rotary_factor": 0.5}, 0.5),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, 0.25),
        ({"partial_rotary_factor": None, "rope_parameters": {"partial_rotary_factor": 0.25}}, 0.25),
    ],
)
def test_the_rotated_share_wherever_it_stands(config, partial):
    assert read_rope(config, "here") == RopeConfig(partial=partial)


def test_every_type():
    assert scaled("default") is None
    assert scaled("linear", factor=4) == LinearScaling(4.0)
    assert scaled("dynamic", factor=2.0, original_max_position_embeddings=64) == DynamicScaling(
        2.0, 64
    )
    assert (
        scaled("dynamic", {"max_position_embeddings": 32}, factor=2.0).original_max_positions == 32
    )
    assert scaled("llama3", **LLAMA3) == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert scaled("yarn", {"max_position_embeddings": 64}, factor=4.0) == YarnScaling(4.0, 64)
    assert scaled(
        "yarn",
        factor=4.0,
        original_max_position_embeddings=2048,
        beta_fast=16,
        beta_slow=2,
        mscale=1.0,
        mscale_all_dim=0.5,
        attention_factor=1.2,
        truncate=False,
    ) == YarnScaling(4.0, 2048, 16.0, 2.0, 1.0, 0.5, 1.2, False)
    nulls = dict.fromkeys(("beta_fast", "mscale", "attention_factor", "truncate"))
    assert scaled(
        "yarn", factor=4.0, original_max_position_embeddings=2048, **nulls
    ) == YarnScaling(4.0, 2048)


def test_longrope_takes_its_factor_from_the_lengths():
    lengths = {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
    parts = ((1.0, 1.5), (2.0, 4.0), 16)
    assert scaled("longrope", lengths, **LONGROPE) == LongRopeScaling(*parts, 4.0)
    # An original length at the top rules over a nested factor; a nested one does not.
    assert scaled("longrope", lengths, **LONGROPE, factor=8.0) == LongRopeScaling(*parts, 4.0)
    nested = LONGROPE | {"original_max_position_embeddings": 16}
    longest = {"max_position_embeddings": 64}
    assert scaled("longrope", longest, **nested, factor=8.0) == LongRopeScaling(*parts, 8.0)
    assert scaled("longrope", longest, **nested, attention_factor=1.5) == LongRopeScaling(
        *parts, 4.0, 1.5
    )


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "mrope", "mrope_section": [1, 1]},
        {"type": "mrope", "mrope_section": [1, 1]},
        {"rope_type": "default", "mrope_section": [1, 1], "mrope_interleaved": True},
        {"type": "mrope", "rope_type": "default", "mrope_section": [1, 1]},
        {"mrope_section": [1, 1]},
    ],
)
def test_mrope_turns_text_as_the_plain_form(scaling):
    assert read_rope({"rope_scaling": scaling}, "here") == RopeConfig()


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_both_names_of_the_type(key):
    assert read_rope({"rope_scaling": {key: "linear", "factor": 2.0}}, "here") == RopeConfig(
        scaling=LinearScaling(2.0)
    )


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(),
        RopeConfig(theta=5e5, partial=0.5),
        RopeConfig(scaling=LinearScaling(2.0)),
        RopeConfig(scaling=DynamicScaling(2.0, 64)),
        RopeConfig(scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        RopeConfig(scaling=YarnScaling(4.0, 64)),
        RopeConfig(scaling=YarnScaling(4.0, 64, 16.0, 2.0, 1.0, 0.5, 1.2, False)),
        RopeConfig(scaling=LongRopeScaling((1.0, 1.5), (2.0, 4.0), 16, 4.0)),
        RopeConfig(scaling=LongRopeScaling((1.0, 1.5), (2.0, 4.0), 16, 4.0, 1.5)),
    ],
)
def test_what_is_written_reads_the_same(rope):
    assert read_rope(write_rope(rope), "here") == rope


def test_theta_is_always_written_and_the_type_under_its_newer_name():
    assert write_rope(RopeConfig()) == {"rope_theta": 10000.0, "rope_scaling": None}
    assert write_rope(RopeConfig(5e5, 0.5, LinearScaling(2.0))) == {
        "rope_theta": 5e5,
        "partial_rotary_factor": 0.5,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}},
            "rope_theta is 10000.0 at the top and 500000.0 nested, expected one",
        ),
        (
            {"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 1.0 at the top and 0.5 nested, expected one",
        ),
        (
            {"rope_scaling": {"rope_theta": 1e4}, "rope_parameters": {"rope_theta": 5e5}},
            "rope_parameters and rope_scaling disagree on rope_theta, expected one value",
        ),
        (
            {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            "rope_type and type are linear and yarn, expected one type",
        ),
        (
            {"rope_scaling": {"rope_type": "foo"}},
            "rope type 'foo' is unknown, expected default, mrope, linear, dynamic, llama3, yarn, "
            "longrope",
        ),
        ({"rope_scaling": [1]}, "rope_scaling is [1], expected an object or null"),
        (
            {"rope_scaling": {"type": "linear"}},
            "rope type 'linear' lacks factor, expected it nested",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": None}},
            "factor is None, expected a number",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": "2"}},
            "factor is '2', expected a number",
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "alpha": 1.0}},
            "rope type 'linear' has unknown keys alpha, expected none",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "found no original_max_position_embeddings, expected it for a rope of this type",
        ),
        (
            {
                "rope_scaling": {
                    "type": "dynamic",
                    "factor": 2.0,
                    "original_max_position_embeddings": 32,
                },
                "max_position_embeddings": 64,
            },
            "original_max_position_embeddings is 32, expected 64, max_position_embeddings, from "
            "which dynamic scaling starts",
        ),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings is 0, expected a positive integer",
        ),
        (
            {"rope_scaling": {"type": "longrope", **LONGROPE, "short_factor": [1, "x"]}}
            | {"max_position_embeddings": 64},
            "short_factor is [1, 'x'], expected a list of numbers",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}
            | {"max_position_embeddings": 64},
            "truncate is 1, expected true or false",
        ),
        ({"rope_theta": "1e4"}, "rope_theta is '1e4', expected a number"),
        ({"rope_theta": 0}, "rope theta is 0.0, expected a positive number"),
        (
            {"partial_rotary_factor": 1.5},
            "rope partial is 1.5, expected 0 < partial <= 1",
        ),
    ],
)
def test_what_is_refused(config, message):
    with pytest.raises(InputError, match=f"^{re.escape(f'here: {message}')}$"):
        read_rope(config, "here")

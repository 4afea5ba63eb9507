"""The draft's forward pass against the naive float64 one, knob by knob, and its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.config import (
    AttentionConfig,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.model import Drafter, empty_memory, head_kernel
from eagle3_jax.rollout import unroll
from tests import reference
from tests.conftest import (
    COLUMNS,
    STEPS,
    close,
    latent_heads,
    random_params,
    random_text,
    tiny_config,
    unrolled,
)


def attention(**changes):
    return AttentionConfig(**({"num_heads": 4, "num_kv_heads": 2, "head_dim": 4} | changes))


def rope(scaling, **changes):
    return {"rope": RopeConfig(theta=100.0, scaling=scaling, **changes)}


KNOBS = {
    "plain": {},
    "norm before residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "fc norm": {"fc_norm": True},
    "norm output": {"norm_output": True},
    "double norm": {"double_norm": True},
    "double norm before residual": {"double_norm": True, "norm_before_residual": True},
    "no final norm": {"final_norm": False},
    "fc bias": {"fc_bias": True},
    "mlp bias": {"mlp_bias": True},
    "qkv bias": {"attention": attention(bias=True)},
    "output bias": {"attention": attention(output_bias=True)},
    "qk norm": {"attention": attention(qk_norm=True)},
    "head_dim 6 of its own": {"attention": attention(head_dim=6)},
    "MHA": {"attention": attention(num_kv_heads=4)},
    "MQA": {"attention": attention(num_kv_heads=1)},
    "window 3": {"attention": attention(sliding_window=3)},
    "window 4 over two layers": {"attention": attention(sliding_window=4), "num_layers": 2},
    "wider target": {"target_hidden_size": 12},
    "narrower target": {"target_hidden_size": 6, "fc_norm": True},
    "two layers": {"num_layers": 2, "norm_before_residual": True},
    "last state only": {"num_aux": 0},
    "one aux state": {"num_aux": 1},
    "two aux states": {"num_aux": 2, "norm_before_fc": True},
    "five aux states": {"num_aux": 5, "fc_norm": True},
    "another epsilon": {"rms_norm_eps": 0.1},
    "theta 100": rope(None),
    "half of each head turns": rope(None, partial=0.5),
    "linear": rope(LinearScaling(4.0)),
    "dynamic": rope(DynamicScaling(2.0, 3)),
    "llama3": rope(Llama3Scaling(8.0, 1.0, 4.0, 64)),
    "yarn": rope(YarnScaling(8.0, 16)),
    "longrope": rope(LongRopeScaling((1.0, 2.0), (3.0, 5.0), 64, 8.0)),
}

DEEPSEEK_YARN = YarnScaling(8.0, 16, mscale=1.0, mscale_all_dim=1.0)
LATENT_KNOBS = {
    "plain": {},
    "queries without a latent": {"attention": latent_heads(q_lora_rank=None)},
    "values wider than keys": {"attention": latent_heads(v_head_dim=9)},
    "values as wide as keys": {"attention": latent_heads(v_head_dim=6)},
    "one head": {"attention": latent_heads(num_heads=1)},
    "two layers": {"num_layers": 2},
    "norm before residual": {"norm_before_residual": True},
    "norm output": {"norm_output": True},
    "double norm, no final norm": {"double_norm": True, "final_norm": False},
    "fc norm, wider target": {"fc_norm": True, "target_hidden_size": 12},
    "last state only": {"num_aux": 0},
    "another epsilon": {"rms_norm_eps": 0.1},
    "half of the rope slice turns": rope(None, partial=0.5),
    "linear": rope(LinearScaling(4.0)),
    "llama3": rope(Llama3Scaling(8.0, 1.0, 4.0, 64)),
    "longrope": rope(LongRopeScaling((1.0, 2.0), (3.0, 5.0), 64, 8.0)),
    "yarn": rope(DEEPSEEK_YARN),
    "yarn, two mscales": rope(YarnScaling(8.0, 16, mscale=0.7, mscale_all_dim=1.3)),
    "yarn, mscale_all_dim alone": rope(YarnScaling(8.0, 16, mscale_all_dim=0.8)),
    "yarn, no mscale": rope(YarnScaling(8.0, 16)),
    "yarn, factor 1": rope(YarnScaling(1.0, 16, mscale=1.0, mscale_all_dim=1.0)),
    "all at once": {
        "num_layers": 2,
        "norm_before_residual": True,
        "norm_output": True,
        "fc_norm": True,
        "attention": latent_heads(q_lora_rank=None, v_head_dim=8),
        **rope(DEEPSEEK_YARN),
    },
}


def agrees_with_the_reference(config, seed=0, start=0, tolerance=1e-5):
    params = random_params(config, seed)
    aux, embeddings = random_text(config, seed=seed + 1)
    positions = start + jnp.arange(COLUMNS)[None]
    a = config.attention
    common = a == latent_heads() or (a.num_kv_heads == 2 and a.head_dim == 4)
    found = unrolled(config, params, aux, embeddings, positions=positions, whole=not common)
    expected = reference.unroll(
        config,
        params,
        np.float64(aux[0]),
        np.float64(embeddings[0]),
        STEPS,
        start=start,
        length=lambda k: start + COLUMNS + k,  # the row's longest position at that step
    )
    for ours, theirs in zip(found, expected, strict=True):
        close(ours[:, 0], theirs, tolerance)


@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_alone_agrees_with_the_naive_float64_draft(knob):
    agrees_with_the_reference(tiny_config(**KNOBS[knob]))


@pytest.mark.parametrize("knob", LATENT_KNOBS)
def test_every_knob_with_latent_attention_agrees_with_the_naive_float64_draft(knob):
    agrees_with_the_reference(tiny_config(**({"attention": latent_heads()} | LATENT_KNOBS[knob])))


@pytest.mark.parametrize("seed", range(5))
def test_random_combinations_of_knobs_agree_with_the_naive_float64_draft(seed):
    rng = np.random.default_rng(100 + seed)

    def coin():
        return bool(rng.integers(2))

    norm_before_fc, fc_norm = [(False, False), (True, False), (False, True)][rng.integers(3)]
    ropes = [knob["rope"] for knob in KNOBS.values() if "rope" in knob]
    config = tiny_config(
        norm_before_residual=coin(),
        norm_before_fc=norm_before_fc,
        fc_norm=fc_norm,
        norm_output=coin(),
        double_norm=coin(),
        final_norm=coin(),
        fc_bias=coin(),
        mlp_bias=coin(),
        attention=attention(
            num_kv_heads=2,
            bias=coin(),
            output_bias=coin(),
            qk_norm=coin(),
            sliding_window=3 if coin() else None,
        ),
        num_layers=int(rng.integers(1, 3)),
        num_aux=int(rng.integers(1, 4)),
        target_hidden_size=int(rng.choice([6, 8, 12])),
        rope=ropes[rng.integers(len(ropes))],
    )
    # Without a final norm, values grow over the steps and roundings with them.
    agrees_with_the_reference(config, seed, tolerance=1e-4)


@pytest.mark.parametrize("knob", ["plain", "dynamic", "llama3", "yarn", "longrope"])
def test_positions_near_20000_agree_with_the_naive_float64_draft(knob):
    # An angle of 20000 is known to a thousandth in float32, in every implementation.
    agrees_with_the_reference(tiny_config(**KNOBS[knob]), start=20000, tolerance=5e-3)


@pytest.mark.parametrize("knob", ["plain", "yarn"])
def test_positions_near_20000_of_latent_attention_agree_with_the_naive_float64_draft(knob):
    # A frequency's rounding turns queries and keys alike: only that of the angles is left.
    config = tiny_config(**({"attention": latent_heads()} | LATENT_KNOBS[knob]))
    agrees_with_the_reference(config, start=20000, tolerance=1e-4)


@pytest.mark.parametrize("window", [1, 2])
def test_a_window_shorter_than_the_steps_agrees_with_the_naive_float64_draft(window):
    agrees_with_the_reference(tiny_config(attention=attention(sliding_window=window)))


EVERYTHING = {
    "num_layers": 2,
    "fc_norm": True,
    "fc_bias": True,
    "mlp_bias": True,
    "norm_output": True,
    "attention": attention(bias=True, output_bias=True, qk_norm=True),
}


@pytest.mark.parametrize(
    "changes",
    [
        EVERYTHING,
        {"norm_before_fc": True, "double_norm": True},
        {"num_layers": 2, "attention": latent_heads()},
        {"attention": latent_heads(q_lora_rank=None)},
    ],
    ids=["many", "few", "latent", "latent without a query latent"],
)
def test_no_tensor_is_dead(changes):
    config = tiny_config(**changes)
    params = random_params(config)
    aux, embeddings = random_text(config)

    @jax.jit
    def logits(params):
        reads = unroll(
            config, params, aux, embeddings, steps=3, read=lambda _, step: step.head_input
        )
        return reads @ head_kernel(config, params)

    plain = logits(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):

        def turned_over(here, value, path=path):
            return value[::-1] if here == path else value

        # A key bias moves all scores of a query alike at one position; RoPE tells them apart.
        changed = logits(jax.tree_util.tree_map_with_path(turned_over, params))
        moved = float(jnp.max(jnp.abs(changed - plain)))
        assert moved > 1e-3, f"{jax.tree_util.keystr(path)} of shape {leaf.shape} is dead"


def test_norm_output_changes_what_is_fed_back_and_not_what_the_head_reads_first():
    config, fed_back = tiny_config(), tiny_config(norm_output=True)
    params = random_params(config)
    aux, embeddings = random_text(config)
    states, reads = unrolled(config, params, aux, embeddings)
    normed_states, normed_reads = unrolled(fed_back, params, aux, embeddings)
    close(normed_reads[0], reads[0])
    close(normed_states[0], reads[0])
    assert not np.allclose(normed_states[0], states[0], atol=1e-2)
    assert not np.allclose(normed_reads[1], reads[1], atol=1e-2)


def test_norm_before_residual_keeps_the_normed_state():
    config = tiny_config()
    params = random_params(config)
    aux, embeddings = random_text(config)
    plain = unrolled(config, params, aux, embeddings)[1]
    normed = unrolled(tiny_config(norm_before_residual=True), params, aux, embeddings)[1]
    assert not np.allclose(plain[0], normed[0], atol=1e-2)


def test_the_two_norms_before_attention_are_not_interchangeable():
    config = tiny_config()
    params = random_params(config)
    aux, embeddings = random_text(config)
    layer = dict(params["layers_0"])
    layer["hidden_norm"], layer["input_layernorm"] = layer["input_layernorm"], layer["hidden_norm"]
    swapped = unrolled(config, params | {"layers_0": layer}, aux, embeddings)[1]
    assert not np.allclose(unrolled(config, params, aux, embeddings)[1], swapped, atol=1e-2)


def test_the_embedding_half_of_the_attention_input_comes_first():
    config = tiny_config()
    params = random_params(config)
    aux, embeddings = random_text(config)
    attention_ = dict(params["layers_0"]["self_attn"])
    for name in ("q_proj", "k_proj", "v_proj"):
        kernel = attention_[name]["kernel"]
        assert kernel.shape[0] == 2 * config.hidden_size
        attention_[name] = {"kernel": kernel.at[: config.hidden_size].set(0.0)}
    blind = params | {"layers_0": params["layers_0"] | {"self_attn": attention_}}
    found = unrolled(config, blind, aux, embeddings)[1]
    close(found, unrolled(config, blind, aux, 0.5 - embeddings)[1])


def test_without_fc_the_last_state_passes_unchanged():
    config = tiny_config(num_aux=0)
    params = random_params(config)
    assert "fc" not in params
    aux, _ = random_text(config)
    fused = Drafter(config).apply({"params": params}, aux, method="fuse")
    np.testing.assert_array_equal(fused, aux)


def test_fc_is_applied_even_where_its_input_is_as_wide_as_its_output():
    config = tiny_config(num_aux=1)
    params = random_params(config)
    aux, _ = random_text(config)
    fused = Drafter(config).apply({"params": params}, aux, method="fuse")
    close(fused, np.float64(aux) @ np.float64(params["fc"]["kernel"]))


@pytest.mark.parametrize(
    ("num_aux", "width", "message"),
    [
        (3, 8, r"aux states have width 8, expected 24: 3 x 8"),
        (0, 24, r"aux states have width 24, expected 8: 1 x 8"),
    ],
)
def test_aux_states_of_another_width_are_refused(num_aux, width, message):
    config = tiny_config(num_aux=num_aux)
    with pytest.raises(ValueError, match=message):
        Drafter(config).apply(
            {"params": random_params(config)},
            jnp.zeros((1, 2, 8)),
            jnp.zeros((1, 2, width)),
            jnp.zeros((1, 2), jnp.int32),
        )


QKV = (("q", 16), ("k", 8), ("v", 8))


def test_parameters_are_named_as_checkpoints_name_them():
    config = tiny_config(
        num_layers=2, norm_before_fc=True, attention=attention(qk_norm=True, bias=True)
    )
    leaves = jax.tree_util.tree_leaves_with_path(random_params(config))
    shapes = {".".join(key.key for key in path): leaf.shape for path, leaf in leaves}
    assert shapes == {
        "fc.kernel": (24, 8),
        "input_norm.scale": (24,),
        **{f"layers_0.self_attn.{p}_proj.kernel": (16, n) for p, n in QKV},
        **{f"layers_1.self_attn.{p}_proj.kernel": (8, n) for p, n in QKV},
        **{f"layers_{i}.self_attn.{p}_proj.bias": (n,) for i in (0, 1) for p, n in QKV},
        **{f"layers_{i}.self_attn.{p}_norm.scale": (4,) for i in (0, 1) for p in "qk"},
        **{f"layers_{i}.self_attn.o_proj.kernel": (16, 8) for i in (0, 1)},
        **{f"layers_{i}.mlp.{p}_proj.kernel": (8, 16) for i in (0, 1) for p in ("gate", "up")},
        **{f"layers_{i}.mlp.down_proj.kernel": (16, 8) for i in (0, 1)},
        **{f"layers_{i}.input_layernorm.scale": (8,) for i in (0, 1)},
        **{f"layers_{i}.post_attention_layernorm.scale": (8,) for i in (0, 1)},
        "layers_0.hidden_norm.scale": (8,),
        "norm.scale": (8,),
        "lm_head.kernel": (8, 12),
    }


@pytest.mark.parametrize(
    ("rank", "queries"),
    [
        (None, {"q_proj.kernel": 18}),
        (7, {"q_a_proj.kernel": 7, "q_a_layernorm.scale": None, "q_b_proj.kernel": 18}),
    ],
)
def test_parameters_of_latent_attention_are_named_as_checkpoints_name_them(rank, queries):
    config = tiny_config(num_layers=2, attention=latent_heads(q_lora_rank=rank))
    params = random_params(config)
    for layer, read in (("layers_0", 16), ("layers_1", 8)):
        leaves = jax.tree_util.tree_leaves_with_path(params[layer]["self_attn"])
        shapes = {".".join(key.key for key in path): leaf.shape for path, leaf in leaves}
        from_input = {"q_proj.kernel": read, "q_a_proj.kernel": read, "q_b_proj.kernel": rank}
        assert shapes == {
            **{
                name: (rank,) if rows is None else (from_input[name], rows)
                for name, rows in queries.items()
            },
            "kv_a_proj_with_mqa.kernel": (read, 5 + 4),
            "kv_a_layernorm.scale": (5,),
            "kv_b_proj.kernel": (5, 3 * (2 + 3)),
            "o_proj.kernel": (3 * 3, 8),
        }


@pytest.mark.parametrize(
    ("changes", "biased"),
    [
        ({}, set()),
        ({"fc_bias": True}, {"fc"}),
        ({"mlp_bias": True}, {"gate_proj", "up_proj", "down_proj"}),
        ({"attention": attention(bias=True)}, {"q_proj", "k_proj", "v_proj"}),
        ({"attention": attention(output_bias=True)}, {"o_proj"}),
    ],
)
def test_a_bias_stands_where_its_knob_says_in_every_layer(changes, biased):
    leaves = jax.tree_util.tree_leaves_with_path(
        random_params(tiny_config(num_layers=2, **changes))
    )
    found = [path[-2].key for path, _ in leaves if path[-1].key == "bias"]
    expected = sorted(name for name in biased for _ in range(1 if name == "fc" else 2))
    assert sorted(found) == expected


def test_what_the_config_leaves_out_is_not_a_parameter():
    config = tiny_config(final_norm=False, num_aux=0, head="target", draft_vocab_size=32)
    assert set(random_params(config)) == {"layers_0"}


def test_the_head_comes_from_where_the_config_says():
    own = tiny_config()
    params = random_params(own)
    np.testing.assert_array_equal(head_kernel(own, params), params["lm_head"]["kernel"])
    table = jnp.arange(32.0 * 8).reshape(32, 8)
    tied = tiny_config(head="tied", draft_vocab_size=32)
    np.testing.assert_array_equal(head_kernel(tied, {}, embedding_table=table), table.T)
    target = tiny_config(head="target", draft_vocab_size=32)
    np.testing.assert_array_equal(head_kernel(target, {}, target_head=table.T), table.T)


def test_a_head_that_is_not_given_is_asked_for():
    tied = tiny_config(head="tied", draft_vocab_size=32)
    with pytest.raises(ValueError, match="head is its embedding table, which is not given"):
        head_kernel(tied, {}, target_head=jnp.zeros((8, 32)))
    target = tiny_config(head="target", draft_vocab_size=32)
    with pytest.raises(ValueError, match="the draft has no head, expected the target's head"):
        head_kernel(target, {}, embedding_table=jnp.zeros((32, 8)))


def test_a_head_of_another_shape_is_refused():
    own = tiny_config()
    with pytest.raises(ValueError, match=r"draft's head has shape \[12, 8\], expected \[D,W\] = "):
        head_kernel(own, {"lm_head": {"kernel": jnp.zeros((12, 8))}})
    tied = tiny_config(head="tied", draft_vocab_size=32)
    with pytest.raises(ValueError, match=r"table has shape \[8, 32\], expected \[V,D\] = \["):
        head_kernel(tied, {}, embedding_table=jnp.zeros((8, 32)))


def test_an_empty_memory_has_room_per_layer_row_and_key_head():
    config = tiny_config(num_layers=2, attention=attention(num_kv_heads=1))
    memory = empty_memory(config, 3, 7, jnp.dtype(jnp.bfloat16))
    assert [layer.context.keys.shape for layer in memory] == [(3, 1, 7, 4)] * 2
    assert all(layer.context.values.dtype == jnp.bfloat16 for layer in memory)
    assert all(layer.branch is None for layer in memory)


def test_an_empty_memory_of_latent_attention_has_two_widths():
    config = tiny_config(attention=latent_heads())
    (layer,) = empty_memory(config, 2, 7, jnp.dtype(jnp.bfloat16))
    assert layer.context.keys.shape == (2, 3, 7, 6)
    assert layer.context.values.shape == (2, 3, 7, 3)


@pytest.mark.parametrize(
    "changes", [{"fc_norm": True}, {"attention": latent_heads()}], ids=["grouped", "latent"]
)
def test_bfloat16_parameters_make_bfloat16_states_near_the_float32_ones(changes):
    config = tiny_config(**changes)
    params = random_params(config)
    aux, embeddings = random_text(config)

    def half(tree):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)

    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half((params, aux, embeddings)))
    states, reads = unrolled(config, *half((params, aux, embeddings)), whole=True)
    assert states.dtype == reads.dtype == jnp.bfloat16
    exact_states, exact_reads = unrolled(config, *rounded)
    close(reads, exact_reads, 3e-2)
    close(states, exact_states, 3e-2)

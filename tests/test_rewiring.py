"""A draft wired otherwise: weights and choices that change it, against a naive draft that is."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from eagle3_jax.config import AttentionConfig, RopeConfig, YarnScaling
from eagle3_jax.diagnose.rewiring import forgettable, repair_rope, swap_halves, swap_norms
from eagle3_jax.rollout import unroll
from eagle3_jax.wiring import Wiring
from tests import reference
from tests.conftest import close, latent_heads, random_params, random_text, tiny_config

STEPS = 3
BIASED = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=4, bias=True, qk_norm=True)
CONFIG = tiny_config(attention=BIASED, fc_norm=True, num_layers=2)


class Miswired(reference.Column):
    """The naive draft with one fault, written where it happens."""

    fault = ""
    advances = 1

    def fuse(self, aux):
        self.steps = -1
        if self.fault == "pre-fc norm skipped":
            return self.tree.dense(aux, "fc")
        return super().fuse(aux)

    def advance(self, embedding, x, position):
        self.steps += 1
        position += self.steps * (self.advances - 1)
        c, p, eps, fault = self.config, self.tree, self.config.rms_norm_eps, self.fault
        first, second = "input_layernorm", "hidden_norm"
        if fault == "norms swapped":
            first, second = second, first
        embedded = p.norm(embedding, f"layers_0.{first}", eps)
        hidden = p.norm(x, f"layers_0.{first}", eps) if c.double_norm else x
        hidden = p.norm(hidden, f"layers_0.{second}", eps)
        halves = [hidden, embedded] if fault == "halves swapped" else [embedded, hidden]
        residual = hidden if c.norm_before_residual else x
        if fault == "residual from the embedding":
            residual = embedding
        for layer in range(c.num_layers):
            name = f"layers_{layer}"
            read = np.concatenate(halves)
            if layer:
                read, residual = p.norm(x, f"{name}.input_layernorm", eps), x
            y = residual + self.attend(read, position, layer)
            z = p.norm(y, f"{name}.post_attention_layernorm", eps)
            gate, up = p.dense(z, f"{name}.mlp.gate_proj"), p.dense(z, f"{name}.mlp.up_proj")
            x = y + p.dense(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        normed = x if fault == "final norm skipped" else p.norm(x, "norm", eps)
        return (normed if c.norm_output else x), normed


def naive(monkeypatch, config, params, fault="", advances=1, **patches):
    """States and head inputs of the faulty naive draft, and what it was given."""
    monkeypatch.setattr(reference, "Column", Miswired)
    monkeypatch.setattr(Miswired, "fault", fault)
    monkeypatch.setattr(Miswired, "advances", advances)
    for name, value in patches.items():
        monkeypatch.setattr(reference, name, value)
    aux, embeddings = random_text(config, columns=5)
    found = reference.unroll(config, params, np.asarray(aux[0]), np.asarray(embeddings[0]), STEPS)
    return found, (aux, embeddings)


def wired(config, params, text, wiring=None):
    """The same of the real draft."""
    found = jax.jit(
        lambda params, aux, embeddings: unroll(
            config,
            params,
            aux,
            embeddings,
            steps=STEPS,
            read=lambda _, step: (step.state, step.head_input),
            wiring=wiring,
        )
    )(params, *text)
    return tuple(part[:, 0] for part in found)


def chosen(config, **choices):
    """A wiring whose choices are arrays, as a search hands them in."""
    ropes = choices.pop("ropes", (config.rope,))
    plain = Wiring.of(config)._replace(**choices)
    traced = {n: jax.numpy.asarray(v) for n, v in plain._asdict().items() if n != "ropes"}
    return Wiring(**traced, ropes=ropes)


def same(found, expected):
    for part, other in zip(found, expected, strict=True):
        close(part, other)


def test_choices_as_arrays_change_nothing_by_themselves(monkeypatch):
    params = random_params(CONFIG)
    expected, text = naive(monkeypatch, CONFIG, params)
    same(wired(CONFIG, params, text, chosen(CONFIG)), expected)


@pytest.mark.parametrize(
    ("fault", "choices"),
    [
        ("pre-fc norm skipped", {"pre_fc_norm": False}),
        ("final norm skipped", {"final_norm": False}),
        ("residual from the embedding", {"residual": 2}),
    ],
)
def test_a_choice_is_the_fault(monkeypatch, fault, choices):
    params = random_params(CONFIG)
    expected, text = naive(monkeypatch, CONFIG, params, fault)
    same(wired(CONFIG, params, text, chosen(CONFIG, **choices)), expected)


@pytest.mark.parametrize(
    ("knob", "choices"),
    [
        ({"double_norm": True}, {"double_norm": True}),
        ({"norm_before_residual": True}, {"residual": 1}),
        ({"norm_output": True}, {"norm_output": True}),
    ],
    ids=str,
)
def test_a_choice_is_the_knob(monkeypatch, knob, choices):
    params = random_params(CONFIG)
    expected, text = naive(monkeypatch, replace(CONFIG, **knob), params)
    same(wired(CONFIG, params, text, chosen(CONFIG, **choices)), expected)


@pytest.mark.parametrize("advances", [0, 2])
def test_positions_advance_as_chosen(monkeypatch, advances):
    params = random_params(CONFIG)
    expected, text = naive(monkeypatch, CONFIG, params, advances=advances)
    same(wired(CONFIG, params, text, chosen(CONFIG, advance=advances)), expected)


def test_a_rope_is_chosen_by_its_place(monkeypatch):
    other = RopeConfig(theta=100.0, scaling=YarnScaling(8.0, 4))
    params = random_params(CONFIG)
    expected, text = naive(monkeypatch, replace(CONFIG, rope=other), params)
    ropes = (CONFIG.rope, RopeConfig(theta=7.0), other)
    same(wired(CONFIG, params, text, chosen(CONFIG, rope=2, ropes=ropes)), expected)


@pytest.mark.parametrize(
    ("fault", "change"), [("norms swapped", swap_norms), ("halves swapped", swap_halves)]
)
@pytest.mark.parametrize("attention", [BIASED, latent_heads(), latent_heads(q_lora_rank=None)])
def test_other_weights_are_the_fault(monkeypatch, fault, change, attention):
    config = replace(CONFIG, attention=attention)
    params = random_params(config)
    expected, text = naive(monkeypatch, config, params, fault)
    same(wired(config, change(params), text), expected)


@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_neighbours_are_paired_by_other_weights(monkeypatch, partial):
    config = replace(
        CONFIG, rope=RopeConfig(theta=100.0, partial=partial), attention=replace(BIASED, head_dim=8)
    )
    params = random_params(config)
    expected, text = naive(monkeypatch, config, params, turn=reference.turn_neighbours)
    same(wired(config, repair_rope(config)(params), text), expected)


@pytest.mark.parametrize("rank", [7, None])
def test_halves_are_paired_by_other_weights_in_latent_attention(monkeypatch, rank):
    config = replace(CONFIG, attention=latent_heads(q_lora_rank=rank))
    params = random_params(config)
    expected, text = naive(monkeypatch, config, params, turn_neighbours=reference.turn)
    same(wired(config, repair_rope(config)(params), text), expected)


def test_every_norm_and_bias_can_be_forgotten_and_nothing_else():
    params = random_params(CONFIG)
    found = dict(forgettable(params))
    assert set(found) == {
        *(f"fc_norm.{a}.weight" for a in range(3)),
        "norm.weight",
        "layers.0.hidden_norm.weight",
        *(f"layers.{i}.input_layernorm.weight" for i in range(2)),
        *(f"layers.{i}.post_attention_layernorm.weight" for i in range(2)),
        *(f"layers.{i}.self_attn.{x}_norm.weight" for i in range(2) for x in "qk"),
        *(f"layers.{i}.self_attn.{x}_proj.bias" for i in range(2) for x in "qkv"),
    }
    changed = found["layers.1.self_attn.k_proj.bias"](params)
    assert not np.any(changed["layers_1"]["self_attn"]["k_proj"]["bias"])
    changed = found["fc_norm.1.weight"](params)
    assert np.all(np.asarray(changed["fc_norm_1"]["scale"]) == 1)
    for name, forget in found.items():
        leaves = jax.tree.leaves(
            jax.tree.map(lambda a, b: bool((a != b).any()), params, forget(params))
        )
        assert sum(leaves) == 1, name

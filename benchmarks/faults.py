"""Every single fault that is planted: one family a function."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.planted import Fault, Plant, Subject
from eagle3_jax.config import AttentionConfig, RopeConfig
from eagle3_jax.diagnose.readings import EXPORTED_YARN
from eagle3_jax.structs import Document


def faults_of(subject: Subject) -> list[Fault]:
    """All single faults that a draft can have."""
    return [
        *_states(subject),
        *_pairings(),
        *_vocabularies(subject),
        *_knobs(subject),
        *_weights(subject),
        *_ropes(subject),
        *_unused(subject),
        *_unknown(subject),
    ]


def _states(subject: Subject) -> list[Fault]:
    stored = len(subject.documents[0].states[0])
    own = subject.slots
    wanted: dict[str, tuple[int, ...]] = {
        "all moved by -1": tuple(slot - 1 for slot in own),
        "all moved by +1": tuple(slot + 1 for slot in own),
        "reversed": own[::-1],
        "turned": (*own[1:], own[0]),
        "the last two in each other's place": (own[0], own[2], own[1]),
        "equally spaced others": tuple(range(0, stored, max(stored // 3, 1)))[: len(own)],
        "the first ones": tuple(range(len(own))),
        "the last ones": tuple(range(stored - len(own), stored)),
        "the embedding for the first": (stored, *own[1:]),
        "the embedding for the last": (*own[:-1], stored),
        "one of them its neighbour": (own[0], own[1] + 1, own[2]),
    }
    found = {}
    for name, slots in wanted.items():
        good = min(slots) >= 0 and max(slots) <= stored and len(set(slots)) == len(own)
        if good and slots != own and slots not in found.values():
            found[name] = slots
    return [
        Fault("states", name, lambda s, slots=slots: s._replace(slots=slots), frozenset({"states"}))
        for name, slots in found.items()
    ]


def _pairings() -> list[Fault]:
    def moved(by: int) -> Plant:
        def plant(subject: Subject) -> Subject:
            documents = [
                text._replace(states=np.roll(text.states, by, axis=0)) for text in subject.documents
            ]
            pairing = jnp.int32(1 - by)
            return subject._replace(documents=documents).truly(pairing=pairing)

        return plant

    axes = frozenset({"pairing"})
    return [
        Fault("pairing", "states stored one token late", moved(1), axes),
        Fault("pairing", "states stored one token early", moved(-1), axes),
    ]


def _vocabularies(subject: Subject) -> list[Fault]:
    rows = np.arange(subject.config.draft_vocab_size)
    last = subject.config.vocab_size - 1
    ids = subject.target_ids
    rng = np.random.default_rng(0)
    wrong = {
        "offsets taken for ids": ids - rows,
        "lost: the first ids": rows,
        "lost: any ids": np.sort(rng.permutation(last + 1)[: len(rows)]),
    }
    if (ids + rows).max() <= last:
        wrong["ids taken for offsets"] = ids + rows
    axes = frozenset({"vocabulary"})
    return [
        Fault("d2t", name, lambda s, other=other: s._replace(target_ids=other), axes)
        for name, other in wrong.items()
    ]


def _knobs(subject: Subject) -> list[Fault]:
    config = subject.config
    axes = {
        "norm_before_residual": "residual",
        "norm_output": "fed back",
        "double_norm": "norm of the hidden half",
    }

    def flipped(name: str) -> Plant:
        def plant(s: Subject) -> Subject:
            return s._replace(config=replace(s.config, **{name: not getattr(s.config, name)}))

        return plant

    found = [Fault(name, "the other way", flipped(name), frozenset({axes[name]})) for name in axes]
    if not (config.norm_before_fc or config.fc_norm):
        found.append(
            Fault("norm before fc", "one too many", _norm_fc, frozenset({"norm before fc"}))
        )
    return found


def _norm_fc(subject: Subject) -> Subject:
    """The file holds norms that training did not apply."""
    weight = {"scale": _norm_weight(subject.config.aux_width)}
    config = replace(subject.config, norm_before_fc=True)
    return subject._replace(config=config, params=subject.params | {"input_norm": weight}).truly(
        params=subject.truth.params | {"input_norm": weight}
    )


def _weights(subject: Subject) -> list[Fault]:
    found = [
        Fault("norms swapped", "in the file", _swap, frozenset({"norms before attention"})),
        Fault("halves swapped", "rows of the kernels", _roll, frozenset({"halves"})),
    ]

    def scaled(by: float) -> Plant:
        def plant(s: Subject) -> Subject:
            documents = [
                text._replace(embeddings=by * text.embeddings)
                for text in s.documents
                if text.embeddings is not None
            ]
            return s._replace(documents=documents).truly(scale=jnp.float32(1 / by))

        return plant

    root = math.sqrt(subject.config.hidden_size)
    axes = frozenset({"embedding"})
    found += [
        Fault("embedding scaled", "by the root of its width", scaled(root), axes),
        Fault("embedding scaled", "by one over the root", scaled(1 / root), axes),
    ]
    return found


def _swap(subject: Subject) -> Subject:
    layer = dict(subject.params["layers_0"])
    names = ("input_layernorm", "hidden_norm")
    layer[names[0]], layer[names[1]] = layer[names[1]], layer[names[0]]
    return subject._replace(params=subject.params | {"layers_0": layer})


def _roll(subject: Subject) -> Subject:
    width = subject.config.hidden_size

    def turned(attention: dict[str, Any]) -> dict[str, Any]:
        return attention | {
            name: attention[name]
            | {"kernel": jnp.concatenate([*jnp.split(attention[name]["kernel"], [width])[::-1]])}
            for name in ("q_proj", "k_proj", "v_proj")
        }

    return _with_attention(subject, 0, turned)


def _ropes(subject: Subject) -> list[Fault]:
    axes = frozenset({"rope"})

    def other(rope: RopeConfig) -> Plant:
        return lambda s: s._replace(config=replace(s.config, rope=rope))

    own = subject.rope
    found = [
        Fault("rope theta", f"{theta:g}", other(replace(own, theta=theta)), axes)
        for theta in (500_000.0, 1_000_000.0, 25_000.0)
    ]
    scaled = replace(own, scaling=EXPORTED_YARN)
    found.append(Fault("rope scaling", "yarn that the export added", other(scaled), axes))
    found.append(Fault("rope pairing", "neighbours' order of columns", _interleave, axes))
    return found


def _interleave(subject: Subject) -> Subject:
    """Queries and keys as a reader that turns neighbours would have them."""
    attention = subject.config.attention
    assert isinstance(attention, AttentionConfig), "only grouped-query drafts are planted in"
    half = attention.head_dim // 2

    def turned(modules: dict[str, Any]) -> dict[str, Any]:
        def by_head(x: jax.Array) -> jax.Array:
            apart = x.reshape(*x.shape[:-1], -1, 2, half)
            return jnp.swapaxes(apart, -1, -2).reshape(x.shape)

        return modules | {
            name: jax.tree.map(by_head, modules[name]) for name in ("q_proj", "k_proj")
        }

    for index in range(subject.config.num_layers):
        subject = _with_attention(subject, index, turned)
    return subject


def _unused(subject: Subject) -> list[Fault]:
    """Norm weights that the file holds and training did not use.

    So that there is such a draft, the norm's own weight is moved into the kernels that read it.
    """
    found = []
    config = subject.config
    later = "post_attention_layernorm"
    for name in ("input_layernorm", "hidden_norm", later):
        if name == "input_layernorm" and config.double_norm:
            continue
        if name == "hidden_norm" and config.norm_before_residual:
            continue
        plant = _unused_norm(name)
        found.append(Fault("tensor not trained", name, plant, frozenset({"tensors", name})))
    return [
        replace(fault, axes=fault.axes | {"norms before attention", "halves"}) for fault in found
    ]


def _unused_norm(name: str) -> Plant:
    def plant(subject: Subject) -> Subject:
        layer = subject.truth.params["layers_0"]
        scale = layer[name]["scale"]
        width = subject.config.hidden_size
        start = {"input_layernorm": 0, "hidden_norm": width}
        if name in start:
            part = slice(start[name], start[name] + width)
            modules, readers = "self_attn", ("q_proj", "k_proj", "v_proj")
        else:
            part, modules, readers = slice(0, width), "mlp", ("gate_proj", "up_proj")

        def moved(params: dict[str, Any], weight: jax.Array) -> dict[str, Any]:
            first = dict(params["layers_0"])
            inside = dict(first[modules])
            for reader in readers:
                kernel = inside[reader]["kernel"]
                kernel = kernel.at[part].multiply(scale[:, None])
                inside[reader] = inside[reader] | {"kernel": kernel}
            return params | {"layers_0": first | {modules: inside, name: {"scale": weight}}}

        return subject._replace(params=moved(subject.params, _norm_weight(width))).truly(
            params=moved(subject.truth.params, jnp.ones(width))
        )

    return plant


def _unknown(subject: Subject) -> list[Fault]:
    """What no reading undoes: weights that are gone, states that were normed on the way."""
    found = [
        Fault("nothing is right", f"{name} lost", _lost(name), frozenset(), known=False)
        for name in ("hidden_norm", "post_attention_layernorm")
    ]
    if not subject.config.fc_norm:
        found.append(
            Fault("nothing is right", "states normed before storing", _normed, frozenset(), False)
        )
    return found


def _lost(name: str) -> Plant:
    def plant(subject: Subject) -> Subject:
        layer = subject.params["layers_0"]
        ones = {"scale": jnp.ones_like(layer[name]["scale"])}
        return subject._replace(params=subject.params | {"layers_0": layer | {name: ones}})

    return plant


def _normed(subject: Subject) -> Subject:
    def normed(text: Document) -> Document:
        states = text.states.astype(np.float32)
        size = np.sqrt(np.square(states).mean(-1, keepdims=True) + 1e-6)
        return text._replace(states=states / size)

    return subject._replace(documents=[normed(text) for text in subject.documents])


def _norm_weight(width: int) -> jax.Array:
    noise = np.random.default_rng(width).normal(size=width)
    return jnp.asarray(np.exp(0.7 * noise), jnp.float32)


def _with_attention(
    subject: Subject, index: int, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> Subject:
    name = f"layers_{index}"
    layer = subject.params[name]
    changed = layer | {"self_attn": change(layer["self_attn"])}
    return subject._replace(params=subject.params | {name: changed})

"""A draft in the files of SafeAILab's trainer says what `eagle/model/cnets.py` would make of it.

Nobody packages that code, so what it does is written out here, in float64: it reads each token with
the state before it, hands on the raw state, turns heads of D/N with 10000 at positions that go on
by one a step, norms for the head alone, and adds `d2t` to a draft id.
"""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from converters.drafts import open_draft, read_whole
from eagle3_jax.config import RopeConfig
from eagle3_jax.propose import draft_one, read_prefix
from tests.torch_files import tensor, write_torch

WIDTH, FFN, HEADS, KV_HEADS, HEAD, VOCAB, EPS = 8, 16, 4, 2, 2, 32, 1e-3
TEXT, STEPS = 7, 4
IDS = np.array([0, 1, 3, 4, 7, 8, 9, 15, 20, 21, 30, 31])
MIDLAYER = {
    "hidden_norm": (WIDTH,),
    "input_layernorm": (WIDTH,),
    "post_attention_layernorm": (WIDTH,),
    "self_attn.q_proj": (HEADS * HEAD, 2 * WIDTH),
    "self_attn.k_proj": (KV_HEADS * HEAD, 2 * WIDTH),
    "self_attn.v_proj": (KV_HEADS * HEAD, 2 * WIDTH),
    "self_attn.o_proj": (WIDTH, HEADS * HEAD),
    "mlp.gate_proj": (FFN, WIDTH),
    "mlp.up_proj": (FFN, WIDTH),
    "mlp.down_proj": (WIDTH, FFN),
}


def write(folder, target_width, size, own_table):
    """The two files that its trainer leaves, and what is in the second, in float64."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "intermediate_size": FFN,
        "max_position_embeddings": 64,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": EPS,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vocab_size": VOCAB,
        "draft_vocab_size": size,
    }
    if target_width != WIDTH:
        config["target_hidden_size"] = target_width
    source = np.random.default_rng(size + target_width)
    shapes = {
        "fc.weight": (WIDTH, 3 * target_width),
        "norm.weight": (WIDTH,),
        "lm_head.weight": (size, WIDTH),
    } | {f"midlayer.{name}.weight": shape for name, shape in MIDLAYER.items()}
    if own_table:
        shapes["embed_tokens.weight"] = (VOCAB, WIDTH)
    drawn = {
        name: (1.5 * source.normal(size=shape) / shape[-1] ** 0.5).astype(np.float16)
        if len(shape) > 1
        else (1 + 0.3 * source.normal(size=shape)).astype(np.float16)
        for name, shape in shapes.items()
    }
    if size < VOCAB:
        drawn |= {"d2t": IDS - np.arange(size), "t2d": np.isin(np.arange(VOCAB), IDS)}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_torch(
        folder / "pytorch_model.bin", {name: tensor(value) for name, value in drawn.items()}
    )
    return {name: np.float64(value) for name, value in drawn.items()}


class Cnets:
    """Its model, one token at a time."""

    def __init__(self, held):
        self.held, self.keys, self.values = held, [], []

    def linear(self, name, x):
        return self.held[f"{name}.weight"] @ x

    def norm(self, name, x):
        return self.held[f"{name}.weight"] * x / math.sqrt(np.mean(x * x) + EPS)

    def turn(self, heads, position):
        """Its `rotate_half`: the first half of a head with the second."""
        half = HEAD // 2
        angles = position / 10000.0 ** (np.arange(half) * 2 / HEAD)
        cos, sin = np.tile(np.cos(angles), 2), np.tile(np.sin(angles), 2)
        turned = np.concatenate([-heads[:, half:], heads[:, :half]], axis=1)
        return heads * cos + turned * sin

    def read(self, embedding, hidden, position):
        """A token with the state before it: the state that is handed on."""
        if hidden.size != embedding.size:
            hidden = self.linear("fc", hidden)
        normed = self.norm("midlayer.hidden_norm", hidden)
        both = np.concatenate([self.norm("midlayer.input_layernorm", embedding), normed])
        q, k, v = (
            self.linear(f"midlayer.self_attn.{part}_proj", both).reshape(-1, HEAD) for part in "qkv"
        )
        self.keys.append(self.turn(k, position))
        self.values.append(v)
        mixed = []
        for n, query in enumerate(self.turn(q, position)):
            shared = n // (HEADS // KV_HEADS)
            scores = np.array([key[shared] @ query for key in self.keys]) / math.sqrt(HEAD)
            shares = np.exp(scores - scores.max())
            mixed.append(shares / shares.sum() @ np.array([value[shared] for value in self.values]))
        hidden = hidden + self.linear("midlayer.self_attn.o_proj", np.concatenate(mixed))
        x = self.norm("midlayer.post_attention_layernorm", hidden)
        gate, up = (self.linear(f"midlayer.mlp.{part}_proj", x) for part in ("gate", "up"))
        return hidden + self.linear("midlayer.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)

    def logits(self, hidden):
        return self.linear("lm_head", self.norm("norm", hidden))

    def target_id(self, draft_id):
        return draft_id + (int(self.held["d2t"][draft_id]) if "d2t" in self.held else 0)


def chain(held, ids, aux, table):
    """The first branch of its tree: the best token of each step, and the logits that it is of."""
    model = Cnets(held)
    for position, (token, states) in enumerate(zip(ids[1:], aux, strict=True)):
        hidden = model.read(table[token], states, position)
    said, logits = [], []
    for step in range(STEPS):
        logits.append(model.logits(hidden))
        said.append(model.target_id(int(np.argmax(logits[-1]))))
        hidden = model.read(table[said[-1]], hidden, len(aux) + step)
    return said, np.array(logits)


def ours(draft, ids, aux, table):
    """The same of the draft that was read."""
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draft.params)
    table, kernel = jnp.asarray(table, jnp.float32), params["lm_head"]["kernel"]
    given = table[ids[1:]][None], jnp.asarray(aux, jnp.float32)[None]
    step = read_prefix(draft.config, params, *given, room=STEPS)
    said, logits = [], []
    for k in range(STEPS):
        logits.append(np.asarray(step.head_input[0, -1] @ kernel))
        said.append(int(draft.vocab.target_ids[np.argmax(logits[-1])]))
        slot = jnp.array([len(aux) + k])
        after = table[said[-1]][None, None], step.state[:, -1:]
        step = draft_one(draft.config, params, *after, step.memory, slot)
    return said, np.array(logits)


@pytest.mark.parametrize(
    ("target_width", "size", "own_table"),
    [(WIDTH, 12, False), (WIDTH, VOCAB, False), (12, 12, True)],
    ids=["usual", "whole vocabulary", "wider target"],
)
def test_it_drafts_what_it_would(tmp_path, target_width, size, own_table):
    held = write(tmp_path / "draft", target_width, size, own_table)
    opened = open_draft(tmp_path / "draft")
    draft = read_whole(opened)
    assert (opened.dialect.name, opened.config.attention.head_dim) == ("eagle", HEAD)
    assert opened.config.rope == RopeConfig(theta=10000.0)
    source = np.random.default_rng(3)
    ids = source.integers(VOCAB, size=TEXT + 1)
    aux = source.normal(size=(TEXT, 3 * target_width))
    table = held.get("embed_tokens.weight", source.normal(size=(VOCAB, WIDTH)))
    assert (draft.embeddings is not None) == own_table
    if own_table:
        np.testing.assert_array_equal(np.float64(draft.embeddings), table)
    said, logits = ours(draft, ids, aux, table)
    expected, numbers = chain(held, ids, aux, table)
    np.testing.assert_allclose(logits, numbers, atol=2e-5)
    assert said == expected
    assert len(set(expected)) > 1

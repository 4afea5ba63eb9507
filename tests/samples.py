"""Tiny drafts, shards and targets on disk, for tests of whatever reads them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from converters.drafts import LoadedDraft
from converters.shards import LastState, ShardInfo, write_shard
from converters.writing import save_draft
from eagle3_jax.model import Drafter
from eagle3_jax.ops import read_at
from eagle3_jax.rollout import greedy_ids
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap
from tests.conftest import random_params, tiny_config

BOUNDARIES = (2, 4, 5, 8)
WIDTH, VOCAB = 8, 32
TABLE = np.random.default_rng(1).normal(size=(VOCAB, WIDTH)).astype(np.float32)


def tiny_draft(
    *, boundaries: tuple[int, ...] | None = BOUNDARIES[:3], embeddings: bool = False, **changes: Any
) -> LoadedDraft:
    """A random draft; its vocabulary is every other id from 3 on."""
    config = tiny_config(**changes)
    every = VocabMap.identity(VOCAB)
    vocab = (
        every
        if config.draft_vocab_size == VOCAB
        else VocabMap.from_ids(3 + 2 * np.arange(config.draft_vocab_size), VOCAB)
    )
    params = jax.tree.map(np.asarray, random_params(config))
    return LoadedDraft(config, params, vocab, TABLE if embeddings else None, boundaries, ())


def halved(draft: LoadedDraft) -> LoadedDraft:
    """The same draft with weights of 16 bits."""
    half = jax.tree.map(lambda leaf: leaf.astype(ml_dtypes.bfloat16), draft.params)
    return draft._replace(params=half)


def require_same(one, other):
    """Two trees of the same structure, types, shapes and bytes."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def write_draft(directory: Path, draft: LoadedDraft | None = None) -> Path:
    save_draft(directory, draft or tiny_draft(), max_positions=64)
    return directory


def text_of(draft: LoadedDraft, length: int, seed: int) -> Document:
    """A text that its draft, reading the first three stored states, mostly gets right at step 0."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(length, len(BOUNDARIES), WIDTH)).astype(np.float32)
    ids = rng.integers(0, VOCAB, length).astype(np.int32)

    params = jax.tree.map(jnp.asarray, draft.params)
    target_ids = jnp.asarray(draft.vocab.target_ids)

    @jax.jit
    def first_step(ids):
        step: Any = Drafter(draft.config).apply(
            {"params": params},
            read_at(jnp.asarray(TABLE)[ids][None], 0),
            jnp.asarray(states[:, :3].reshape(1, length, -1)),
            jnp.arange(length)[None],
        )
        return greedy_ids(step.head_input, params["lm_head"]["kernel"], target_ids)[0]

    for column in range(length - 2):
        if rng.random() < 0.7:
            ids[column + 2] = first_step(ids)[column]
    answer = np.arange(length) >= rng.integers(2, 6)
    return Document(ids, answer, states, TABLE[ids])


@cache
def texts() -> list[Document]:
    """Texts of the plain `tiny_draft()`, of three lengths."""
    draft = tiny_draft()
    return [text_of(draft, length, seed) for seed, length in enumerate((20, 20, 20, 70))]


def write_texts(
    path: Path,
    documents: list[Document],
    *,
    boundaries: tuple[int, ...] = BOUNDARIES,
    last_state: LastState = "pre_norm",
) -> Path:
    write_shard(path, documents, ShardInfo(boundaries, last_state, "a tiny target", {}))
    return path


def write_target(
    directory: Path, *, width: int = WIDTH, vocab_size: int = VOCAB, layers: int = 1
) -> Path:
    """A Llama whose embedding table is `TABLE`, and whose head is its own.

    Only its first layer is there: the config says how many there would be.
    """
    rng = np.random.default_rng(2)
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 12,
        "vocab_size": vocab_size,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    shapes = {
        **{f"{layer}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"},
        f"{layer}mlp.gate_proj.weight": (12, width),
        f"{layer}mlp.up_proj.weight": (12, width),
        f"{layer}mlp.down_proj.weight": (width, 12),
        f"{layer}input_layernorm.weight": (width,),
        f"{layer}post_attention_layernorm.weight": (width,),
        "model.norm.weight": (width,),
        "lm_head.weight": (vocab_size, width),
        "model.embed_tokens.weight": (vocab_size, width),
    }
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    if tensors["model.embed_tokens.weight"].shape == TABLE.shape:
        tensors["model.embed_tokens.weight"] = TABLE
    save_file(tensors, directory / "model.safetensors")
    return directory

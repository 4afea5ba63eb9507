"""Small drafts that are trained on the spot, on texts whose rule is known.

No download: seven sources move on by themselves from token to token, and the next token depends on
some of them,

    v[t] = e(x[t]) + g2(u2[t-1]) + g4(u4[t-1]) + g6(u6[t-1]) + h(u2[t-4])
    x[t+1] is drawn from head(norm(v[t]))
    boundary b at t = e(x[t]) + a constant + the sources 1..b at t, boundary 8 = v[t]

so that a draft has to read the right three boundaries in their order, the embedding, and an earlier
column at its distance; and has to carry the sources along to get later steps right.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from converters.drafts import LoadedDraft, load_draft
from eagle3_jax.batches import batches
from eagle3_jax.checkpoints import Checkpoint, write_checkpoint
from eagle3_jax.cli.manners import cache_directory
from eagle3_jax.config import AttentionConfig, DraftConfig, RopeConfig
from eagle3_jax.model import Drafter
from eagle3_jax.ops import due_at, project
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import Document, Features
from eagle3_jax.train import Teacher, train_step
from eagle3_jax.vocab import VocabMap
from eagle3_jax.wiring import Wiring

VOCAB, DRAFT_VOCAB, WIDTH, LENGTH = 256, 96, 64, 64
BOUNDARIES = (2, 4, 6)  # that feed the draft
STORED = tuple(range(1, 9))
SLOTS = tuple(STORED.index(boundary) for boundary in BOUNDARIES)
LAST = len(STORED) - 1
_SOURCES, _SIZE, _RANK, _FAR = 7, 4, 16, 3
_SHARPNESS = 1.5  # of the next token's distribution
_DECAY = 0.9


class World(NamedTuple):
    """What texts are made of.

    Attributes:
        table: `[V,D]`, token embeddings.
        norm: `[D]`, weight of the target's final norm.
        head: `[D,V]`, the target's.
        target_ids: `[W]`, the ids that most of a text is of; no regular pattern.
        constant: `[D]`, in every state.
        steps: how each source moves, `[7,8,8]`, orthogonal.
        written: how each source is added to the states, `[7,8,D]`.
        read: how each source moves the next token, `[7,8,D]`.
        far: how source 2 of some tokens before does, `[8,D]`.
    """

    table: np.ndarray
    norm: np.ndarray
    head: np.ndarray
    target_ids: np.ndarray
    constant: np.ndarray
    steps: np.ndarray
    written: np.ndarray
    read: np.ndarray
    far: np.ndarray


@dataclass(frozen=True)
class Recipe:
    """A draft and how it is trained.

    Attributes:
        name: of its directory in the cache.
        config: its knobs.
        wiring: how it is wired in training where no config says so, as fields of `Wiring`.
        unit: it is fed states that are each divided by their root mean square.
        updates: optimiser steps.
        rate: the highest learning rate.
        seed: of world, initialisation and order.
    """

    name: str
    config: DraftConfig
    wiring: tuple[tuple[str, int], ...] = ()
    unit: bool = False
    updates: int = 400
    rate: float = 3e-2
    seed: int = 0


def small_config(**knobs: Any) -> DraftConfig:
    """The shapes of every small draft: grouped heads."""
    shapes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "target_hidden_size": WIDTH,
        "intermediate_size": 128,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "attention": AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=16),
        "rope": RopeConfig(theta=10_000.0),
    }
    return DraftConfig(**(shapes | knobs))


RECIPES = (
    Recipe(
        "small-a",
        small_config(
            norm_before_fc=True,
            norm_before_residual=True,
            attention=AttentionConfig(num_heads=8, num_kv_heads=4, head_dim=16, bias=True),
        ),
    ),
    Recipe("small-b", small_config(fc_norm=True, norm_output=True, num_layers=2), seed=1),
    Recipe("small-c", small_config(double_norm=True), (("advance", 0),), unit=True, seed=2),
)


def make_world(seed: int) -> World:
    """A world of its own for each seed."""
    rng = np.random.default_rng(seed)

    def noise(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    # No offset twice, and none beyond the vocabulary: offsets and ids can be mixed up and sorted.
    ids = np.sort(rng.permutation(VOCAB - DRAFT_VOCAB)[:DRAFT_VOCAB])
    return World(
        table=noise(VOCAB, _RANK) @ noise(_RANK, WIDTH, scale=_RANK**-0.5),
        norm=np.exp(noise(WIDTH, scale=0.4)),
        head=noise(WIDTH, VOCAB, scale=_SHARPNESS),
        target_ids=ids.astype(np.int32),
        constant=noise(WIDTH),
        steps=np.stack([np.linalg.qr(noise(_SIZE, _SIZE))[0] for _ in range(_SOURCES)]),
        written=noise(_SOURCES, _SIZE, WIDTH, scale=_SIZE**-0.5),
        read=noise(_SOURCES, _SIZE, WIDTH, scale=_SIZE**-0.5),
        far=noise(_SIZE, WIDTH, scale=_SIZE**-0.5),
    )


def make_documents(world: World, count: int, seed: int) -> list[Document]:
    """Texts that the target itself goes on with, and its states at each token."""
    rng = np.random.default_rng(seed)
    sources = np.zeros((LENGTH, _SOURCES, count, _SIZE), np.float32)
    sources[0] = rng.normal(size=sources.shape[1:])
    for t in range(1, LENGTH):
        fresh = rng.normal(size=sources.shape[1:])
        sources[t] = np.sqrt(0.95) * sources[t - 1] @ world.steps + np.sqrt(0.05) * fresh
    ids = np.zeros((LENGTH, count), np.int32)
    ids[0] = rng.choice(world.target_ids, count)
    meant = np.zeros((LENGTH, count, WIDTH), np.float32)
    said = np.full(VOCAB, -4.0, np.float32)
    said[world.target_ids] = 0.0
    for t in range(LENGTH):
        near, far = sources[max(t - 1, 0)], sources[max(t - 1 - _FAR, 0)]
        meant[t] = world.table[ids[t]] + 1.2 * far[1] @ world.far
        for boundary in BOUNDARIES:
            meant[t] += near[boundary - 1] @ world.read[boundary - 1]
        normed = meant[t] / np.sqrt(np.square(meant[t]).mean(-1, keepdims=True) + 1e-5)
        logits = normed * world.norm @ world.head + said
        if t + 1 < LENGTH:
            ids[t + 1] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    residual = world.table[ids] + world.constant
    states = []
    for number in range(_SOURCES):
        residual = residual + sources[:, number] @ world.written[number]
        states.append(residual)
    stored = np.stack([*states, meant], axis=2).swapaxes(0, 1)  # [documents,T,A+1,D]
    return [
        Document(
            ids[:, row].copy(),
            np.arange(LENGTH) >= rng.integers(2, 12),
            np.ascontiguousarray(stored[row]),
            None,
        )
        for row in range(count)
    ]


def divided(document: Document) -> Document:
    """A text whose states that may feed a draft are each divided by their root mean square."""
    aux, last = document.states[:, :LAST], document.states[:, LAST:]
    size = np.sqrt(np.square(aux).mean(-1, keepdims=True) + 1e-6)
    return document._replace(states=np.concatenate([aux / size, last], axis=1))


def trained(recipe: Recipe) -> LoadedDraft:
    """The draft of a recipe, from the cache or trained and put there."""
    made_of = (repr(recipe), *(part.tobytes() for part in make_world(recipe.seed)))
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]
    place = cache_directory() / "planted" / f"{recipe.name}-{digest}"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        # Aside first: a training that ends half-way leaves nothing that looks whole.
        aside = place.with_name(f".{place.name}.{os.getpid()}")
        aside.mkdir()
        draft = train(recipe)
        write_checkpoint(
            aside,
            Checkpoint(draft.config, draft.params, draft.vocab, draft.embeddings, draft.boundaries),
        )
        aside.rename(place)
    return load_draft(place)


def train(recipe: Recipe, *, documents: int = 1500) -> LoadedDraft:
    """Train the draft of a recipe on its world."""
    config = recipe.config
    world = make_world(recipe.seed)
    vocab = VocabMap.from_ids(world.target_ids, VOCAB)
    kernel = jnp.asarray(world.head[:, world.target_ids])
    teacher = Teacher(jnp.asarray(world.norm), kernel, 1e-5)
    params = _initial(config, recipe.seed, kernel)
    optimizer = _optimizer(recipe)
    state = optimizer.init(params)
    step = train_step(config, optimizer, steps=3, decay=_DECAY)
    if recipe.wiring:
        step = _rewired_step(recipe, optimizer, vocab)
    texts = make_documents(world, documents, seed=1000 + recipe.seed)
    if recipe.unit:
        texts = [divided(text) for text in texts]
    stream = _endless(texts, world.table, recipe.seed)
    for _ in range(recipe.updates):
        features, pre_norm = next(stream)
        params, state, _ = step(params, state, teacher, features, pre_norm)
    return LoadedDraft(config, jax.tree.map(np.asarray, params), vocab, None, BOUNDARIES, ())


def _optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Muon for the matrices inside, Adam for head, norms and biases, as for the shipped draft."""

    def orthogonalised(params: Any) -> Any:
        def inside(path: Any, leaf: Any) -> Any:
            matrix = leaf.ndim == 2 and path[0].key != "lm_head"
            return optax.contrib.MuonDimensionNumbers() if matrix else None

        return jax.tree_util.tree_map_with_path(inside, params)

    schedule = optax.warmup_cosine_decay_schedule(0.0, recipe.rate, 10, recipe.updates)
    muon = optax.contrib.muon(
        schedule,
        consistent_rms=0.2,
        adam_b2=0.95,
        muon_weight_dimension_numbers=orthogonalised,
        adam_learning_rate=schedule,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _initial(config: DraftConfig, seed: int, kernel: jax.Array) -> dict[str, Any]:
    """Norm weights and biases far from the ones and zeros that would hide their faults."""
    aux = jnp.zeros((1, 2, config.aux_width))
    embeddings = jnp.zeros((1, 2, config.hidden_size))
    positions = jnp.zeros((1, 2), jnp.int32)
    params = Drafter(config).init(jax.random.key(seed), embeddings, aux, positions)["params"]
    rng = np.random.default_rng(seed)

    def fill(path: Any, leaf: jax.Array) -> jax.Array:
        noise = rng.normal(size=leaf.shape)
        if path[-1].key == "scale":
            return jnp.asarray(np.exp(0.5 * noise), jnp.float32)
        return jnp.asarray(0.5 * noise, jnp.float32) if path[-1].key == "bias" else leaf

    params = jax.tree_util.tree_map_with_path(fill, params)
    params["lm_head"]["kernel"] = jnp.array(kernel, copy=True)
    return params


def _endless(
    documents: list[Document], table: np.ndarray, seed: int
) -> Iterator[tuple[Features, jax.Array]]:
    rng = np.random.default_rng(seed)
    while True:
        order = [documents[i] for i in rng.permutation(len(documents))]
        for features in batches(order, slots=SLOTS, table=table, last=LAST, columns=1024):
            assert features.last is not None, "the last state was asked for"
            yield features._replace(last=None), features.last


def _rewired_step(recipe: Recipe, optimizer: Any, vocab: VocabMap) -> Any:
    """As `train_step`, for a draft whose wiring no config can say: it learns the text's tokens."""
    config = recipe.config
    wiring = Wiring.of(config)._replace(**dict(recipe.wiring))
    ids = jnp.asarray(vocab.draft_ids())

    def loss(params: Any, features: Features) -> jax.Array:
        def read(step: Any, after: Any) -> jax.Array:
            logits = project(after.head_input, params["lm_head"]["kernel"])
            due = ids[due_at(features.ids, step)]
            mask = due_at(features.answer, step) & (due >= 0)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(due, 0))
            return jnp.sum(each * mask) / jnp.maximum(jnp.sum(mask), 1)

        losses = unroll(
            config,
            params,
            features.aux,
            features.embeddings,
            steps=3,
            read=read,
            valid=features.valid,
            wiring=wiring,
        )
        return jnp.mean(losses)

    @jax.jit
    def advance(params: Any, state: Any, _: Any, features: Features, __: Any) -> Any:
        gradients = jax.grad(loss)(params, features)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, None

    return advance

"""Train the draft on the captured answers and write it in SGLang's format.

    python -m benchmarks.smollm2.train

Three unrolled steps for most of the run, five for the rest: the later steps learn from states
that are good by then. Muon for the matrices inside, Adam for the head and the norms.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import tyro
from rich.logging import RichHandler

from benchmarks.smollm2.answers import BOUNDARIES, LONGEST, Split, shard_directory
from benchmarks.smollm2.target import target_directory
from converters.drafts import LoadedDraft
from converters.files import write_json
from converters.shards import read_documents
from converters.targets import LoadedTarget, load_target
from converters.writing import save_draft
from eagle3_jax.batches import batches
from eagle3_jax.cli.manners import cache_directory
from eagle3_jax.config import AttentionConfig, DraftConfig, RopeConfig
from eagle3_jax.evaluate import evaluate
from eagle3_jax.metrics import figures
from eagle3_jax.model import Drafter
from eagle3_jax.structs import Document, Features
from eagle3_jax.train import Teacher, train_step
from eagle3_jax.vocab import VocabMap

LOG = logging.getLogger(__name__)
DRAFT_VOCABULARY = 4864
STORED = (0, 1, 2, 3)  # three aux states and the last one, side by side
_COLUMNS = 2080  # per batch: ten documents of the longest length
_BUCKET = 52
_DECAY = 0.8


class Settings(NamedTuple):
    """How long and how fast.

    Attributes:
        updates: optimiser steps.
        long_updates: how many of them, at the end, unroll five steps instead of three.
        learning_rate: the highest, after the warm-up; a cosine leads down from there.
        seed: of initialisation and order.
        look_every: optimiser steps between two looks at held-out answers.
    """

    updates: int = 900
    long_updates: int = 200
    learning_rate: float = 2e-3
    seed: int = 0
    look_every: int = 150


def draft_directory() -> Path:
    """Where the trained draft is kept."""
    return cache_directory() / "smollm2" / "draft"


def run_file() -> Path:
    """What the training run was: settings, tokens, time; a JSON object."""
    return cache_directory() / "smollm2" / "run.json"


def draft_config() -> DraftConfig:
    """The target's shapes, one layer of them; states normed on the way in and out (EAGLE-3.1)."""
    return DraftConfig(
        hidden_size=576,
        target_hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        draft_vocab_size=DRAFT_VOCABULARY,
        attention=AttentionConfig(num_heads=9, num_kv_heads=3, head_dim=64),
        rope=RopeConfig(theta=10000.0),
        fc_norm=True,
        norm_output=True,
    )


def documents_of(split: Split) -> list[Document]:
    """All documents of a split, in memory (4.6 kB a token)."""
    files = sorted(shard_directory(split).glob("*.safetensors"))
    return [document for file in files for document in read_documents(file)]


def draft_vocabulary(documents: list[Document]) -> VocabMap:
    """The most frequent ids of the training answers."""
    said = np.concatenate([document.ids[document.answer] for document in documents])
    counts = np.bincount(said, minlength=draft_config().vocab_size)
    return VocabMap.from_counts(counts, DRAFT_VOCABULARY)


def held_out_figures(
    draft: LoadedDraft, documents: list[Document], table: np.ndarray
) -> dict[str, Any]:
    """What five steps of a draft are worth on some answers, in float32.

    Args:
        draft: in any precision.
        documents: answers with the target's states.
        table: token embeddings.
    """
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draft.params)
    counts = evaluate(
        draft.config,
        params,
        params["lm_head"]["kernel"],
        draft.vocab,
        batches(documents, slots=STORED[:-1], table=table, columns=4 * LONGEST, bucket=LONGEST),
        steps=5,
    )
    return figures(counts)


def train(settings: Settings = Settings()) -> Path:  # noqa: B008  # immutable, read by the CLI
    """Train, look at held-out answers now and then, and write the draft.

    Returns:
        The draft's directory.
    """
    target = load_target(target_directory())
    documents = documents_of("train")
    held_out = documents_of("chat")
    vocab = draft_vocabulary(documents)
    table = target.params["embed_tokens"].astype(ml_dtypes.bfloat16)
    teacher = _teacher(target, vocab)
    config = draft_config()
    params = _initial(config, teacher, settings.seed)
    optimizer = _optimizer(settings)
    state = optimizer.init(params)
    short = train_step(config, optimizer, steps=3, decay=_DECAY)
    long = train_step(config, optimizer, steps=5, decay=_DECAY)
    started, seen = time.monotonic(), 0
    stream = _endless(documents, table, settings.seed)
    for update in range(settings.updates):
        features, pre_norm = next(stream)
        advance = short if update < settings.updates - settings.long_updates else long
        params, state, progress = advance(params, state, teacher, features, pre_norm)
        seen += int(features.valid.sum())
        if update % 20 == 0:
            loss, agreement = jax.device_get(progress)  # waits, so that the speed is true
            speed = seen / (time.monotonic() - started)
            told = " ".join(f"{share:.3f}" for share in agreement)
            LOG.info("update %d  loss %.3f  agreement %s  %.0f tokens/s", update, loss, told, speed)
        if (update + 1) % settings.look_every == 0 or update + 1 == settings.updates:
            draft = _as_loaded(config, params, vocab)
            _look(draft, held_out, table)
            save_draft(draft_directory(), draft, max_positions=8192, overwrite=True)
    run = {
        "loss": "soft-target cross-entropy on the draft vocabulary, step k weighted by "
        f"{_DECAY}**k; three steps, then five",
        "optimiser": "Muon for the matrices inside, Adam at a quarter of the rate for head and "
        "norms; warm-up, then a cosine to zero",
        **settings._asdict(),
        "tokens_seen": seen,
        "hours": round((time.monotonic() - started) / 3600, 2),
    }
    write_json(run_file(), run)
    return draft_directory()


def _teacher(target: LoadedTarget, vocab: VocabMap) -> Teacher:
    rows = target.params["embed_tokens"][vocab.target_ids]  # the head is tied
    return Teacher(
        jnp.asarray(target.params["norm"]["scale"]),
        jnp.asarray(rows.T),
        target.config.rms_norm_eps,
    )


def _initial(config: DraftConfig, teacher: Teacher, seed: int) -> dict[str, Any]:
    """Random inside; final norm and head start as the target's."""
    aux = jnp.zeros((1, 2, config.aux_width))
    embeddings = jnp.zeros((1, 2, config.hidden_size))
    positions = jnp.zeros((1, 2), jnp.int32)
    params = Drafter(config).init(jax.random.key(seed), embeddings, aux, positions)["params"]
    # Copies: the training step donates the parameters, and the teacher's must outlive it.
    params["norm"]["scale"] = jnp.array(teacher.norm, copy=True)
    params["lm_head"]["kernel"] = jnp.array(teacher.kernel, copy=True)
    return params


def _optimizer(settings: Settings) -> optax.GradientTransformation:

    def schedule(highest: float) -> optax.Schedule:
        warm_up = settings.updates // 25
        return optax.warmup_cosine_decay_schedule(0.0, highest, warm_up, settings.updates)

    def orthogonalised(params: Any) -> Any:
        def inside(path: Any, leaf: Any) -> Any:
            matrix = leaf.ndim == 2 and path[0].key != "lm_head"
            return optax.contrib.MuonDimensionNumbers() if matrix else None

        return jax.tree_util.tree_map_with_path(inside, params)

    muon = optax.contrib.muon(
        schedule(settings.learning_rate),
        consistent_rms=0.2,  # updates as large as Adam's, so that one learning rate serves both
        weight_decay=0.01,
        adam_b2=0.95,
        muon_weight_dimension_numbers=orthogonalised,
        adam_learning_rate=schedule(settings.learning_rate / 4),
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def _endless(
    documents: list[Document], table: np.ndarray, seed: int
) -> Iterator[tuple[Features, np.ndarray]]:
    """Batches in a new order each time round; the last state split off the aux states."""
    width = table.shape[1] * len(BOUNDARIES)
    rng = np.random.default_rng(seed)
    while True:
        order = [documents[i] for i in rng.permutation(len(documents))]
        for features in batches(order, slots=STORED, table=table, columns=_COLUMNS, bucket=_BUCKET):
            yield features._replace(aux=features.aux[..., :width]), features.aux[..., width:]


def _as_loaded(config: DraftConfig, params: dict[str, Any], vocab: VocabMap) -> LoadedDraft:
    half = jax.tree.map(lambda leaf: np.asarray(leaf.astype(jnp.bfloat16)), params)
    return LoadedDraft(config, half, vocab, None, BOUNDARIES, ())


def _look(draft: LoadedDraft, documents: list[Document], table: np.ndarray) -> None:
    joint = [step["joint"] for step in held_out_figures(draft, documents, table)["steps"]]
    told = " ".join(f"{share:.3f}" for share in joint)
    LOG.info("held out: joint %s  tokens per round %.3f", told, 1 + sum(joint))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler()])
    tyro.cli(train)

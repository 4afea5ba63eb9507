"""One draft under many readings: everything that a reading may change, as arrays of one program.

A reading is data. The shapes of a `Case` never change, so hundreds of readings cost one
compilation.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import DraftConfig, RopeConfig
from eagle3_jax.heads import in_chunks
from eagle3_jax.metrics import count
from eagle3_jax.ops import due_at, project, rms_norm, shift_left
from eagle3_jax.rollout import unroll
from eagle3_jax.structs import Features
from eagle3_jax.wiring import Wiring


class Case(NamedTuple):
    """A draft as one reading has it.

    Attributes:
        params: the draft's parameters.
        kernel: the head.
        target_ids: `[W]`, the id that the draft means by each row of its head.
        table: token embeddings; `None`: those of the features.
        scale: what embeddings are multiplied by.
        slots: `[A]`, which stored states feed the draft, in which order; the place after the last
            one is the embedding of the token itself.
        unit: each state is divided by its root mean square first.
        pairing: column t reads the state of the token this many before the one whose embedding it
            reads: 1 as EAGLE-3 has it.
        base: RoPE position of the first column.
        pre_fc_norm: as in `Wiring`, as are all that follow.
    """

    params: dict[str, Any]
    kernel: Float[Array, "D W"]
    target_ids: Int[Array, " W"]
    table: Float[Array, "V D"] | None
    scale: Float[Array, ""]
    slots: Int[Array, " A"]
    unit: Bool[Array, ""]
    pairing: Int[Array, ""]
    base: Int[Array, ""]
    pre_fc_norm: Bool[Array, ""]
    double_norm: Bool[Array, ""]
    residual: Int[Array, ""]
    final_norm: Bool[Array, ""]
    norm_output: Bool[Array, ""]
    rope: Int[Array, ""]
    advance: Int[Array, ""]


class Setting(NamedTuple):
    """What all readings of a search share; nothing of it is data.

    Attributes:
        config: what the draft holds.
        ropes: rotary embeddings that `Case.rope` chooses from.
        steps: K.
    """

    config: DraftConfig
    ropes: tuple[RopeConfig, ...]
    steps: int


class Scores(NamedTuple):
    """Per document and step, `[n,K]`.

    Attributes:
        total: columns that count.
        joint: of these, this step and all before it are right.
    """

    total: np.ndarray
    joint: np.ndarray

    def accepted(self) -> float:
        """Draft tokens that greedy verification accepts, the mean over columns."""
        return float((self.joint.sum(0) / np.maximum(self.total.sum(0), 1)).sum())

    def first(self) -> float:
        """Share of columns whose first draft token is right."""
        return float(self.joint[:, 0].sum() / max(self.total[:, 0].sum(), 1))


def score(setting: Setting, case: Case, batches: list[Features]) -> Scores:
    """Teacher-forced joint accuracy of a reading on some batches.

    A state at or after its embedding's token was computed from text that no server has yet, unless
    the states are stored late: then it may tell the token that is due. It can do so at step 0 only,
    so such a pairing is credited with no more at step 0 than what step 1 gets right after it.

    Args:
        setting: shared by all readings.
        case: the reading.
        batches: of one shape; `aux` holds all stored states in their stored order.
    """
    found = [_score(setting, case, features) for features in batches]
    kept = [np.flatnonzero(np.asarray(features.document) >= 0) for features in batches]
    total, joint = (
        np.concatenate(
            [np.asarray(scores[i])[rows] for scores, rows in zip(found, kept, strict=True)]
        )
        for i in range(2)
    )
    if int(case.pairing) < 1:
        joint = joint * _credit(total, joint)
    return Scores(total, joint)


def _credit(total: np.ndarray, joint: np.ndarray) -> float:
    """What of a reading's hits stands if step 0 is right no more often than step 1 after it."""
    hits, columns = joint.sum(0), total.sum(0)
    if len(hits) == 1 or not hits[0] or not columns[1]:
        return 1.0
    # Shares, not hits: other columns count at step 1, as those whose due tokens an answer holds.
    first, both = hits[0] / columns[0], hits[1] / columns[1]
    return min(1.0, float(both / first**2))


@functools.partial(jax.jit, static_argnums=0)
def _score(setting: Setting, case: Case, features: Features) -> tuple[Array, Array]:
    said = _said_ids(setting, case, features)
    due = jnp.stack([due_at(features.ids, step) for step in range(setting.steps)])
    ranks = (said != due).astype(jnp.int32)
    counts = count(ranks, jnp.ones(ranks.shape, bool), features.answer)
    return jnp.asarray(counts.total), jnp.asarray(counts.joint)


def said_ids(setting: Setting, case: Case, features: Features) -> np.ndarray:
    """The likeliest token `[K,n]` at each step, of the n columns that count at step 0.

    Arguments as of `score`.
    """
    counted = np.asarray(due_at(features.answer, 0))
    return np.asarray(_said_ids(setting, case, features))[:, counted]


@functools.partial(jax.jit, static_argnums=0)
def _said_ids(setting: Setting, case: Case, features: Features) -> Int[Array, "K B T"]:
    return case.target_ids[_said_rows(setting, case, features, setting.steps)]


def first_rows(setting: Setting, case: Case, features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Which row of the head is the likeliest at each column that counts, and the id that is due.

    Of step 0. Arguments as of `score`.
    """
    rows = np.asarray(_first_rows(setting, case, features))
    due, counted = (np.asarray(due_at(x, 0)) for x in (features.ids, features.answer))
    return rows[counted], due[counted]


@functools.partial(jax.jit, static_argnums=0)
def _first_rows(setting: Setting, case: Case, features: Features) -> Int[Array, "B T"]:
    return _said_rows(setting, case, features, 1)[0]


def _said_rows(setting: Setting, case: Case, features: Features, steps: int) -> Int[Array, "K B T"]:
    """The likeliest row of the head, per step and column; ties go to the lowest."""
    config = setting.config
    batch, columns = features.ids.shape
    dtype = case.kernel.dtype
    embeddings = features.embeddings if case.table is None else case.table[features.ids]
    embeddings = embeddings.astype(dtype)

    def likeliest(rows: Float[Array, "R D"]) -> Int[Array, " R"]:
        return jnp.argmax(project(rows, case.kernel), axis=-1)

    return unroll(
        config,
        case.params,
        _fed(case, features, embeddings, config.target_hidden_size),
        embeddings * case.scale.astype(dtype),
        steps=steps,
        read=lambda _, step: in_chunks(likeliest, case.kernel.shape[1], step.head_input),
        positions=jnp.broadcast_to(case.base + jnp.arange(columns), (batch, columns)),
        valid=features.valid,
        wiring=_wiring(setting, case),
    )


def _fed(
    case: Case, features: Features, embeddings: Float[Array, "B T D"], width: int
) -> Float[Array, "B T AD"]:
    """The states that feed the draft: chosen, normed and moved as the reading has it."""
    batch, columns = features.ids.shape
    states = features.aux.astype(embeddings.dtype).reshape(batch, columns, -1, width)
    if embeddings.shape[-1] == width:
        states = jnp.concatenate([states, embeddings[:, :, None]], axis=2)
    fed = states[:, :, case.slots]
    normed = rms_norm(fed, jnp.ones(width, fed.dtype), 1e-6)
    fed = jnp.where(case.unit, normed, fed)
    fed = shift_left(fed, 1 - case.pairing)
    # Moved to the right, what was rolled in on the left is not a state of this text.
    real = jnp.arange(columns) >= case.pairing - 1
    return jnp.where(real[:, None, None], fed, 0).reshape(batch, columns, -1)


def _wiring(setting: Setting, case: Case) -> Wiring:
    c = setting.config
    return Wiring(
        pre_fc_norm=case.pre_fc_norm if c.norm_before_fc or c.fc_norm else False,
        double_norm=case.double_norm,
        residual=case.residual,
        final_norm=case.final_norm if c.final_norm else False,
        norm_output=case.norm_output,
        rope=case.rope,
        advance=case.advance,
        ropes=setting.ropes,
    )

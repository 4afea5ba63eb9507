"""A server in small: draft a chain, verify it with the target, accept, go on; caches throughout.

    text      x[0] ... x[n-1]  x[n]        the target has read x[0..n-1] and chosen x[n]
    draft                      x[n]  d1 ... dK       from column n-1, which reads x[n]
    target    reads            x[n]  d1 ... dK       one pass; chooses c0 ... cK
    accept    d1 = c0, d2 = c1, ... while they agree: a of them, then the target's own token ca

Nothing is shared with `rollout` or `metrics`, whose counts this loop is there to check. What was
drafted in vain stays in both caches: the next pass overwrites it before any column sees it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.config import DraftConfig, TargetConfig
from eagle3_jax.generate import idle, insert, prefill
from eagle3_jax.layers import apply
from eagle3_jax.model import Drafter
from eagle3_jax.ops import project
from eagle3_jax.propose import draft_one, read_prefix
from eagle3_jax.record import bucket
from eagle3_jax.structs import DraftStep, Memory, TargetOutput
from eagle3_jax.target import Target, logits

Params = dict[str, Any]


class Pair(NamedTuple):
    """What a draft and its target are.

    Attributes:
        target: the target's config.
        draft: the draft's.
        boundaries: the target's states that feed the draft.
    """

    target: TargetConfig
    draft: DraftConfig
    boundaries: tuple[int, ...]


class Weights(NamedTuple):
    """The parameters of a pair.

    Attributes:
        target: the target's.
        draft: the draft's.
        table: `[V,D]`, the token embeddings that the draft reads.
        kernel: `[D,W]`, the draft's head.
        target_ids: `[W]`, the target id of each draft id.
    """

    target: Params
    draft: Params
    table: Float[Array, "V D"]
    kernel: Float[Array, "D W"]
    target_ids: Int[Array, " W"]


class Serving(NamedTuple):
    """Rows under way.

    Attributes:
        token: `[B]`, x[n]: chosen, not yet read by the target.
        length: `[B]`, n.
        target_memory: the target's keys.
        draft_memory: the draft's keys.
        state: `[B,1,D]`, what column n-1 of the draft hands to its next step.
        read: `[B,1,D]`, what the draft's head reads there.
    """

    token: Int[Array, " B"]
    length: Int[Array, " B"]
    target_memory: tuple[Memory, ...]
    draft_memory: tuple[Memory, ...]
    state: Float[Array, "B 1 D"]
    read: Float[Array, "B 1 D"]


class Round(NamedTuple):
    """What was said in one round; a margin is how far the best logit lies above the second.

    Attributes:
        drafted: `[B,K]`.
        chosen: `[B,K+1]`, the target's choice after each token that it read.
        accepted: `[B]`.
        draft_margin: `[B,K]`.
        target_margin: `[B,K+1]`.
    """

    drafted: Int[Array, "B K"]
    chosen: Int[Array, "B K1"]
    accepted: Int[Array, " B"]
    draft_margin: Float[Array, "B K"]
    target_margin: Float[Array, "B K1"]


class Served(NamedTuple):
    """An answer and what it took.

    Attributes:
        ids: `[n]`, the answer's tokens, its end token included.
        rounds: passes of the target after the prompt's.
        margin: the smallest that a round's decision hung on, of the target or the draft; infinite
            without a round.
    """

    ids: list[int]
    rounds: int
    margin: float


def serve(
    pair: Pair,
    weights: Weights,
    prompts: Sequence[np.ndarray],
    *,
    steps: int,
    max_new: int,
    end_ids: tuple[int, ...],
) -> list[Served]:
    """Answer prompts by drafting and verifying, all rows at once, each at its own pace.

    An answer ends with its end token or at `max_new`; what a round accepts beyond is dropped.

    Args:
        pair: draft and target.
        weights: theirs.
        prompts: `[P]` int32 each.
        steps: K, the draft tokens of a round.
        max_new: most tokens of an answer.
        end_ids: tokens that end an answer.

    Returns:
        The answers, in the order of the prompts.
    """
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    width = bucket(int(lengths.max()))
    ids = np.zeros((len(prompts), width), np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = prompt
    # The last round may begin before the last token and run past it. Rounded up, so that another
    # number of steps needs no other compilation.
    room = bucket(width + max_new + steps + 1)
    now = _begin(pair, weights, jnp.asarray(ids), jnp.asarray(lengths), room)
    served = [Served([int(token)], 0, float("inf")) for token in now.token]

    def going_on(one: Served) -> bool:
        return len(one.ids) < max_new and one.ids[-1] not in end_ids

    while any(live := [going_on(one) for one in served]):
        now, said = _round(pair, weights, now, jnp.asarray(live), steps)
        said = jax.tree.map(np.asarray, said)
        for row in np.flatnonzero(live):
            served[row] = _take(served[row], said, row, max_new, end_ids)
    return served


def _take(one: Served, said: Round, row: int, max_new: int, end_ids: tuple[int, ...]) -> Served:
    """An answer with the tokens of one more round."""
    accepted = int(said.accepted[row])
    fresh = [*said.drafted[row, :accepted].tolist(), int(said.chosen[row, accepted])]
    ends = [place + 1 for place, token in enumerate(fresh) if token in end_ids]
    fresh = fresh[: min([*ends, max_new - len(one.ids)])]
    # The draft's token that was turned down decided something too.
    decided = said.draft_margin[row, : accepted + 1], said.target_margin[row, : accepted + 1]
    margin = min(one.margin, *(float(part.min()) for part in decided))
    return Served(one.ids + fresh, one.rounds + 1, margin)


@partial(jax.jit, static_argnums=(0, 4))
def _begin(
    pair: Pair, weights: Weights, ids: Int[Array, "B P"], lengths: Int[Array, " B"], room: int
) -> Serving:
    """Both read the prompts, padded on the right."""
    rows, width = ids.shape
    fresh, states = prefill(pair.target, weights.target, ids, lengths, pair.boundaries)
    kind = weights.table.dtype
    waiting = idle(pair.target, rows, room, kind)
    target_memory = insert(waiting, fresh, jnp.arange(rows)).memory
    last = lengths - 1
    # Column t reads x[t+1]; the last one's is the target's first choice.
    following = jnp.roll(ids, -1, axis=1).at[jnp.arange(rows), last].set(fresh.token)
    aux = states[:, :, :-1].reshape(rows, width, -1)  # without the last state
    columns = read_prefix(
        pair.draft, weights.draft, weights.table[following], aux, room=room - width
    )
    return Serving(fresh.token, lengths, target_memory, columns.memory, *_handed_on(columns, last))


@partial(jax.jit, static_argnums=(0, 4), donate_argnums=2)
def _round(
    pair: Pair, weights: Weights, now: Serving, live: Bool[Array, " B"], steps: int
) -> tuple[Serving, Round]:
    """Draft, verify, accept; a row that is not live stays where it is."""
    drafted, draft_margin, draft_memory = _draft(pair.draft, weights, now, steps)
    fed = jnp.concatenate([now.token[:, None], drafted], axis=1)
    output: TargetOutput = apply(
        Target(pair.target), weights.target, fed, pair.boundaries, now.target_memory, now.length
    )
    chosen, target_margin = _best(logits(pair.target, weights.target, output.post_norm))
    agree = drafted == chosen[:, :-1]
    accepted = jnp.sum(jnp.cumprod(agree, axis=1), axis=1)

    # Column n+j reads the token after x[n+j], which is c[j] as far as tokens were accepted.
    rows = jnp.arange(len(fed))
    slots = now.length[:, None] + jnp.arange(steps + 1)
    columns: DraftStep = apply(
        Drafter(pair.draft),
        weights.draft,
        weights.table[chosen],
        output.states.reshape(*fed.shape, -1),
        slots,
        memory=draft_memory,
        start=now.length,
    )
    after = Serving(
        chosen[rows, accepted],
        jnp.where(live, now.length + accepted + 1, now.length),
        output.memory,
        columns.memory,
        *_handed_on(columns, accepted),
    )
    return after, Round(drafted, chosen, accepted, draft_margin, target_margin)


def _draft(
    config: DraftConfig, weights: Weights, now: Serving, steps: int
) -> tuple[Int[Array, "B K"], Float[Array, "B K"], tuple[Memory, ...]]:
    """K tokens from the last column of each row, their margins, and the memory afterwards."""
    state, read, memory = now.state, now.read, now.draft_memory
    tokens, margins = [], []
    for k in range(steps):
        if k:
            embedding = weights.table[tokens[-1]]
            slot = now.length - 1 + k
            step = draft_one(config, weights.draft, embedding, state, memory, slot)
            state, read, memory = step.state, step.head_input, step.memory
        draft_id, margin = _best(project(read, weights.kernel))
        tokens.append(weights.target_ids[draft_id])
        margins.append(margin)
    return jnp.concatenate(tokens, axis=1), jnp.concatenate(margins, axis=1), memory


def _best(scores: Float[Array, "B T V"]) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
    """The likeliest of each, the lowest id where two are, and its margin."""
    # Not `top_k`, which sorts all of a vocabulary on a CPU: dearer than the target's pass.
    ids = jnp.argmax(scores, axis=-1)
    others = jnp.where(jnp.arange(scores.shape[-1]) == ids[..., None], -jnp.inf, scores)
    return ids, jnp.max(scores, axis=-1) - jnp.max(others, axis=-1)


def _handed_on(
    step: DraftStep, column: Int[Array, " B"]
) -> tuple[Float[Array, "B 1 D"], Float[Array, "B 1 D"]]:
    """State and head input of one column of each row."""
    rows = jnp.arange(len(column))
    return step.state[rows, column][:, None], step.head_input[rows, column][:, None]

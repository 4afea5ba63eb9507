"""A target's states at every token of many texts: read as they are, or answered greedily.

    texts -> sorted by length -> [rows, length] of few static shapes -> Target -> states, row by row

Lengths are rounded up to 64, 96, 128, 192, 256, ...: at most a third of a row is padding, and a
function compiles once per length. A row does not depend on its neighbours or its padding.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from eagle3_jax.config import TargetConfig
from eagle3_jax.generate import Captured, Decoding, decode, idle, insert, prefill
from eagle3_jax.layers import apply
from eagle3_jax.structs import TargetOutput
from eagle3_jax.target import Target

Params = dict[str, Any]
_SHORTEST = 64
_FRESH = 8  # prompts that are prefilled together
_STEPS = 16  # decoding steps between two looks at which rows are done


class Recorded(NamedTuple):
    """A text that the target has read.

    Attributes:
        number: which of the texts.
        ids: `[T]` int32; a prompt's tokens and then its answer's.
        states: `[T,A+1,Dt]`, the boundaries asked for, then boundary L.
    """

    number: int
    ids: np.ndarray
    states: np.ndarray


def bucket(length: int) -> int:
    """The length that a text is padded to: 64 or 96, times a power of two."""
    size = _SHORTEST
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


def read_texts(
    config: TargetConfig,
    params: Params,
    texts: Sequence[np.ndarray],
    *,
    boundaries: tuple[int, ...],
    dtype: DTypeLike,
    columns: int = 4096,
) -> Iterator[Recorded]:
    """Run a target over texts, the longest first: what does not fit into memory fails at once.

    Args:
        config: the target's.
        params: its parameters, whose type is the precision of the pass.
        texts: `[T]` int32 each, none empty.
        boundaries: states to record beside boundary L.
        dtype: of the recorded states.
        columns: tokens of a batch, about, padding included; at least one text.

    Yields:
        The texts, each once, in the order in which they were read.
    """
    kind = np.dtype(dtype)
    waiting: tuple[list[int], Array] | None = None
    for numbers, ids in _batches(texts, columns):
        states = _read(config, params, ids, boundaries, kind)
        # The device computes this batch while the last one is copied and written.
        if waiting is not None:
            yield from _rows(texts, *waiting)
        waiting = numbers, states
    if waiting is not None:
        yield from _rows(texts, *waiting)


def answer_prompts(
    config: TargetConfig,
    params: Params,
    prompts: Sequence[np.ndarray],
    *,
    max_new: int,
    longest: int,
    end_ids: tuple[int, ...],
    boundaries: tuple[int, ...],
    dtype: DTypeLike,
    rows: int = 32,
) -> Iterator[Recorded]:
    """Answer prompts greedily and record the states at prompt and answer.

    A stream of prompts keeps every row busy: as answers end, new prompts take their rows.

    Args:
        config: the target's.
        params: its parameters, whose type is the precision of the pass and of its memory.
        prompts: `[P]` int32 each, none empty, all shorter than `longest`.
        max_new: most tokens of an answer, its end token included.
        longest: most tokens of prompt and answer.
        end_ids: tokens that end an answer.
        boundaries: states to record beside boundary L.
        dtype: of the recorded states.
        rows: prompts that are answered at a time.

    Yields:
        Prompts with their answers, each once, as they end.
    """
    kind = np.dtype(dtype)
    queue = sorted(range(len(prompts)), key=lambda number: -len(prompts[number]))
    if not queue:
        return
    room = bucket(min(len(prompts[queue[0]]) + max_new, longest))
    decoding = idle(config, rows, room, jax.tree.leaves(params)[0].dtype)
    under_way: list[_Row | None] = [None] * rows
    while queue or any(under_way):
        free = [place for place, row in enumerate(under_way) if row is None]
        while queue and free:
            count = min(_FRESH, len(free))
            fresh, queue = queue[:count], queue[count:]
            places, free = free[: len(fresh)], free[len(fresh) :]
            given = _fresh([prompts[number] for number in fresh], places, rows)
            decoding, states = _start(config, params, decoding, *given, boundaries, kind)
            captured = np.asarray(states)
            for slot, (place, number) in enumerate(zip(places, fresh, strict=True)):
                size = len(prompts[number])
                budget = min(max_new, longest - size)
                under_way[place] = _Row(number, prompts[number], captured[slot, :size], budget)
        decoding, (ids, live, states) = _extend(config, params, decoding, boundaries, end_ids, kind)
        ids, live, states, done = map(np.asarray, (ids, live, states, decoding.done))
        for place, row in enumerate(under_way):
            if row is None:
                continue
            alive = live[:, place]
            if row.extend(ids[alive, place], states[alive, place]) or done[place]:
                under_way[place] = None
                yield row.recorded()


class _Row:
    """A prompt whose answer is under way."""

    def __init__(self, number: int, ids: np.ndarray, states: np.ndarray, budget: int) -> None:
        self.number = number
        self.left = budget
        # Copies: a view would keep the whole batch alive.
        self.ids, self.states = [ids], [states.copy()]

    def extend(self, ids: np.ndarray, states: np.ndarray) -> bool:
        """Take further tokens, as many as may be; whether that was the last of them."""
        self.ids.append(ids[: self.left])
        self.states.append(states[: self.left])
        self.left -= len(self.ids[-1])
        return not self.left

    def recorded(self) -> Recorded:
        """Prompt and answer as one text."""
        return Recorded(self.number, np.concatenate(self.ids), np.concatenate(self.states))


def _batches(
    texts: Sequence[np.ndarray], columns: int
) -> Iterator[tuple[list[int], Int[Array, "B T"]]]:
    """Numbers of texts and their tokens, padded; the longest text of a batch sets its length."""
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    while order:
        length = bucket(len(texts[order[0]]))
        rows = max(columns // length, 1)
        numbers, order = order[:rows], order[rows:]
        while rows >= 4 * len(numbers):  # the last few: another shape costs less than such padding
            rows //= 4
        yield numbers, jnp.asarray(_padded([texts[number] for number in numbers], rows, length))


def _padded(texts: list[np.ndarray], rows: int, length: int) -> np.ndarray:
    ids = np.zeros((rows, length), np.int32)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
    return ids


def _rows(
    texts: Sequence[np.ndarray], numbers: list[int], states: Float[Array, "B T A1 Dt"]
) -> Iterator[Recorded]:
    whole = np.asarray(states)
    for row, number in enumerate(numbers):
        text = texts[number]
        yield Recorded(number, text, whole[row, : len(text)].copy())


def _fresh(
    prompts: list[np.ndarray], places: list[int], rows: int
) -> tuple[Int[Array, "R P"], Int[Array, " R"], Int[Array, " R"]]:
    """Prompts in one static shape, their lengths and their rows; padding goes to no row."""
    ids = _padded(prompts, _FRESH, bucket(len(prompts[0])))
    lengths = np.ones(_FRESH, np.int32)
    lengths[: len(prompts)] = [len(prompt) for prompt in prompts]
    where = np.full(_FRESH, rows, np.int32)
    where[: len(places)] = places
    return jnp.asarray(ids), jnp.asarray(lengths), jnp.asarray(where)


@partial(jax.jit, static_argnums=(0, 3, 4))
def _read(
    config: TargetConfig,
    params: Params,
    ids: Int[Array, "B T"],
    boundaries: tuple[int, ...],
    dtype: np.dtype,
) -> Float[Array, "B T A1 Dt"]:
    output: TargetOutput = apply(Target(config), params, ids, boundaries)
    return jnp.concatenate([output.states, output.pre_norm[:, :, None]], axis=2).astype(dtype)


@partial(jax.jit, static_argnums=(0, 6, 7), donate_argnums=2)
def _start(
    config: TargetConfig,
    params: Params,
    decoding: Decoding,
    ids: Int[Array, "R P"],
    lengths: Int[Array, " R"],
    places: Int[Array, " R"],
    boundaries: tuple[int, ...],
    dtype: np.dtype,
) -> tuple[Decoding, Float[Array, "R P A1 Dt"]]:
    fresh, states = prefill(config, params, ids, lengths, boundaries)
    return insert(decoding, fresh, places), states.astype(dtype)


@partial(jax.jit, static_argnums=(0, 3, 4, 5), donate_argnums=2)
def _extend(
    config: TargetConfig,
    params: Params,
    decoding: Decoding,
    boundaries: tuple[int, ...],
    end_ids: tuple[int, ...],
    dtype: np.dtype,
) -> tuple[Decoding, Captured]:
    after, captured = decode(config, params, decoding, _STEPS, boundaries, end_ids)
    return after, captured._replace(states=captured.states.astype(dtype))

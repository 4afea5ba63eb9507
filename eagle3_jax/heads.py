"""What is read of a head's logits, a few rows at a time: no [T, V] array ever exists."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.ops import project, read_at, rms_norm

_LOGITS = 1 << 23  # in one chunk: 32 MB in float32


class TargetHead(NamedTuple):
    """What of a target makes logits of its last states.

    Attributes:
        kernel: `[Dt,V]`.
        norm: `[Dt]`, the final norm's weight; `None` where the states are stored after it.
        eps: of that norm.
    """

    kernel: Float[Array, "Dt V"]
    norm: Float[Array, " Dt"] | None
    eps: float

    def read(self, last: Float[Array, "B T Dt"] | None) -> Float[Array, "B T Dt"]:
        """What the head reads of stored last states: after the final norm, in its own type.

        Raises:
            ValueError: when there are none.
        """
        if last is None:
            raise ValueError("the features hold no last state of the target, expected one")
        state = last.astype(self.kernel.dtype)
        return state if self.norm is None else rms_norm(state, self.norm, self.eps)


class Teacher(NamedTuple):
    """What the target says, where only its last state is stored.

    Attributes:
        state: `[B,T,Dt]`, the target's last state after its final norm.
        best: `[B,T]`, the id that it finds likeliest after x[t]; ties go to the lowest.
        normaliser: `[B,T]`, log of the sum of exp of its logits.
    """

    state: Float[Array, "B T Dt"]
    best: Int[Array, "B T"]
    normaliser: Float[Array, "B T"]

    def at(self, step: Int[Array, ""] | int) -> "Teacher":
        """The target at the token that each column reads at step k: its say on the one due."""
        return Teacher(*(read_at(part, step) for part in self))


def teach(state: Float[Array, "B T Dt"], kernel: Float[Array, "Dt V"]) -> Teacher:
    """Run the target's head over its stored states once."""

    def read(rows: Float[Array, "R Dt"]) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
        scores = project(rows, kernel)
        return jnp.argmax(scores, axis=-1), jax.nn.logsumexp(scores, axis=-1)

    best, normaliser = in_chunks(read, kernel.shape[1], state)
    return Teacher(state, best, normaliser)


def rank(
    head_input: Float[Array, "B T D"], kernel: Float[Array, "D W"], due: Int[Array, "B T"]
) -> Int[Array, "B T"]:
    """How many draft ids are likelier than the due one; among equals the lower id comes first.

    Args:
        head_input: what the head reads.
        kernel: the head.
        due: draft id of the due token; what is below 0 gets a rank that means nothing.
    """

    def read(rows: Float[Array, "R D"], ids: Int[Array, " R"]) -> Int[Array, " R"]:
        return _rank(project(rows, kernel), ids)

    return in_chunks(read, kernel.shape[1], head_input, due)


def rank_and_agree(
    head_input: Float[Array, "B T D"],
    kernel: Float[Array, "D W"],
    due: Int[Array, "B T"],
    teacher: Teacher,
    spoken: Float[Array, "Dt W"],
) -> tuple[Int[Array, "B T"], Float[Array, "B T"]]:
    """`rank`, and the sum of min(p, q) of the target's and the draft's distributions.

    Args:
        head_input: what the draft's head reads.
        kernel: the draft's head.
        due: draft id of the due token.
        teacher: the target at the token that the draft reads; its `best` is not used.
        spoken: the columns of the target's head that the draft can say.
    """

    def read(
        rows: Float[Array, "R D"],
        ids: Int[Array, " R"],
        theirs: Float[Array, "R Dt"],
        normaliser: Float[Array, " R"],
    ) -> tuple[Int[Array, " R"], Float[Array, " R"]]:
        scores = project(rows, kernel)
        target = jnp.exp(project(theirs, spoken) - normaliser[:, None])
        shared = jnp.minimum(jax.nn.softmax(scores, axis=-1), target)
        return _rank(scores, ids), jnp.sum(shared, axis=-1)

    parts = (head_input, due, teacher.state, teacher.normaliser)
    return in_chunks(read, kernel.shape[1], *parts)


def _rank(scores: Float[Array, "R W"], ids: Int[Array, " R"]) -> Int[Array, " R"]:
    """How many ids are likelier; a row with a NaN, which is never larger, has all before it."""
    mine = jnp.take_along_axis(scores, jnp.maximum(ids, 0)[:, None], axis=-1)
    earlier: Bool[Array, "R W"] = jnp.arange(scores.shape[-1]) < ids[:, None]
    broken = jnp.isnan(scores).any(axis=-1, keepdims=True)
    ahead = (scores > mine) | ((scores == mine) & earlier) | broken
    return jnp.sum(ahead, axis=-1, dtype=jnp.int32)


def in_chunks(function: Callable[..., Any], width: int, *arrays: Array) -> Any:
    """Call a function of rows on a few rows at a time.

    Args:
        function: takes `[R, ...]` of each array, gives arrays `[R, ...]`.
        width: logits that it makes of one row.
        arrays: `[B,T,...]` each.

    Returns:
        What it gives, as `[B,T,...]`.
    """
    batch, columns = arrays[0].shape[:2]
    rows = batch * columns
    size = min(max(_LOGITS // width, 8), rows)
    chunks = -(-rows // size)

    def cut(x: Array) -> Array:
        flat = x.reshape(rows, *x.shape[2:])
        filled = jnp.pad(flat, [(0, chunks * size - rows)] + [(0, 0)] * (flat.ndim - 1))
        return filled.reshape(chunks, size, *flat.shape[1:])

    found = jax.lax.map(lambda parts: function(*parts), tuple(map(cut, arrays)))
    return jax.tree.map(
        lambda x: x.reshape(chunks * size, *x.shape[2:])[:rows].reshape(
            batch, columns, *x.shape[2:]
        ),
        found,
    )

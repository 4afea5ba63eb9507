"""Arrays that travel together: NamedTuples, passed in and handed out, never mutated.

Letters: B batch, T query columns, S context length, J branch slots, N query heads, K kv heads,
G = N/K, H head dim, Hv value head dim (H itself in grouped-query attention), D draft width,
Dt target width, A aux states, F ffn, V target vocab, W draft vocab, L target layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int


class KV(NamedTuple):
    """Keys (rotated) and values of one layer: context `[B,K,S,H]`, branch `[B,K,T,J,H]`.

    Values are Hv wide. Heads stand before slots, so that the products of attention need no
    transposed copy.
    """

    keys: Float[Array, "B K *slots H"]
    values: Float[Array, "B K *slots Hv"]


class Memory(NamedTuple):
    """What one layer remembers: context keys (step 0) and branch keys (each column's own steps)."""

    context: KV
    branch: KV | None = None


class View(NamedTuple):
    """Where new keys go and which keys a query column sees: those not after its own slot.

    Attributes:
        slots: `[B,T]`, the context slot of each column; `None` in a whole text, where column t
            stands at slot t.
        window: a query sees only keys less than this many positions back; `None` for all.
        lead: how many steps a query is ahead of its column (step k), for the window.
        key_valid: `[B,S]`, false on context slots that hold padding; `None` where none does.
        start: `[B]`, the context slot of each row's first new key; `None` when the new keys are
            the whole context.
        slot: the branch slot that the new keys fill; `None` when they extend the context.
    """

    slots: Int[Array, "B T"] | None = None
    window: int | None = None
    lead: Int[Array, ""] | int = 0
    key_valid: Bool[Array, "B S"] | None = None
    start: Int[Array, " B"] | None = None
    slot: Int[Array, ""] | None = None


class Rotation(NamedTuple):
    """Cosines and sines of RoPE angles, magnitude included; R is half the rotated dimensions."""

    cos: Float[Array, "B T R"]
    sin: Float[Array, "B T R"]


class DraftStep(NamedTuple):
    """One draft step over T columns.

    Attributes:
        state: `[B,T,D]`, what the next step is fed (normed if `norm_output`).
        head_input: `[B,T,D]`, what the head reads.
        memory: one `Memory` per draft layer.
    """

    state: Float[Array, "B T D"]
    head_input: Float[Array, "B T D"]
    memory: tuple[Memory, ...]


class TargetOutput(NamedTuple):
    """A target's forward pass.

    Attributes:
        states: `[B,T,A,Dt]`, the residual stream at the boundaries that were asked for.
        pre_norm: `[B,T,Dt]`, boundary L: the last state before the final norm.
        post_norm: `[B,T,Dt]`, the last state after it, which the head reads.
        memory: one `Memory` per layer.
    """

    states: Float[Array, "B T A Dt"]
    pre_norm: Float[Array, "B T Dt"]
    post_norm: Float[Array, "B T Dt"]
    memory: tuple[Memory, ...]


class Document(NamedTuple):
    """One text with the target's states, as a shard stores them: NumPy arrays on the host.

    Attributes:
        ids: `[T]` int32, the text.
        answer: `[T]` bool, true on the answer's tokens (the loss mask).
        states: `[T,A+1,Dt]`, the stored states in their stored order.
        embeddings: `[T,D]`, boundary 0 (the embedding of each token), or `None`.
    """

    ids: np.ndarray
    answer: np.ndarray
    states: np.ndarray
    embeddings: np.ndarray | None


class Features(NamedTuple):
    """Documents as a draft reads them, padded on the right to one length.

    Attributes:
        ids: `[B,T]`, the text; column t holds token x[t].
        aux: `[B,T,A*Dt]`, the target's states at x[t], ascending boundaries.
        embeddings: `[B,T,D]`, the embedding of x[t].
        answer: `[B,T]`, true where x[t] is a token of the answer; false on padding.
        valid: `[B,T]`, false on padding.
        document: `[B]`, the number of each row's document; -1 where a row is padding.
        last: `[B,T,Dt]`, the target's last state at x[t], where it was asked for.
    """

    ids: Int[Array, "B T"]
    aux: Float[Array, "B T AD"]
    embeddings: Float[Array, "B T D"]
    answer: Bool[Array, "B T"]
    valid: Bool[Array, "B T"]
    document: Int[Array, " B"]
    last: Float[Array, "B T Dt"] | None = None


def find_fault(document: Document, vocab_size: int | None = None) -> str | None:
    """The first thing that makes a document no text with finite states, or `None`.

    Args:
        document: of any shard, or made in memory.
        vocab_size: V of the target, where it is known.

    Returns:
        What was found and what was expected, to be put after the document's name: lengths that
        differ, no token, ids that are no integers or outside the vocabulary, states without three
        axes, values that are not finite with their slot and count.
    """
    lengths = [len(array) for array in document if array is not None]
    if len(set(lengths)) > 1:
        return f"has arrays of {lengths} rows, expected one length"
    ids, states = document.ids, document.states
    if not len(ids):
        return "holds no token, expected some"
    if ids.dtype.kind not in "iu":
        return f"holds token ids of type {ids.dtype}, expected integers"
    if vocab_size is not None and (ids.min() < 0 or ids.max() >= vocab_size):
        return f"holds token ids {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}"
    if states.ndim != 3:
        return f"holds states of shape {list(states.shape)}, expected [tokens, slots, width]"
    held = [("embeddings", document.embeddings)] if document.embeddings is not None else []
    if not np.isfinite(states).all():  # slot by slot only where one is broken: that takes longer
        held = [(f"slot {slot}", states[:, slot]) for slot in range(states.shape[1])] + held
    broken = [
        f"{count} in {name}" for name, array in held if (count := int((~np.isfinite(array)).sum()))
    ]
    if broken:
        return f"holds NaN or infinity, {', '.join(broken)}, expected finite values"
    return None

"""Layouts of one document a file: which tensors hold its states.

Wide     aux states side by side in one tensor, the last state in another
Stacked  all states in one tensor [T,n,Dt]
Listed   a list of states, or one tensor [n,T,Dt]
"""

from collections.abc import Iterator
from dataclasses import dataclass

from converters.shards.arrays import (
    drop_axis,
    one_state,
    sequence,
    shape_of,
    split,
    tensor,
    tokens_first,
    without_batch,
)
from converters.shards.base import Content, Hints, Sample, Shape
from converters.tensors import Stored
from eagle3_jax.errors import InputError

IDS, MASK = "input_ids", "loss_mask"


@dataclass(frozen=True)
class Wide:
    """Aux states `[T,A*Dt]` and the last state `[T,Dt]`.

    Attributes:
        aux: the key of the aux states.
        last: the key of the last state, whose width is Dt.
        embeddings: the key of boundary 0, for files that have it.
    """

    aux: str
    last: str
    embeddings: str | None = None

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`."""
        return shape_of(content, self._sample(content, hints))

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`."""
        yield self._sample(content, hints)

    def _sample(self, content: Content, hints: Hints) -> Sample:
        aux, last = (
            without_batch(content, tensor(content, key), key, "T", "width")
            for key in (self.aux, self.last)
        )
        width = last.shape[1]
        require_width(content, self.last, width, hints)
        if not width or not aux.shape[1] or aux.shape[1] % width:
            raise InputError(
                f"{content.path}: {self.aux} has width {aux.shape[1]} and {self.last} {width}, "
                "expected a multiple of it: aux states side by side, and one last state"
            )
        embeddings = None
        if self.embeddings is not None and self.embeddings in content.values:
            embeddings = without_batch(
                content, tensor(content, self.embeddings), self.embeddings, "T", "width"
            )
        states = (split(aux, width), one_state(last))
        return Sample(sequence(content, IDS), _mask(content), states, embeddings)


@dataclass(frozen=True)
class Stacked:
    """States `[T,n,Dt]` with their tokens, as vLLM extracts them: without a loss mask."""

    states: str = "hidden_states"
    ids: str = "token_ids"

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`."""
        shape = shape_of(content, self.sample(content))
        require_width(content, self.states, shape.width, hints)
        return shape

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`."""
        yield self.sample(content)

    def sample(self, content: Content) -> Sample:
        """The one document of the file, all of whose tokens count."""
        states = tensor(content, self.states)
        if len(states.shape) != 3 or not states.shape[1]:
            raise InputError(
                f"{content.path}: {self.states} has shape {list(states.shape)}, expected "
                "[T, states, width]"
            )
        return Sample(sequence(content, self.ids), None, (states,))


@dataclass(frozen=True)
class Listed:
    """States in a list, each `[T,Dt]`; stacked into one tensor `[n,T,Dt]`, too."""

    states: str = "hidden_states"

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`."""
        shape = shape_of(content, self._sample(content))
        require_width(content, self.states, shape.width, hints)
        return shape

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`."""
        yield self._sample(content)

    def _sample(self, content: Content) -> Sample:
        ids = sequence(content, IDS)
        value = content.values[self.states]
        if isinstance(value, Stored):
            states: tuple[Stored, ...] = (self._stack(content, value, ids.shape[0]),)
        else:
            states = self._list(content, value)
        return Sample(ids, _mask(content), states)

    def _list(self, content: Content, value: object) -> tuple[Stored, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise InputError(
                f"{content.path}: {self.states} is {type(value).__name__} {value!r}, expected a "
                "list of states"
            )
        states = []
        for index, state in enumerate(value):
            name = f"{self.states}.{index}"
            if not isinstance(state, Stored):
                raise InputError(
                    f"{content.path}: {name} is a {type(state).__name__}, expected a tensor"
                )
            states.append(one_state(without_batch(content, state, name, "T", "width")))
        return tuple(states)

    def _stack(self, content: Content, stack: Stored, tokens: int) -> Stored:
        """A stack `[n,T,Dt]` or `[n,1,T,Dt]`, or `[T,n,Dt]`: T tells."""
        shape = list(stack.shape)
        if len(shape) == 4 and shape[1] == 1:
            stack = drop_axis(stack, 1)
        if len(stack.shape) == 3 and stack.shape[0] != stack.shape[1]:
            if stack.shape[1] == tokens:
                return tokens_first(stack)
            if stack.shape[0] == tokens:
                return stack
        raise InputError(
            f"{content.path}: {self.states} has shape {shape}, expected [states, {tokens}, width] "
            f"for {tokens} tokens, with as many states as tokens only in a list"
        )


def require_width(content: Content, name: str, width: int, hints: Hints) -> None:
    """Refuse states of another width than the draft's target has.

    Raises:
        InputError: when it is known, and another.
    """
    if hints.target_width not in (None, width):
        raise InputError(
            f"{content.path}: {name} has states of width {width}, expected {hints.target_width}, "
            "the width of the draft's target"
        )


def _mask(content: Content) -> Stored | None:
    return sequence(content, MASK) if MASK in content.values else None

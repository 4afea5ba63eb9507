"""What a shard layout is: one framework's way of writing documents, as data and two functions."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from converters.tensors import Stored, Tensor
from eagle3_jax.errors import InputError

OWN = "eagle3-jax"  # the name of the project's own layout
LastState = Literal["pre_norm", "post_norm", "absent"]


class LayoutError(InputError):
    """What a shard's layout leaves open: a question to the user, not one file's fault."""


class ShardInfo(NamedTuple):
    """What a shard's stored states are.

    Attributes:
        boundaries: the boundary of each stored state, the last one L; `None` where the files do
            not say.
        last_state: whether the last stored state is the target's last state before or after its
            final norm, or absent: all stored states are aux states. `None` where files of this
            layout do not say.
        target: the target's name, where the files say it.
        notes: what a reader should know, or what the writer wanted to remember, JSON-able.
        layout: its name.
    """

    boundaries: tuple[int, ...] | None
    last_state: LastState | None
    target: str | None
    notes: dict[str, object]
    layout: str = OWN

    @property
    def residual(self) -> tuple[int, ...] | None:
        """Boundaries of the stored states, without a last one after the final norm.

        That one is not the residual stream that a boundary means, and no config can ask for it.
        """
        if self.boundaries is None or self.last_state != "post_norm":
            return self.boundaries
        return self.boundaries[:-1]


class ShardFile(NamedTuple):
    """A shard file by its header.

    Attributes:
        path: the file.
        layout: the name of its layout.
        documents: how many it holds.
        states: how many states are stored of each token, the last state included.
        width: Dt, the width of a stored state.
        dtype: their type.
        embedding_width: the width of the token embeddings, or `None` where they are not stored.
        info: what the states are.
    """

    path: Path
    layout: str
    documents: int
    states: int
    width: int
    dtype: np.dtype
    embedding_width: int | None
    info: ShardInfo


class ShardSet(NamedTuple):
    """Shard files of one layout and one capture.

    Attributes:
        files: one or more, in the order given.
        info: what the states of all of them are; notes are the first file's.
        groups: of each path given, the files that it means; a file that two of them mean is with
            the first.
        broken: what is wrong with each file that could not be opened, its name included; such a
            file is in its group, and not among `files`.
    """

    files: tuple[ShardFile, ...]
    info: ShardInfo
    groups: dict[Path, tuple[Path, ...]]
    broken: tuple[str, ...]


class Content(NamedTuple):
    """An open file.

    Attributes:
        path: as the user named it; its tensors lie elsewhere where it is in gzip.
        values: by key; tensors are unread.
        metadata: the text of a safetensors header.
    """

    path: Path
    values: dict[str, Any]
    metadata: dict[str, str]


class Hints(NamedTuple):
    """What the draft says of the states that it reads.

    Attributes:
        num_aux: A, how many aux states.
        target_width: Dt, the width of each.
    """

    num_aux: int | None = None
    target_width: int | None = None


class Shape(NamedTuple):
    """What the header says of all documents of a file; as in `ShardFile`."""

    documents: int
    states: int
    width: int
    dtype: np.dtype
    embedding_width: int | None


class Sample(NamedTuple):
    """Where the arrays of one document lie.

    Attributes:
        ids: `[T]`.
        answer: `[T]`; `None` where no loss mask is stored.
        states: `[T,n,Dt]` each, laid side by side.
        embeddings: `[T,D]` or `None`.
    """

    ids: Tensor
    answer: Tensor | None
    states: tuple[Stored, ...]
    embeddings: Tensor | None = None


class Reading(Protocol):
    """How the documents of a file are found among its tensors."""

    def shape(self, content: Content, hints: Hints) -> Shape:
        """Check a file by its header.

        Raises:
            InputError: when a tensor is not what this layout has under its name.
        """

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """The documents of a file that `shape` has checked."""


Notes = dict[str, object]


class Layout(NamedTuple):
    """How one framework lays out its shards.

    Attributes:
        name: as users say it, in `--layout`.
        title: whose it is, in words.
        source: what its rules were read from.
        keys: a file of this layout has all of these.
        reading: how its documents are found.
        last_state: as in `ShardInfo`, for all files of this layout.
        never: a file of this layout has none of these.
        told: what must hold besides, for keys that another layout has too.
        info: what the states are where a file or one beside it says more than the layout does.
        mask_elsewhere: its loss mask is in another file.
        besides: keys that it may have, and that tell of packed documents in other layouts.
        notes: what a reader of `ShardInfo` should know.
    """

    name: str
    title: str
    source: str
    keys: frozenset[str]
    reading: Reading
    last_state: LastState | None
    never: frozenset[str] = frozenset()
    told: Callable[[Content, Hints], bool] | None = None
    info: Callable[[Content, ShardInfo], ShardInfo] | None = None
    mask_elsewhere: bool = False
    besides: frozenset[str] = frozenset()
    notes: Notes = {}  # noqa: RUF012  # read only

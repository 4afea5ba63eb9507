"""The draft vocabulary: which target ids the draft can say, in draft order."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class VocabMap:
    """Draft ids <-> target ids.

    Attributes:
        target_ids: `[W]` int32, the target id of each draft id.
        in_draft: `[V]` bool, whether the draft can say a target id.
    """

    target_ids: np.ndarray
    in_draft: np.ndarray

    def __post_init__(self) -> None:
        """Refuse ids outside the target's vocabulary or said twice."""
        ids, size = self.target_ids, len(self.in_draft)
        if len(ids) and not (ids.min() >= 0 and ids.max() < size):
            raise ValueError(
                f"draft vocabulary holds ids {ids.min()} to {ids.max()}, expected 0 to {size - 1}"
            )
        if len(np.unique(ids)) != len(ids):
            raise ValueError(
                f"draft vocabulary of {len(ids)} holds {len(np.unique(ids))} distinct ids"
            )
        if not (self.in_draft[ids].all() and self.in_draft.sum() == len(ids)):
            raise ValueError(
                f"in_draft marks {int(self.in_draft.sum())} ids that are not the {len(ids)} "
                "target_ids"
            )

    @classmethod
    def from_ids(cls, target_ids: np.ndarray, vocab_size: int) -> "VocabMap":
        """The map of some target ids, in draft order.

        Args:
            target_ids: `[W]`, distinct, below `vocab_size`.
            vocab_size: V.

        Raises:
            ValueError: when an id is repeated or out of range.
        """
        ids = np.asarray(target_ids)
        in_draft = np.zeros(vocab_size, np.bool_)
        in_draft[ids[(ids >= 0) & (ids < vocab_size)]] = True
        found = cls(ids, in_draft)  # in their own type: in a narrower one they could wrap
        return replace(found, target_ids=ids.astype(np.int32))

    @classmethod
    def identity(cls, vocab_size: int) -> "VocabMap":
        """A draft that can say everything."""
        return cls.from_ids(np.arange(vocab_size), vocab_size)

    @classmethod
    def from_counts(cls, counts: np.ndarray, size: int) -> "VocabMap":
        """The `size` most frequent ids; among equals, and to fill up, the lowest.

        Args:
            counts: `[V]`, how often the training text holds each id.
            size: W.

        Raises:
            ValueError: when more ids are wanted than there are.
        """
        if not 0 < size <= len(counts):
            raise ValueError(f"draft vocabulary size is {size}, expected 1 to {len(counts)}")
        by_frequency = np.argsort(-np.asarray(counts, np.int64), kind="stable")
        return cls.from_ids(np.sort(by_frequency[:size]), len(counts))

    def draft_ids(self) -> np.ndarray:
        """`[V]` int32: the draft id of each target id, -1 where the draft cannot say it."""
        ids = np.full(len(self.in_draft), -1, np.int32)
        ids[self.target_ids] = np.arange(len(self.target_ids), dtype=np.int32)
        return ids

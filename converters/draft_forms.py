"""A draft in canonical form, whoever wrote it: opened (tensors unread) and loaded (in memory)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from converters.dialects.base import Dialect
from converters.ledger import Setting
from converters.names import EMBEDDING
from converters.shapes import expected_shapes
from converters.tensors import Stored, Tensor
from converters.trees import require_shapes, to_tree
from converters.vocabs import Maps
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap


@dataclass(frozen=True)
class Reading:
    """How a draft is to be read, where its files do not say or say it wrongly.

    Attributes:
        dialect: whose rules hold; by default the files tell.
        settings: values that win over the files (`--set`).
        boundaries: the capture.
        target_layers: L, for the default capture and the range of layer ids.
        mapping: the draft vocabulary.
        allowed: unknown config keys and tensors that are to be passed over.
    """

    dialect: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    boundaries: tuple[int, ...] | None = None
    target_layers: int | None = None
    mapping: Maps | None = None
    allowed: frozenset[str] = frozenset()


class OpenDraft(NamedTuple):
    """A draft by its headers.

    Attributes:
        config: dimensions and knobs.
        tensors: its parameters under canonical names, `[out, in]`, unread.
        vocab: the draft vocabulary.
        embeddings: `[V,D]` where the file holds a table, else `None`: the target's are due.
        boundaries: the capture, else `None`.
        dialect: whose it is.
        evidence: what tells so.
        sources: where each resolved value came from.
        notes: what was corrected, rebuilt or assumed, a sentence each.
        unread: tensors of the file that the draft goes without, with the reasons.
        maps: d2t and t2d as the file has them.
        max_positions: the longest context, where the config says.
        target_name: the target's name, where the config says.
        path: where it was opened; `None` for one that was made in memory.
    """

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    vocab: VocabMap
    embeddings: Tensor | None
    boundaries: tuple[int, ...] | None
    dialect: Dialect
    evidence: tuple[str, ...] = ()
    sources: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    unread: tuple[tuple[Tensor, str], ...] = ()
    maps: Mapping[str, Tensor] = {}
    max_positions: int | None = None
    target_name: str | None = None
    path: Path | None = None


class LoadedDraft(NamedTuple):
    """A draft in memory.

    Attributes:
        config: dimensions and knobs.
        params: the tree that `Drafter(config)` applies, NumPy arrays of the types on disk.
        vocab: the draft vocabulary.
        embeddings: `[V,D]` where the file holds a table, else `None`: the target's are due.
        boundaries: the capture, else `None`.
        notes: what was corrected, rebuilt or assumed, a sentence each.
        path: where it was read; `None` for one that was made in memory.
        capture_source: what says the boundaries.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    embeddings: np.ndarray | None
    boundaries: tuple[int, ...] | None
    notes: tuple[str, ...]
    path: Path | None = None
    capture_source: str = "the draft's config"


def read_whole(draft: OpenDraft) -> LoadedDraft:
    """An open draft, in memory."""
    tensors = {name: in_memory(tensor) for name, tensor in draft.tensors.items()}
    embeddings = None if draft.embeddings is None else in_memory(draft.embeddings)
    loaded = LoadedDraft(
        draft.config, to_tree(tensors), draft.vocab, embeddings, draft.boundaries, draft.notes
    )
    source = draft.sources.get("boundaries", loaded.capture_source)
    return loaded._replace(path=draft.path, capture_source=source)


def in_memory(tensor: Tensor) -> np.ndarray:
    """A tensor, read if it is on disk."""
    return tensor.read() if isinstance(tensor, Stored) else tensor


def require_fitting(draft: OpenDraft, where: str) -> None:
    """Refuse a draft whose parts contradict each other, before it is on disk.

    Raises:
        InputError: at the first part that does not fit.
    """
    config, vocab = draft.config, draft.vocab
    require_draft_shapes(config, draft.tensors, draft.embeddings, where)
    found = (len(vocab.target_ids), len(vocab.in_draft))
    expected = (config.draft_vocab_size, config.vocab_size)
    if found != expected:
        raise InputError(
            f"{where}: the vocabulary map has {found[0]} of {found[1]} ids, expected "
            f"{expected[0]} of {expected[1]}"
        )
    if draft.boundaries is not None and len(draft.boundaries) != config.num_aux:
        raise InputError(
            f"{where}: boundaries are {draft.boundaries}, expected {config.num_aux} of them"
        )
    if draft.embeddings is None and config.target_hidden_size != config.hidden_size:
        raise InputError(
            f"{where}: found no token embeddings, expected the draft's own: the target's have "
            f"width {config.target_hidden_size}, the draft {config.hidden_size}"
        )


def require_draft_shapes(
    config: DraftConfig,
    tensors: Mapping[str, Tensor],
    embeddings: Tensor | None,
    where: str,
    origins: Mapping[str, str] | None = None,
) -> None:
    """Refuse tensors that are missing, left over or of another shape than the config's.

    Args:
        config: the draft's.
        tensors: its parameters, under canonical names.
        embeddings: its table, where it has one.
        where: its place, for messages.
        origins: the file's name of each canonical one.

    Raises:
        InputError: at the first one.
    """
    expected = expected_shapes(config)
    if embeddings is not None:
        tensors = {**tensors, EMBEDDING: embeddings}
        expected[EMBEDDING] = [config.vocab_size, config.hidden_size]
    require_shapes(tensors, expected, where, origins)

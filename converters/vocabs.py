"""d2t and t2d on disk <-> `VocabMap`.

    d2t [W] integer   target id minus draft id, an offset
    t2d [V] bool      whether the draft can say a target id

Either is rebuilt from the other; where both are there, each is checked by the other. A d2t that
holds the target ids themselves is told and read as such wherever offsets cannot be meant.
"""

from typing import NamedTuple

import numpy as np

from converters.ledger import Ledger
from eagle3_jax.errors import InputError
from eagle3_jax.vocab import VocabMap

_IN_FILE = "tensors d2t and t2d"


class Maps(NamedTuple):
    """What a file says of the draft vocabulary.

    Attributes:
        offsets: d2t as int64, or `None`.
        mask: t2d as bool, or `None`.
        source: where they were found.
        absolute: whether d2t is known to hold target ids; `None` where it is to be told.
    """

    offsets: np.ndarray | None
    mask: np.ndarray | None
    source: str = _IN_FILE
    absolute: bool | None = None


def read_maps(d2t: np.ndarray | None, t2d: np.ndarray | None, where: str) -> Maps:
    """Check types and axes of the two tensors.

    Raises:
        InputError: when one of them is no offset or no mask.
    """
    if d2t is not None and (d2t.ndim != 1 or d2t.dtype not in (np.int32, np.int64)):
        raise InputError(
            f"{where}: d2t has type {d2t.dtype} and shape {list(d2t.shape)}, expected int64 or "
            "int32 and one axis"
        )
    if t2d is not None and (t2d.ndim != 1 or t2d.dtype not in (np.bool_, np.uint8)):
        raise InputError(
            f"{where}: t2d has type {t2d.dtype} and shape {list(t2d.shape)}, expected bool or "
            "uint8 and one axis"
        )
    if t2d is not None and t2d.max(initial=0) > 1:
        raise InputError(f"{where}: t2d holds {t2d.max()}, expected zeros and ones")
    return Maps(
        None if d2t is None else d2t.astype(np.int64),
        None if t2d is None else t2d.astype(np.bool_),
    )


def read_vocab(maps: Maps, size: int, vocab_size: int, where: str, ledger: Ledger) -> VocabMap:
    """The draft vocabulary that a file means.

    Args:
        maps: what the file, or the user, says.
        size: W, rows of the head.
        vocab_size: V.
        where: the file or directory, for messages.
        ledger: takes the source, and what was rebuilt or looks wrong.

    Raises:
        InputError: when the vocabulary is missing, contradicts itself, or has another size.
    """
    if maps.source != _IN_FILE:
        where = maps.source
    if maps.offsets is None and maps.mask is None:
        if size != vocab_size:
            raise InputError(
                f"{where}: a draft vocabulary of {size} of {vocab_size} ids has neither d2t nor "
                "t2d, expected one of them (--vocab-mapping FILE gives it)"
            )
        return ledger.settle("vocabulary", VocabMap.identity(vocab_size), "the whole vocabulary")
    if maps.mask is not None and len(maps.mask) != vocab_size:
        raise InputError(
            f"{where}: t2d has {len(maps.mask)} entries, expected {vocab_size}, the vocabulary"
        )
    ids = _target_ids(maps, vocab_size, where, ledger)
    if len(ids) != size:
        raise InputError(
            f"{where}: the vocabulary map has {len(ids)} ids, expected {size}, the rows of the head"
        )
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise InputError(
            f"{where}: d2t means ids {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}"
        )
    if size < vocab_size and np.array_equal(ids, np.arange(size)):
        ledger.notes.append(f"d2t means the first {size} ids, almost surely a lost mapping")
    try:
        vocab = VocabMap.from_ids(ids, vocab_size)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return ledger.settle("vocabulary", vocab, maps.source)


def write_vocab(vocab: VocabMap) -> dict[str, np.ndarray]:
    """d2t as int64 offsets and t2d as a mask: the types that every reader takes."""
    ids = vocab.target_ids.astype(np.int64)
    return {"d2t": ids - np.arange(len(ids)), "t2d": vocab.in_draft}


def _target_ids(maps: Maps, vocab_size: int, where: str, ledger: Ledger) -> np.ndarray:
    stored, mask = maps.offsets, maps.mask
    if stored is None:
        assert mask is not None
        ledger.notes.append("no d2t: rebuilt from t2d")
        return np.flatnonzero(mask)
    ids = stored if _absolute(maps, vocab_size, ledger) else stored + np.arange(len(stored))
    if mask is None:
        ledger.notes.append("no t2d: rebuilt from d2t")
        return ids
    marked = np.flatnonzero(mask)
    if not np.array_equal(marked, np.sort(ids)):
        raise InputError(
            f"{where}: d2t means {len(ids)} ids that are not the {len(marked)} that t2d marks, "
            "expected the same ids"
        )
    return ids


def _absolute(maps: Maps, vocab_size: int, ledger: Ledger) -> bool:
    """Whether d2t holds target ids: as the user says, as t2d proves, or as it has to be."""
    stored, mask, _, known = maps
    assert stored is not None, "asked of a map that is there"
    asked = ledger.settings.get("d2t")
    if asked is not None:
        return asked == "absolute"
    if known is not None:
        return known
    ids = stored + np.arange(len(stored))
    if mask is not None:
        marked = np.flatnonzero(mask)
        proved = np.array_equal(marked, np.sort(stored))
        absolute = proved and not np.array_equal(marked, np.sort(ids))
        why = "as t2d proves"
    else:
        fits = _could_be_ids(stored, vocab_size)
        absolute = fits and bool(ids.max(initial=0) >= vocab_size)
        why = "since as offsets some would lie outside the vocabulary"
        if fits and not absolute:
            ledger.notes.append(
                "d2t is read as offsets, but it could be target ids as well (--set d2t=absolute)"
            )
    if absolute:
        ledger.notes.append(
            f"d2t holds target ids ({stored.min()} to {stored.max()}) instead of offsets, {why}: "
            "read as such"
        )
    return absolute


def _could_be_ids(stored: np.ndarray, vocab_size: int) -> bool:
    """Whether every number is another id; offsets repeat wherever two ids are neighbours."""
    return (
        len(stored) > 1
        and len(np.unique(stored)) == len(stored)
        and bool(stored.min() >= 0 and stored.max() < vocab_size)
    )

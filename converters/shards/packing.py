"""Packed documents: several in one row, which trainers make of batches and no writer of shards."""

from collections.abc import Collection
from pathlib import Path

from converters.shards.base import LayoutError

# NeMo AutoModel's seq_lens and doc_remaining, speculators' document_ids, flash attention's
# cu_seqlens, and positions that begin anew with each document.
_SIGNS = frozenset(
    {
        "cu_seq_lens",
        "cu_seqlens",
        "doc_ids",
        "doc_remaining",
        "document_ids",
        "position_ids",
        "seq_lens",
        "seq_lens_padded",
        "sequence_ids",
    }
)


def require_apart(path: Path, names: Collection[str]) -> None:
    """Refuse packed documents by the tensors or columns that come with them.

    Read as one document, each would draft from the end of the one before it.

    Args:
        path: names the file.
        names: of its tensors or columns.

    Raises:
        LayoutError: when one of them tells of packing.
    """
    signs = sorted(_SIGNS & set(names))
    if signs:
        raise LayoutError(
            f"{path}: found {', '.join(signs)}, which packed documents have, expected each "
            "document by itself"
        )

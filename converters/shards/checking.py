"""What is wrong with a document, in words."""

import numpy as np

from eagle3_jax.structs import Document


def check_document(document: Document, vocab_size: int | None = None) -> str | None:
    """The first thing that is wrong with a document, or `None`.

    Args:
        document: as read from a shard.
        vocab_size: V of the target, where it is known.

    Returns:
        What was found and what was expected, to be put after the document's name: lengths that
        differ, no token, ids outside the vocabulary, values that are not finite with their slot
        and count, no token of the answer.
    """
    lengths = [len(array) for array in document if array is not None]
    if len(set(lengths)) > 1:
        return f"has arrays of {lengths} rows, expected one length"
    ids = document.ids
    if not len(ids):
        return "holds no token, expected some"
    if vocab_size is not None and (ids.min() < 0 or ids.max() >= vocab_size):
        return f"holds token ids {ids.min()} to {ids.max()}, expected 0 to {vocab_size - 1}"
    slots = ((f"slot {slot}", document.states[:, slot]) for slot in range(document.states.shape[1]))
    embeddings = () if document.embeddings is None else (("embeddings", document.embeddings),)
    broken = [
        f"{count} in {name}"
        for name, array in (*slots, *embeddings)
        if (count := int((~np.isfinite(array)).sum()))
    ]
    if broken:
        return f"holds NaN or infinity, {', '.join(broken)}, expected finite values"
    if not document.answer.any():
        return "holds no answer token, expected the loss mask to mark some"
    return None

"""What is wrong with a document of a shard, in words."""

from eagle3_jax.structs import Document, find_fault


def check_document(document: Document, vocab_size: int | None = None) -> str | None:
    """The first thing that is wrong with a document, or `None`.

    Args:
        document: as read from a shard.
        vocab_size: V of the target, where it is known.

    Returns:
        What was found and what was expected, to be put after the document's name: what
        `find_fault` finds, or no token of the answer.
    """
    fault = find_fault(document, vocab_size)
    if fault is None and not document.answer.any():
        return "holds no answer token, expected the loss mask to mark some"
    return fault

"""States that a server captured, held against those of the shards."""

from pathlib import Path
from typing import Any

from converters.dumps import read_dumps
from eagle3_jax.diagnose.findings import as_json
from eagle3_jax.diagnose.serving import align, match
from eagle3_jax.structs import Document


def compare_dumps(documents: list[Document], path: Path) -> list[dict[str, Any]]:
    """Each served text beside the document that it shares most tokens with.

    Args:
        documents: of the shards.
        path: the dump: a file, a directory or a pattern.

    Raises:
        InputError: when a dump cannot be read, or shares no text with any document.
    """
    width = documents[0].states.shape[2]
    found = []
    for served in read_dumps(path, width=width):
        lengths = [align(document.ids, served.ids).length for document in documents]
        number = lengths.index(max(lengths))
        found.append({"document": number, **as_json(match(documents[number], served))})
    return found

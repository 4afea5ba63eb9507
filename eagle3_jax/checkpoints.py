"""A draft as this project itself keeps it, written: an Orbax checkpoint and a JSON file beside it.

Nothing is encoded: the tree is the one that `Drafter(config)` applies, arrays in their own types.
`native` says what stands where; `converters.load_draft` reads it.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import orbax.checkpoint as ocp

from eagle3_jax.config import DraftConfig
from eagle3_jax.native import CONFIG, FORMAT, STATE, encode
from eagle3_jax.vocab import VocabMap


class Checkpoint(NamedTuple):
    """A draft for a native checkpoint.

    Attributes:
        config: dimensions and knobs.
        params: the parameter tree, NumPy or JAX arrays.
        vocab: the draft vocabulary.
        embeddings: `[V,D]`, `None` where the target's are due.
        boundaries: the capture, `None` where nobody knows it.
        max_positions: the longest context, `None` where nobody says.
        target_name: where the target is found, `None` where nobody says.
    """

    config: DraftConfig
    params: dict[str, Any]
    vocab: VocabMap
    embeddings: Any | None
    boundaries: tuple[int, ...] | None
    max_positions: int | None = None
    target_name: str | None = None


def write_checkpoint(directory: Path | str, checkpoint: Checkpoint) -> None:
    """Write into an existing directory.

    Args:
        directory: empty; a caller that wants it whole or not at all renames it afterwards.
        checkpoint: what to keep.
    """
    directory = Path(directory)
    state = {"params": checkpoint.params, "target_ids": checkpoint.vocab.target_ids}
    if checkpoint.embeddings is not None:
        state["embeddings"] = checkpoint.embeddings
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(directory.absolute() / STATE, state)
    told = {
        "format": FORMAT,
        "config": encode(checkpoint.config),
        "boundaries": checkpoint.boundaries,
        "max_positions": checkpoint.max_positions,
        "target_name": checkpoint.target_name,
    }
    (directory / CONFIG).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

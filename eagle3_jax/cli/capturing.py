"""The work of `eagle3-jax capture`: which shards are to be made, and making them."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from converters.chats import Text
from converters.files import read_json
from converters.listing import listed
from converters.series import digest_of, finished, made_of, shard_path
from converters.shards import ShardInfo, write_shard
from converters.targets import load_target
from converters.trees import to_tensors
from eagle3_jax.cli.lines import print_lines
from eagle3_jax.cli.progress import progress
from eagle3_jax.errors import InputError
from eagle3_jax.record import Recorded, answer_prompts, read_texts
from eagle3_jax.structs import Document

_DIGITS = 16  # of a target's digest: enough to tell two apart, and short in a message
_ENDS = ("generation_config.json", "config.json")


class Job(NamedTuple):
    """What is to be captured, and how.

    Attributes:
        engine: what runs the target.
        target: its directory.
        tokenizer: the directory of its tokenizer.
        output: the directory of the shards.
        boundaries: the stored states besides the last one.
        dtype: of the stored states.
        compute: the precision of the target's pass, or `stored`: that of its weights.
        embeddings: whether boundary 0 is stored beside the states.
        max_new: most tokens of an answer; `None` where texts are only read.
        longest: most tokens of a text, or of prompt and answer.
        documents_per_shard: how many.
        columns: tokens that are read together.
        rows: prompts that are answered together.
    """

    engine: Literal["jax", "transformers"]
    target: Path
    tokenizer: Path
    output: Path
    boundaries: tuple[int, ...]
    dtype: Literal["bfloat16", "float32"]
    compute: Literal["stored", "bfloat16", "float32"]
    embeddings: bool
    max_new: int | None
    longest: int
    documents_per_shard: int
    columns: int
    rows: int


class _Engine(NamedTuple):
    """A target that is ready to run.

    Attributes:
        num_layers: L.
        compute: the precision of its pass.
        digest: of all that its states depend on.
        table: `[V,Dt]`, its embeddings as they are stored beside states; `None` where they are not.
        read: runs it over texts, as `record.read_texts`.
        answer: lets it answer prompts, as `record.answer_prompts`.
    """

    num_layers: int
    compute: str
    digest: str
    table: np.ndarray | None
    read: Callable[..., Iterator[Recorded]]
    answer: Callable[..., Iterator[Recorded]]


def capture(
    job: Job, texts: list[Text], counts: dict[str, int], *, overwrite: bool, quiet: bool
) -> dict[str, Any]:
    """Make the shards that are not there yet.

    Args:
        job: what and how.
        texts: all texts or prompts, in order.
        counts: what became of lines that were too long, for the result.
        overwrite: remove shards of other captures first.
        quiet: show no progress.

    Returns:
        What there is now and what was done for it, JSON-able.

    Raises:
        InputError: when the target cannot be read, or the directory holds other shards.
    """
    ends = () if job.max_new is None else end_ids(job)
    engine = _jax_engine(job) if job.engine == "jax" else _transformers_engine(job)
    settings = _settings(job, engine, ends)
    parts = [
        texts[start : start + job.documents_per_shard]
        for start in range(0, len(texts), job.documents_per_shard)
    ]
    series = [made_of(settings, part) for part in parts]
    done = finished(job.output, series, overwrite=overwrite)
    waiting = [index for index in range(len(parts)) if index not in done]
    tokens = answer_tokens = 0
    begun = time.perf_counter()
    total = sum(len(parts[index]) for index in waiting)
    with (
        progress("documents", total, quiet=quiet, rate="tokens") as advance,
        jax.default_matmul_precision("highest"),
    ):
        for index in waiting:
            documents: dict[int, Document] = {}
            for recorded in _recorded(job, engine, parts[index], ends):
                text = parts[index][recorded.number]
                documents[recorded.number] = _document(job, text, recorded, engine.table)
                advance(1, len(recorded.ids))
            shard = [documents[number] for number in range(len(parts[index]))]
            info = ShardInfo(
                (*job.boundaries, engine.num_layers),
                "pre_norm",
                job.target.resolve().name,
                series[index].notes(),
            )
            write_shard(shard_path(job.output, index), shard, info)
            tokens += sum(len(document.ids) for document in shard)
            answer_tokens += sum(int(document.answer.sum()) for document in shard)
    seconds = time.perf_counter() - begun
    return {
        "target": str(job.target),
        "engine": job.engine,
        "output": str(job.output),
        "shards": len(parts),
        "kept": len(done),
        "documents": len(texts),
        "boundaries": [*job.boundaries, engine.num_layers],
        "last_state": "pre_norm",
        "dtype": job.dtype,
        "compute": settings["compute"],
        "generate": job.max_new,
        "end_ids": list(ends),
        "max_length": job.longest,
        **counts,
        "captured": {"documents": total, "tokens": tokens, "answer_tokens": answer_tokens},
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if tokens else None,
    }


def end_ids(job: Job) -> tuple[int, ...]:
    """The tokens that end an answer, from the first file that names them, as transformers asks.

    Raises:
        InputError: when no file does, or one names something else than ids.
    """
    for name in _ENDS:
        file = job.target / name
        ends = read_json(file).get("eos_token_id") if file.exists() else None
        if ends is None:
            continue
        found = ends if isinstance(ends, list) else [ends]
        if not found or not all(type(one) is int and one >= 0 for one in found):
            raise InputError(f"{file}: eos_token_id is {ends!r}, expected one id or a list of them")
        return tuple(found)
    raise InputError(
        f"{job.target}: found no eos_token_id in {' or '.join(_ENDS)}, expected the tokens that "
        "end an answer"
    )


def print_capture(console: Console, result: dict[str, Any]) -> None:
    """What was captured, for people."""
    captured = result["captured"]
    rate = result["tokens_per_second"]
    speed = "" if rate is None else f"; {result['seconds']:.1f} s, {rate:,.0f} tokens/s"
    *boundaries, last = result["boundaries"]
    lines = {
        "shards": f"{result['shards']:,} in {result['output']}, of which {result['kept']:,} were "
        "there already",
        "documents": f"{result['documents']:,}",
        "captured": f"{captured['documents']:,} documents, {captured['tokens']:,} tokens, of which "
        f"answer tokens {captured['answer_tokens']:,}{speed}",
        "states": f"boundaries {listed(boundaries)}, then {last}, the last before the final "
        f"norm; {result['dtype']}, computed in {result['compute']} by {result['engine']}",
    }
    longest = result["max_length"]
    said = {
        "truncated": f"texts were cut to {longest:,} tokens",
        "without_answer": "texts have no token of an answer within that length",
        "left_out": f"prompts were left out: {longest:,} tokens or more leave no room to answer",
    }
    notes = tuple(f"{result[name]:,} {what}" for name, what in said.items() if result[name])
    print_lines(console, lines, notes)


def _jax_engine(job: Job) -> _Engine:
    loaded = load_target(job.target)
    params = dict(loaded.params)
    embeddings = params.pop("embed_tokens")
    tensors = {**to_tensors(params), "embed_tokens.weight": embeddings}
    on_device = jax.tree.map(partial(_cast, job.compute), loaded.params)
    return _Engine(
        loaded.config.num_layers,
        str(embeddings.dtype) if job.compute == "stored" else job.compute,
        digest_of(tensors, repr(loaded.config))[:_DIGITS],
        _stored_table(job, embeddings),
        partial(read_texts, loaded.config, on_device),
        partial(answer_prompts, loaded.config, on_device),
    )


def _transformers_engine(job: Job) -> _Engine:
    from eagle3_jax.cli import torch_engine

    target = torch_engine.load(job.target, job.compute)
    return _Engine(
        target.num_layers,
        torch_engine.compute_type(target),
        digest_of(torch_engine.tensors_of(target), target.model.config.to_json_string())[:_DIGITS],
        _stored_table(job, torch_engine.embedding_table(target)),
        partial(torch_engine.read_texts, target),
        partial(torch_engine.answer_prompts, target, columns=job.columns),
    )


def _stored_table(job: Job, table: np.ndarray) -> np.ndarray | None:
    return table.astype(jnp.dtype(job.dtype)) if job.embeddings else None


def _settings(job: Job, engine: _Engine, ends: tuple[int, ...]) -> dict[str, Any]:
    """All that a shard's content depends on besides its texts; none of what is only speed."""
    settings: dict[str, Any] = {
        "engine": job.engine,
        "target": engine.digest,
        "boundaries": list(job.boundaries),
        "dtype": job.dtype,
        "compute": engine.compute,
        "embeddings": job.embeddings,
        "generate": job.max_new,
    }
    if job.max_new is not None:
        settings |= {"end_ids": list(ends), "max_length": job.longest}
    return settings


def _cast(compute: str, leaf: np.ndarray) -> jax.Array:
    return jnp.asarray(leaf, None if compute == "stored" else jnp.dtype(compute))


def _recorded(
    job: Job, engine: _Engine, texts: list[Text], ends: tuple[int, ...]
) -> Iterator[Recorded]:
    ids = [text.ids for text in texts]
    if job.max_new is None:
        return engine.read(ids, boundaries=job.boundaries, dtype=job.dtype, columns=job.columns)
    return engine.answer(
        ids,
        max_new=job.max_new,
        longest=job.longest,
        end_ids=ends,
        boundaries=job.boundaries,
        dtype=job.dtype,
        rows=min(job.rows, len(texts)),
    )


def _document(job: Job, text: Text, recorded: Recorded, table: np.ndarray | None) -> Document:
    answer = text.answer
    if job.max_new is not None:
        answer = np.arange(len(recorded.ids)) >= len(text.ids)
    embeddings = None if table is None else table[recorded.ids]
    return Document(recorded.ids, answer, recorded.states, embeddings)

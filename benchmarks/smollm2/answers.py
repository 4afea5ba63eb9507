"""The target answers prompts greedily, its states captured on the way, and writes shards.

    python -m benchmarks.smollm2.answers train --documents 6000

A stream of prompts keeps every row of one batch busy: as answers end, new prompts take their
rows. Shards are whole files of 256 documents; a second run goes on where the first stopped.
"""

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tyro
from rich.progress import Progress
from tokenizers import Tokenizer

from benchmarks.smollm2.chitchat import chitchat_prompts
from benchmarks.smollm2.prompts import held_out_prompts, training_prompts
from benchmarks.smollm2.target import END, NAME, chat_prompt, load_tokenizer, target_directory
from converters.shards import ShardInfo, read_info, write_shard
from converters.targets import LoadedTarget, load_target
from eagle3_jax import generate
from eagle3_jax.cli.manners import cache_directory
from eagle3_jax.structs import Document

# What the prompts of each split are: see `prompts_of`.
Split = Literal["train", "familiar", "unfamiliar", "chat"]
SHIPPED: tuple[Split, ...] = ("familiar", "unfamiliar")
BOUNDARIES = (2, 15, 27)  # the default capture of 30 layers
LONGEST_PROMPT = 64
LONGEST = 208
_FAMILIAR = 48
_ROWS = 96
_FRESH = 16  # prompts that are prefilled together
_STEPS = 16  # decoding steps between two looks at which rows are done
_DOCUMENTS_PER_SHARD = 256


class Prompt(NamedTuple):
    """A prompt, its place in the split, and its tokens."""

    number: int
    ids: list[int]


def prompts_of(split: Split) -> list[str]:
    """The prompts of a split, in the order in which they are answered.

    No prompt is in two splits. `train` is half prompts written for this project, half chats;
    `chat` is held-out chats; `familiar` is held-out prompts of the written kinds, the same
    templates filled otherwise; `unfamiliar` is prompts of other kinds.
    """
    written = training_prompts()
    match split:
        case "train":
            own, chats = written[:-_FAMILIAR], chitchat_prompts(held_out=False)
            mixed = itertools.zip_longest(own, chats)
            return [prompt for pair in mixed for prompt in pair if prompt is not None]
        case "familiar":
            return written[-_FAMILIAR:]
        case "unfamiliar":
            return held_out_prompts()
        case "chat":
            return chitchat_prompts(held_out=True)


def shard_directory(split: Split) -> Path:
    """Where a split's shards are kept."""
    return cache_directory() / "smollm2" / "shards" / split


def answer(split: tyro.conf.Positional[Split], documents: int | None = None) -> Path:
    """Answer the prompts of a split and write shards, as far as that is not done yet.

    Args:
        split: which prompts.
        documents: stop after so many prompts of the split; all by default.

    Returns:
        The directory of the shards.
    """
    directory = shard_directory(split)
    tokenizer = load_tokenizer(target_directory())
    prompts = _encoded(prompts_of(split), tokenizer)[:documents]
    present = sorted(directory.glob("*.safetensors"))
    done = {number for file in present for number in read_info(file).notes["prompts"]}  # type: ignore[attr-defined]
    waiting = [prompt for prompt in prompts if prompt.number not in done]
    if not waiting:
        return directory
    target = load_target(target_directory())
    # What is shipped must not need the target's table; what stays in the cache can look it up.
    table = target.params["embed_tokens"].astype(ml_dtypes.bfloat16)
    answered = _stream(target, waiting, table if split in SHIPPED else None)
    with Progress() as progress:
        task = progress.add_task(f"answering {split}", total=len(waiting))
        for index in itertools.count(len(present)):
            batch = list(itertools.islice(answered, _DOCUMENTS_PER_SHARD))
            if not batch:
                return directory
            numbers = [number for number, _ in batch]
            info = ShardInfo((*BOUNDARIES, 30), "pre_norm", NAME, {"prompts": numbers})
            file = directory / f"{index:05d}.safetensors"
            write_shard(file, [document for _, document in batch], info)
            progress.update(task, advance=len(batch))
    raise AssertionError("unreachable: the counter never ends")


def _encoded(prompts: list[str], tokenizer: Tokenizer) -> list[Prompt]:
    encoded = (Prompt(n, tokenizer.encode(chat_prompt(p)).ids) for n, p in enumerate(prompts))
    return [prompt for prompt in encoded if len(prompt.ids) <= LONGEST_PROMPT]


class _Row:
    """A document under way."""

    def __init__(self, prompt: Prompt, states: np.ndarray) -> None:
        self.number = prompt.number
        self.prompt_length = len(prompt.ids)
        self.ids = [np.asarray(prompt.ids, np.int32)]
        self.states = [states[: self.prompt_length]]

    def document(self, embeddings: np.ndarray | None) -> Document:
        ids = np.concatenate(self.ids)
        return Document(
            ids,
            np.arange(len(ids)) >= self.prompt_length,
            np.concatenate(self.states),
            None if embeddings is None else embeddings[ids],
        )


def _stream(
    target: LoadedTarget, prompts: list[Prompt], embeddings: np.ndarray | None
) -> Iterator[tuple[int, Document]]:
    """Answered prompts, as they end."""
    start, extend = _compiled(target)
    rows: list[_Row | None] = [None] * _ROWS
    decoding = generate.idle(target.config, _ROWS, LONGEST, jnp.float32)
    queue = iter(prompts)
    while True:
        free = [index for index, row in enumerate(rows) if row is None]
        while fresh := list(itertools.islice(queue, min(_FRESH, len(free)))):
            places, free = free[: len(fresh)], free[len(fresh) :]
            decoding, states = start(decoding, *_padded(fresh, places))
            captured = np.asarray(states)
            for slot, (place, prompt) in enumerate(zip(places, fresh, strict=True)):
                rows[place] = _Row(prompt, captured[slot])
        if all(row is None for row in rows):
            return
        decoding, (ids, live, states) = extend(decoding)
        ids, live, states, done = map(np.asarray, (ids, live, states, decoding.done))
        for index, row in enumerate(rows):
            if row is None:
                continue
            row.ids.append(ids[live[:, index], index])
            row.states.append(states[live[:, index], index])
            if done[index]:
                rows[index] = None
                yield row.number, row.document(embeddings)


def _compiled(target: LoadedTarget) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Prefill-and-insert and decode, jitted; states leave as bfloat16."""
    params = jax.tree.map(jnp.asarray, target.params)

    @functools.partial(jax.jit, donate_argnums=1)
    def start(params: Any, decoding: Any, ids: Any, lengths: Any, places: Any) -> Any:
        fresh, states = generate.prefill(target.config, params, ids, lengths, BOUNDARIES)
        return generate.insert(decoding, fresh, places), states.astype(jnp.bfloat16)

    @functools.partial(jax.jit, donate_argnums=1)
    def extend(params: Any, decoding: Any) -> Any:
        after, captured = generate.decode(
            target.config, params, decoding, _STEPS, BOUNDARIES, (END,)
        )
        return after, captured._replace(states=captured.states.astype(jnp.bfloat16))

    return functools.partial(start, params), functools.partial(extend, params)


def _padded(fresh: list[Prompt], places: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts in one static shape; rows without a prompt go nowhere."""
    ids = np.zeros((_FRESH, LONGEST_PROMPT), np.int32)
    lengths = np.ones(_FRESH, np.int32)
    rows = np.full(_FRESH, _ROWS, np.int32)
    for slot, (prompt, place) in enumerate(zip(fresh, places, strict=True)):
        ids[slot, : len(prompt.ids)] = prompt.ids
        lengths[slot], rows[slot] = len(prompt.ids), place
    return ids, lengths, rows


if __name__ == "__main__":
    tyro.cli(answer)

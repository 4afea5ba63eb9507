"""Every answer counted twice: by the walk over stored states, and by serving it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.chain import Pair, Weights, serve
from eagle3_jax.batches import batches
from eagle3_jax.evaluate import evaluate
from eagle3_jax.record import answer_prompts
from eagle3_jax.structs import Document
from eagle3_jax.vocab import VocabMap


class Compared(NamedTuple):
    """One answer, counted by the walk over stored states and by serving it.

    Attributes:
        prompt: its number.
        steps: K, the draft tokens of a round.
        answer_tokens: of the target's plain greedy answer.
        walked: rounds and tokens of the walk.
        served: rounds and tokens of the loop.
        same_text: whether the loop's answer is the plain greedy one, token for token.
        margin: the smallest that a decision of the loop hung on; none without a round.
    """

    prompt: int
    steps: int
    answer_tokens: int
    walked: tuple[int, int]
    served: tuple[int, int]
    same_text: bool
    margin: float | None

    @property
    def agrees(self) -> bool:
        """Whether nothing differs."""
        return self.walked == self.served and self.same_text


def compare(
    pair: Pair,
    weights: Weights,
    vocab: VocabMap,
    prompts: Sequence[np.ndarray],
    *,
    steps: Sequence[int],
    max_new: int,
    end_ids: tuple[int, ...],
) -> Iterator[Compared]:
    """Answer prompts plainly and walk over the stored states; then serve them, and compare.

    Args:
        pair: draft and target.
        weights: theirs, in float32.
        vocab: the draft vocabulary.
        prompts: `[P]` int32 each.
        steps: the numbers K of draft tokens in a round to compare at.
        max_new: most tokens of an answer.
        end_ids: tokens that end an answer.

    Yields:
        One comparison for each K and prompt.
    """
    recorded = answer_prompts(
        pair.target,
        weights.target,
        prompts,
        max_new=max_new,
        longest=max(map(len, prompts)) + max_new,
        end_ids=end_ids,
        boundaries=pair.boundaries,
        dtype="float32",
        rows=len(prompts),
    )
    documents = []
    for number, ids, states in sorted(recorded, key=lambda found: found.number):
        answer = np.arange(len(ids)) >= len(prompts[number])
        documents.append(Document(ids, answer, states, None))
    fed = batches(
        documents,
        slots=tuple(range(len(pair.boundaries))),
        table=np.asarray(weights.table),
        columns=1024,
        bucket=64,
    )
    counts = evaluate(pair.draft, weights.draft, weights.kernel, vocab, fed, steps=max(steps))
    for k in steps:
        served = serve(pair, weights, prompts, steps=k, max_new=max_new, end_ids=end_ids)
        for number, (document, one) in enumerate(zip(documents, served, strict=True)):
            plain = document.ids[document.answer].tolist()
            walked = int(counts.rounds[number, k - 1]), int(counts.gained[number, k - 1])
            # The first token came with the prompt, before any round.
            found = one.rounds, len(one.ids) - 1
            margin = one.margin if one.rounds else None
            yield Compared(number, k, len(plain), walked, found, one.ids == plain, margin)

"""Where in the target a state is from, told by what the target's head says of it.

A last state stored before the final norm predicts best after one norm, one stored after it after
none. Rates are of the same tokens for every reading, so that two of them are compared token by
token: only what one alone gets right counts.
"""

from math import sqrt

import numpy as np

from eagle3_jax.diagnose.figures import OFFSETS, Slot, find_asked, find_hits
from eagle3_jax.diagnose.findings import Finding, share
from eagle3_jax.diagnose.measures import Measured

_SURE = 3.0  # standard deviations
_ENOUGH = 8  # tokens that carry a statement on root mean squares
_NORMS = ("no norm", "one norm", "two norms")
_OFFSETS = ("its own token's", "the next", "the second next")
_STORED = (
    "stored after the final norm",
    "stored before the final norm",
    "as no capture is stored",
)


def judge_final_norm(
    slots: list[Slot], texts: list[np.ndarray], suspects: tuple[int, ...]
) -> list[Finding]:
    """Slots that bear the final norm's mark in every state."""
    tokens = sum(len(ids) for number, ids in enumerate(texts) if number not in suspects)
    return [
        Finding(
            "proved",
            f"{slot.name} is stored after the final norm",
            f"divided by the norm's weight, all of {tokens:,} states have a root mean square of 1, "
            "to 1%",
        )
        for slot in slots
        if slot.unit == tokens >= _ENOUGH
    ]


def judge_rates(
    slots: list[Slot],
    parts: list[list[Measured]],
    texts: list[np.ndarray],
    suspects: tuple[int, ...],
) -> list[Finding]:
    """What the head says of each slot, and of the one that predicts best where it is from.

    Args:
        slots: the figures of each slot.
        parts: of each slot its measures in each document.
        texts: `[T]`, the ids of each document.
        suspects: documents that do not count.
    """
    kept = [number for number in range(len(texts)) if number not in suspects]
    due = [texts[number][find_asked(parts[0][number]) + 1] for number in kept]
    total = sum(map(len, due))
    if not total:
        return []
    commonest = int(np.unique(np.concatenate(due), return_counts=True)[1].max())
    hits = _gather(parts, texts, kept)
    right = hits.sum(axis=-1)  # [slots, norms, offsets]
    ahead = right[:, :, 1:].reshape(len(slots), -1)
    leader = int(ahead.max(axis=1).argmax())
    found, best = [], []
    for number, slot in enumerate(slots):
        norms, offset = divmod(int(ahead[number].argmax()), len(OFFSETS) - 1)
        offset += 1
        best.append(hits[number, norms, offset])
        rates = ", ".join(
            f"{right[number, n, offset] / total:.1%} after {_NORMS[n]}"
            for n in range(hits.shape[1])
        )
        evidence = f"{rates}, of {total:,} ids; always the commonest id: {commonest / total:.1%}"
        if not _beats(best[number], commonest):
            claim = f"{slot.name} does not predict the text"
            found.append(Finding("measured", claim, evidence))
            found += _judge_own(slot.name, hits[number], best[number], commonest)
            continue
        rate = right[number, norms, offset] / total
        claim = f"{slot.name} predicts {_OFFSETS[offset]} id with {rate:.1%} after {_NORMS[norms]}"
        if number != leader:
            found.append(Finding("measured", claim, evidence))
            continue
        others = [hits[number, n, offset] for n in range(hits.shape[1]) if n != norms]
        sure = all(_is_better(best[number], other) for other in others)
        if others:
            claim += f": {_STORED[norms]}" + ("" if sure else ", or the rates are too near to tell")
        found.append(Finding("measured" if sure else "suggested", claim, evidence))
        found += _judge_pairing(slot.name, hits[number], norms, offset)
    last = len(slots) - 1
    if _beats(best[leader], commonest) and _is_better(best[leader], best[last]):
        found.append(
            Finding(
                "measured",
                f"{slots[last].name}, stored last, is not the state that predicts best: "
                f"{slots[leader].name} is",
                f"{best[last].sum() / total:.1%} against {best[leader].sum() / total:.1%} of "
                f"{total:,} ids",
            )
        )
    return found


def _judge_pairing(name: str, hits: np.ndarray, norms: int, offset: int) -> list[Finding]:
    """Whether the states are those of a neighbouring token; `hits` is `[norms, offsets, N]`."""
    if offset == 1:
        return []
    ahead, total = hits[norms, 2], hits.shape[-1]
    plain = hits[hits[:, 1].sum(axis=-1).argmax(), 1]
    return [
        Finding(
            "measured" if _is_better(ahead, plain) else "suggested",
            f"{name} holds the states of the next token",
            f"it predicts {share(int(ahead.sum()), total)} ids two tokens on, "
            f"{share(int(plain.sum()), total)} one token on",
        )
    ]


def _judge_own(name: str, hits: np.ndarray, ahead: np.ndarray, commonest: int) -> list[Finding]:
    """Whether a state that predicts nothing says its own token's id; `hits` as above."""
    own = hits[hits[:, 0].sum(axis=-1).argmax(), 0]
    if not (_beats(own, commonest) and _is_better(own, ahead)):
        return []
    return [
        Finding(
            "suggested",
            f"{name} is an early state, or that of the token before",
            f"the head says the id of its own token at {share(int(own.sum()), len(own))}",
        )
    ]


def _gather(parts: list[list[Measured]], texts: list[np.ndarray], kept: list[int]) -> np.ndarray:
    """`[slots, norms, offsets, N]` bool, for the norms that were asked."""
    guesses = parts[0][0].guesses
    assert guesses is not None, "asked for with a head only"
    return np.array(
        [
            [
                [
                    np.concatenate([find_hits(slot[n], texts[n], norms, offset) for n in kept])
                    for offset in OFFSETS
                ]
                for norms in range(guesses.shape[1])
            ]
            for slot in parts
        ]
    )


def _is_better(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether one reading is right more often than another, beyond chance (a sign test)."""
    alone, beaten = int((one & ~other).sum()), int((other & ~one).sum())
    return alone - beaten > _SURE * sqrt(alone + beaten)


def _beats(hits: np.ndarray, commonest: int) -> bool:
    """Whether a reading is right more often than always the commonest id, beyond chance."""
    return bool(hits.sum() - commonest > _SURE * sqrt(max(commonest, 1)))

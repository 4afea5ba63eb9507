"""What the figures of slots prove, measure or suggest, in words."""

from itertools import pairwise

import numpy as np

from eagle3_jax.diagnose.figures import Match, Repeats, Slot, count_tokens
from eagle3_jax.diagnose.findings import Finding, Strength, listed, share
from eagle3_jax.diagnose.likeness import Likeness
from eagle3_jax.diagnose.measures import Measured
from eagle3_jax.diagnose.suspects import judge_repeats, judge_rows

_APART = 4.0  # the runner-up's error against the nearest one's
_GROWTH = 1.1  # of the norms, from the least to the largest
_OF = {
    0: "",
    -1: " of the token before",
    1: " of the next token",
}


def judge_values(slot: Slot) -> list[Finding]:
    """Zeros, NaN, infinity, dead and massive channels."""
    found = []
    if slot.nan or slot.infinite:
        found.append(
            Finding(
                "proved",
                f"{slot.name} holds values that are not finite",
                f"{slot.nan:,} NaN and {slot.infinite:,} infinite of {slot.tokens * slot.width:,}; "
                "float16 ends at 65,504. Tokens that hold one count nowhere",
            )
        )
    if slot.zero:
        return [
            *found,
            Finding(
                "proved",
                f"{slot.name} is zero throughout",
                f"{slot.width:,} channels of {slot.tokens:,} tokens",
            ),
        ]
    if slot.dead:
        found.append(
            Finding(
                "measured",
                f"{slot.name} has channels that are always zero",
                f"{share(len(slot.dead), slot.width)} channels, the first is {slot.dead[0]}",
            )
        )
    if slot.massive:
        channel, first, later = slot.massive[0]
        found.append(
            Finding(
                "measured",
                f"{slot.name} has massive activations: channel {channel}",
                f"up to {first:,.0f} at position 0 and {later:,.0f} past it, the median magnitude "
                f"is {slot.typical:.3g}; averages over position 0 mean nothing",
            )
        )
    return found


def judge_rows_of_tables(
    slot: Slot, parts: list[Measured], smallest: bool
) -> tuple[list[Finding], list[Finding]]:
    """Whether a slot is an embedding: what is said of it, and of documents that depart from it.

    Args:
        slot: its figures.
        parts: its measures in each document.
        smallest: whether its norm is the smallest of all slots.
    """
    departing: list[Finding] = []
    whole: list[Match] = []
    excepted: tuple[int, ...] = ()
    for match in slot.tables:
        hits = count_tokens(parts, match, "equal")
        others, found = judge_rows(slot.name, match, parts, hits)
        if others and not whole:
            departing, excepted = found, others
        if others or match.whole:
            bits = count_tokens(parts, match, "exact")
            equal, exact = (int(np.delete(count, others).sum()) for count in (hits[0], bits[0]))
            whole.append(match._replace(equal=equal, exact=exact, compared=equal))
    if whole:
        return [_is_row(slot, whole, excepted)], departing
    partly = max(slot.tables, key=lambda match: match.equal, default=None)
    if partly is not None and partly.equal:
        return [
            Finding(
                "measured",
                f"{slot.name} is the embedding{_OF[partly.shift]} at some tokens only",
                f"{share(partly.equal, partly.compared)} tokens equal their row of "
                f"{_named(partly)}",
            )
        ], []
    excepted, departing = judge_repeats(slot.name, parts)
    counts = np.array([p.repeats[0] for n, p in enumerate(parts) if n not in excepted])
    return _judge_lookup(slot, Repeats(0, *counts.sum(axis=0).tolist()), smallest), departing


def _is_row(slot: Slot, whole: list[Match], excepted: tuple[int, ...]) -> Finding:
    """The statement that a slot is a row of a table, where all that was compared is."""
    best = min(whole, key=lambda match: (match.scale != 1.0, abs(match.shift)))
    shifts = {match.shift for match in whole if match.reference == best.reference}
    claim = f"{slot.name} is the embedding{_OF[best.shift]}"
    if best.scale != 1.0:
        claim += f" times {_constant(best.scale, slot.width)}"
    evidence = f"all of {best.compared:,} tokens equal their row of {_named(best)}"
    if best.exact == best.equal:
        evidence += ", bit for bit"
    if excepted:
        evidence += f"; documents {listed(excepted)} apart, which are suspect"
    if len(shifts) > 1:
        evidence += "; the ids repeat, so that a shift by one token would fit too"
    others = sorted({match.reference for match in whole} - {best.reference})
    if others:
        evidence += f"; so do those of {', '.join(others)}"
    return Finding("proved", claim, evidence)


def _judge_lookup(slot: Slot, own: Repeats, smallest: bool) -> list[Finding]:
    """What equal ids with equal or other states say, and the tables that no token equals."""
    nowhere = _nowhere(slot)
    fits = [r for r in (own, *slot.repeats) if 0 < r.pairs == r.same]
    if fits:
        best = min(fits, key=lambda repeats: abs(repeats.shift))
        other = "another table than was given" if nowhere else "a table that was not given"
        told = f"all of {best.pairs:,} repeats of an id have one state"
        return [
            Finding(
                "measured",
                f"{slot.name} depends on the id{_OF[best.shift]} alone, as an embedding of "
                f"{other} does",
                f"{told}; {nowhere}" if nowhere else told,
            )
        ]
    evidence = [nowhere] if nowhere else []
    departs = 2 * own.same < own.pairs  # equal contexts give equal states, here and there
    if departs:
        evidence.append(
            f"in {share(own.pairs - own.same, own.pairs)} repeats of an id the state is another, "
            "and a table gives an id one row"
        )
    if smallest:
        evidence.append(
            f"its median norm, {slot.norms.median:.3g}, is the smallest: that proves nothing"
        )
    told = "; ".join(evidence)
    if departs:
        return [Finding("proved", f"{slot.name} is not the embedding", told)]
    if nowhere:
        tables = " or ".join(dict.fromkeys(match.reference for match in slot.tables))
        return [Finding("proved", f"{slot.name} is not the embedding in {tables}", told)]
    if smallest:
        return [
            Finding(
                "suggested",
                f"{slot.name} is the earliest state stored",
                f"{told}; no table was given, and no id repeats",
            )
        ]
    return []


def _nowhere(slot: Slot) -> str:
    """That no token equals its row of any table, nor its neighbours' rows."""
    compared = [match for match in slot.tables if match.compared]
    if not compared:
        return ""
    nearest = min(compared, key=lambda match: np.nan_to_num(match.error, nan=np.inf))
    tables = ", nor of ".join(dict.fromkeys(match.reference for match in compared))
    total = max(match.compared for match in compared)
    return (
        f"0 of {total:,} tokens equal their row of {tables}, one token on or back, or a multiple "
        f"of it; nearest relative error {nearest.error:.2f}, cosine {nearest.cosine:.2f}"
    )


def judge_boundaries(slot: Slot) -> list[Finding]:
    """Which of the target's recomputed states a slot is, or is nearest to."""
    if not slot.boundaries:
        return []
    whole = [match for match in slot.boundaries if match.whole]
    if whole:
        names = " or ".join(dict.fromkeys(_state(match) for match in whole))
        best = whole[0]
        evidence = (
            f"all of {best.compared:,} tokens equal the target's state run anew, to rounding; "
            f"median relative error {best.error:.2g}"
        )
        others = [match for match in slot.boundaries if not match.whole]
        if others:
            evidence += f"; the next nearest is {_state(others[0])}, {others[0].error:.2g}"
        return [Finding("proved", f"{slot.name} is {names}", evidence)]
    order = sorted(slot.boundaries, key=lambda match: np.nan_to_num(match.error, nan=np.inf))
    best, others = order[0], [m for m in order if m.reference != order[0].reference]
    if np.isnan(best.error):
        return []
    apart = bool(others) and _APART * best.error <= others[0].error
    strength: Strength = "measured" if apart else "suggested"
    evidence = (
        f"median relative error {best.error:.2g}, cosine {best.cosine:.4f}; "
        f"{share(best.equal, best.compared)} tokens are equal to rounding"
    )
    if others:
        evidence += f"; the next nearest is {_state(others[0])}, {others[0].error:.2g}"
    return [Finding(strength, f"{slot.name} is nearest to {_state(best)}, not equal", evidence)]


def judge_stated(slots: list[Slot], stated: tuple[int, ...]) -> list[Finding]:
    """Slots that a recomputation proves to be another boundary than the shards say.

    Args:
        slots: in their stored order.
        stated: the boundary of each, for as many as it is said of.
    """
    found = []
    for slot, boundary in zip(slots, stated, strict=False):
        whole = [match for match in slot.boundaries if match.whole]
        told = f"boundary {boundary}"
        if whole and not any(_state(match) == told for match in whole):
            names = " or ".join(dict.fromkeys(map(_state, whole)))
            claim = f"the shards are wrong on {slot.name}: they say {told}, it is {names}"
            evidence = f"all of {whole[0].compared:,} tokens equal the target's state run anew"
            found.append(Finding("proved", claim, evidence))
    return found


def judge_order(slots: list[Slot], beside: list[list[Likeness]]) -> list[Finding]:
    """What neighbouring slots and the order of the norms say."""
    found = []
    for number, likenesses in enumerate(beside):
        equal, compared = (
            int(sum(getattr(likeness, name).sum() for likeness in likenesses))
            for name in ("equal", "compared")
        )
        if 0 < compared == equal and not slots[number].zero:
            found.append(
                Finding(
                    "proved",
                    f"slots {number} and {number + 1} hold the same states",
                    f"all of {compared:,} tokens are equal",
                )
            )
    norms = [slot.norms.median for slot in slots]
    # Of states that are about as large the order of norms says nothing; nor does it of none (NaN).
    if norms and np.max(norms) > _GROWTH * np.min(norms):
        rising = all(one < other for one, other in pairwise(norms))
        found.append(
            Finding(
                "suggested",
                "the slots ascend through the target"
                if rising
                else "the slots do not ascend through the target, or the last is after a norm",
                f"median norms {', '.join(f'{norm:.3g}' for norm in norms)}, position 0 apart; "
                "norms mostly rise from boundary to boundary",
            )
        )
    return found


def _state(match: Match) -> str:
    after = " after a norm" if np.isnan(match.scale) else ""
    return f"{match.reference}{after}{_OF[match.shift]}"


def _named(match: Match) -> str:
    return match.reference if match.scale == 1.0 else f"{match.reference}, times {match.scale:.4g}"


def _constant(scale: float, width: int) -> str:
    """A scale, named where it is the one that some targets have."""
    root = " (the square root of the width)" if abs(scale / np.sqrt(width) - 1) < 5e-3 else ""
    return f"{scale:.4g}{root}"

"""The states that a server feeds a draft beside those that it was trained on, for one text.

    ids of both       -> the longest run that they share, wherever it stands in either
    states along it   -> of each served slot the training slot that it equals, or is nearest to

The same token may stand one place off on one side, or after a norm: both are looked for.
"""

from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from eagle3_jax.diagnose.findings import Finding, Strength, listed, share
from eagle3_jax.diagnose.likeness import RECOMPUTED, Likeness, compare, fit_norm, middle
from eagle3_jax.diagnose.measures import SHIFTS
from eagle3_jax.errors import InputError
from eagle3_jax.structs import Document

_SHORTEST = 2  # tokens of a run that is compared
_APART = 4.0  # the runner-up's error against the nearest one's


class Run(NamedTuple):
    """Tokens that two texts share.

    Attributes:
        training: where they start in the training text.
        served: where they start in the served one.
        length: how many they are.
    """

    training: int
    served: int
    length: int


class SlotMatch(NamedTuple):
    """What a served slot is.

    Attributes:
        served: the slot.
        training: the training slot that it equals or is nearest to; `None` where nothing compares.
        shift: it holds that slot's state of the token this many places on.
        norm: "after" a norm of the training slot, or "before" one that the training slot had.
        equal: tokens that are equal up to rounding.
        compared: tokens that were compared.
        error: median relative error, position 0 apart.
        cosine: median cosine, position 0 apart.
        ties: other training slots that it equals as well.
        runner_up: the error against the next nearest training slot; NaN where there is none.
    """

    served: int
    training: int | None
    shift: int
    norm: str | None
    equal: int
    compared: int
    error: float
    cosine: float
    ties: tuple[int, ...] = ()
    runner_up: float = float("nan")

    @property
    def whole(self) -> bool:
        """Whether all that was compared is equal."""
        return 0 < self.compared == self.equal

    @property
    def strength(self) -> Strength:
        """Proved where all is equal, measured where one slot alone is near, else suggested."""
        if self.whole:
            return "proved"
        return "measured" if _APART * self.error <= self.runner_up else "suggested"


class Match(NamedTuple):
    """Served states against those of training.

    Attributes:
        run: the tokens that were compared.
        slots: what each served slot is.
        unserved: training slots that no served slot is.
        same: whether the states are equal, slot by slot and token by token.
        findings: what differs, in words.
    """

    run: Run
    slots: tuple[SlotMatch, ...]
    unserved: tuple[int, ...]
    same: bool
    findings: tuple[Finding, ...]


def match(training: Document, served: Document) -> Match:
    """Compare the states of one text, as trained on and as served.

    Args:
        training: as a shard stores it.
        served: as a server captured it: a part of the text, or the text inside another one.

    Raises:
        InputError: when they share no text, or their states have other widths.
    """
    widths = training.states.shape[2], served.states.shape[2]
    if widths[0] != widths[1]:
        raise InputError(
            f"the served states have width {widths[1]}, expected {widths[0]} as in training"
        )
    run = align(training.ids, served.ids)
    if run.length < _SHORTEST:
        raise InputError(
            f"the served text shares a run of {run.length} tokens with the training text, expected "
            f"{_SHORTEST} or more: the same prompt on both sides"
        )
    slots = tuple(
        _find(training.states, served.states[:, slot], run, slot)
        for slot in range(served.states.shape[1])
    )
    taken = {slot.training for slot in slots}.union(*(slot.ties for slot in slots))
    unserved = tuple(s for s in range(training.states.shape[1]) if s not in taken)
    same = len(slots) == training.states.shape[1] and all(
        slot.equal == run.length and (slot.training, slot.shift, slot.norm) == (number, 0, None)
        for number, slot in enumerate(slots)
    )
    return Match(run, slots, unserved, same, tuple(_judge(slots, unserved, run, same)))


def align(training: np.ndarray, served: np.ndarray) -> Run:
    """The longest run of ids that two texts share, the first of equals."""
    matcher = SequenceMatcher(None, training.tolist(), served.tolist(), autojunk=False)
    found = matcher.find_longest_match()
    return Run(found.a, found.b, found.size)


def _find(training: np.ndarray, served: np.ndarray, run: Run, number: int) -> SlotMatch:
    """The training slot, shift and norm that explain a served slot best."""
    found = []
    for slot in range(training.shape[1]):
        for shift in SHIFTS:
            ours, theirs, first = _along(served, training[:, slot], run, shift)
            likeness = compare(ours, theirs, slack=RECOMPUTED)
            found.append(_slot_match(number, slot, shift, None, likeness, first))
    whole = [one for one in found if one.whole]
    if not whole:
        whole = [one for one in _after_norms(training, served, run, number) if one.whole]
    if whole:
        # The same slot at the same token first: others are ties.
        best = min(whole, key=lambda one: (abs(one.shift), one.training != number))
        ties = {one.training for one in whole if one.shift == best.shift} - {best.training, None}
        others = [one.error for one in found if not one.whole and one.compared]
        ties_found = tuple(sorted(slot for slot in ties if slot is not None))
        return best._replace(ties=ties_found, runner_up=min(others, default=float("nan")))
    near = sorted((one for one in found if not np.isnan(one.error)), key=lambda one: one.error)
    if not near:
        return SlotMatch(number, None, 0, None, 0, 0, float("nan"), float("nan"))
    others = [one.error for one in near if one.training != near[0].training]
    return near[0]._replace(runner_up=min(others, default=float("nan")))


def _along(
    served: np.ndarray, training: np.ndarray, run: Run, shift: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both sides' rows along the run, and whether either is at position 0 of its text."""
    places = np.arange(run.length)
    here, there = run.served + places, run.training + places + shift
    kept = (there >= 0) & (there < len(training))
    here, there = here[kept], there[kept]
    return served[here], training[there], (here == 0) | (there == 0)


def _slot_match(
    number: int, slot: int, shift: int, norm: str | None, likeness: Likeness, first: np.ndarray
) -> SlotMatch:
    # Position 0 may hold a massive activation; where it is all there is, it has to do.
    kept = ~first if (~first & likeness.compared).any() else np.ones_like(first)
    return SlotMatch(
        number,
        slot,
        shift,
        norm,
        int(likeness.equal.sum()),
        int(likeness.compared.sum()),
        middle(likeness.error[kept]),
        middle(likeness.cosine[kept]),
    )


def _after_norms(
    training: np.ndarray, served: np.ndarray, run: Run, number: int
) -> list[SlotMatch]:
    found = []
    for slot in range(training.shape[1]):
        for shift in SHIFTS:
            ours, theirs, first = _along(served, training[:, slot], run, shift)
            for norm, one, other in (("after", ours, theirs), ("before", theirs, ours)):
                normed = fit_norm(one, other)
                if normed is not None:
                    likeness = compare(one, normed, roundings=2, slack=RECOMPUTED)
                    found.append(_slot_match(number, slot, shift, norm, likeness, first))
    return found


def _judge(
    slots: tuple[SlotMatch, ...], unserved: tuple[int, ...], run: Run, same: bool
) -> list[Finding]:
    where = f"{run.length:,} tokens from token {run.training} of training, {run.served} as served"
    if same:
        claim = f"the server's states are those of training: {len(slots)} slots, the same order"
        return [Finding("proved", claim, f"every state is equal up to rounding along {where}")]
    found = [_tell(slot, where, run) for slot in slots]
    known = [slot for slot in slots if slot.training is not None]
    strength = _weakest(known)
    shifts = {slot.shift for slot in known}
    if len(known) == len(slots) and len(shifts) == 1 and shifts != {0}:
        which = "later" if shifts == {1} else "earlier"
        found.append(
            Finding(
                strength,
                f"the server's states are those of one token {which}",
                f"every slot fits that shift best, along {where}",
            )
        )
    order = [slot.training for slot in known]
    if len({*order}) < len(order):
        twice = sorted({slot for slot in order if slot is not None and order.count(slot) > 1})
        found.append(
            Finding(
                strength,
                f"training slots {listed(tuple(twice))} are served more than once",
                f"served slots 0 to {len(slots) - 1} are training slots {_told(order)}",
            )
        )
    elif len(known) == len(slots) and order != sorted(order, key=lambda slot: slot or 0):
        found.append(
            Finding(
                strength,
                "the server's slots stand in another order",
                f"served slots 0 to {len(slots) - 1} are training slots {_told(order)}",
            )
        )
    for slot in unserved:
        found.append(
            Finding(
                strength,
                f"training slot {slot} is never served",
                f"the server's {len(slots)} slots are training slots {_told(order)}",
            )
        )
    return found


def _tell(slot: SlotMatch, where: str, run: Run) -> Finding:
    if slot.training is None:
        return Finding(
            "proved",
            f"the server's slot {slot.served} holds no state that can be compared",
            f"a value is not finite on one side at every token, along {where}",
        )
    what = f"training slot {slot.training}"
    if slot.norm == "after":
        what += " after a norm"
    elif slot.norm == "before":
        what += " before a norm"
    if slot.shift:
        what += f", one token {'later' if slot.shift > 0 else 'earlier'}"
    evidence = f"{share(slot.equal, slot.compared)} tokens are equal up to rounding, along {where}"
    left = run.length - slot.compared
    if left:
        evidence += f"; {left} of {run.length} tokens could not be compared"
    if slot.ties:
        evidence += f"; training slots {listed(slot.ties)} hold the same states"
    if not slot.whole:
        evidence += f"; median relative error {slot.error:.2g}, cosine {slot.cosine:.4f}"
        if not np.isnan(slot.runner_up):
            evidence += f"; the next nearest slot, {slot.runner_up:.2g}"
        if run.training != run.served:
            evidence += "; other tokens stand before it, on which states depend"
    verb = "is" if slot.whole else "is nearest to"
    ending = "" if slot.whole else ", not equal"
    return Finding(
        slot.strength, f"the server's slot {slot.served} {verb} {what}{ending}", evidence
    )


def _weakest(slots: list[SlotMatch]) -> Strength:
    strengths = {slot.strength for slot in slots}
    order: tuple[Strength, ...] = ("suggested", "measured", "proved")
    return next((strength for strength in order if strength in strengths), "suggested")


def _told(order: list[int | None]) -> str:
    return ", ".join(map(str, order))

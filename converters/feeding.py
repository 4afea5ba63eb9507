"""Which of the states that shards store feed a draft: what its config asks for, looked up."""

from typing import NamedTuple

from converters.draft_forms import LoadedDraft
from converters.listing import listed
from converters.shards import ShardSet
from eagle3_jax.errors import InputError


class Capture(NamedTuple):
    """Which stored states feed the draft.

    Attributes:
        slots: places in the shard's stored order.
        boundaries: what stands there; `None` where nobody says.
        source: who decided.
    """

    slots: tuple[int, ...]
    boundaries: tuple[int, ...] | None
    source: str


def choose_capture(
    draft: LoadedDraft, shards: ShardSet, slots: tuple[int, ...] | None = None
) -> Capture:
    """Which stored states feed the draft: those of `slots`, else those that its config names.

    Args:
        draft: with its boundaries, where its files say them.
        shards: with theirs.
        slots: the user's say, which wins (`--slots`).

    Raises:
        InputError: when a state is not stored, or nobody says which states are meant.
    """
    first, name = shards.files[0], _name(draft)
    stored, wanted = shards.info.boundaries, max(draft.config.num_aux, 1)
    told = f"{first.states} states" if stored is None else f"boundaries {listed(stored)}"
    if slots is not None:
        outside = [slot for slot in slots if not 0 <= slot < first.states]
        if len(slots) != wanted or outside:
            raise InputError(
                f"--slots is {listed(slots)}, expected {wanted} of 0 to {first.states - 1}: the "
                f"draft reads {wanted} states, {first.path} stores {told}"
            )
        named = None if stored is None else tuple(stored[slot] for slot in slots)
        return Capture(slots, named, "--slots")
    if stored is None or draft.config.num_aux == 0:
        return _capture_as_stored(draft, shards, wanted)
    if draft.boundaries is None:
        raise InputError(
            f"{name}: the config does not say which target states feed the draft, "
            f"expected --slots with {wanted} of 0 to {len(stored) - 1}: {first.path} stores {told}"
        )
    residual = shards.info.residual or ()
    if not set(draft.boundaries) <= set(residual):
        normed = ", the last one after the final norm" if residual != stored else ""
        raise InputError(
            f"{first.path}: stores boundaries {listed(stored)}{normed}, expected "
            f"{listed(draft.boundaries)}, which feed the draft {name}"
        )
    found = tuple(residual.index(boundary) for boundary in draft.boundaries)
    return Capture(found, draft.boundaries, draft.capture_source)


def _capture_as_stored(draft: LoadedDraft, shards: ShardSet, wanted: int) -> Capture:
    """The aux states of a layout that does not say which they are, in their order."""
    first, info = shards.files[0], shards.info
    if draft.config.num_aux == 0:
        return Capture((first.states - 1,), None, f"the layout of the shards, {first.layout}")
    held = {first.states - 1, first.states}
    if info.last_state is not None:
        held = {first.states} if info.last_state == "absent" else {first.states - 1}
    if wanted not in held:
        raise InputError(
            f"{first.path}: stores {first.states} states and does not say which, expected --slots "
            f"with the {wanted} of 0 to {first.states - 1} that feed the draft {_name(draft)}"
        )
    source = f"the layout of the shards, {first.layout}, which does not say which states these are"
    return Capture(tuple(range(wanted)), None, source)


def _name(draft: LoadedDraft) -> str:
    return "in memory" if draft.path is None else str(draft.path)

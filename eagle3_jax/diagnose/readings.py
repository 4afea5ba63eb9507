"""The ways in which a draft can be wired: axes of choices, each choice a change of a `Case`.

One axis holds what excludes each other. A reading takes at most one option of each axis; none of
them is the draft as configured.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from eagle3_jax.config import (
    AttentionConfig,
    DraftConfig,
    LatentAttentionConfig,
    RopeConfig,
    YarnScaling,
)
from eagle3_jax.diagnose.cases import Case, Setting
from eagle3_jax.diagnose.rewiring import forgettable, repair_rope, swap_halves, swap_norms
from eagle3_jax.wiring import RESIDUALS

THETAS = (10_000.0, 50_000.0, 500_000.0, 1_000_000.0)  # of EAGLE's trainer, Kimi, Llama 3, Qwen
EXPORTED_YARN = YarnScaling(factor=32.0, original_max_positions=2048)  # what ModelOpt's export adds
_FEW = 60  # arrangements of stored states that are tried one by one


@dataclass(frozen=True)
class Option:
    """One choice that differs from the configured one; axis and label tell it from others.

    Attributes:
        axis: what is chosen.
        label: the choice, in words.
        change: the case under it.
        knobs: the fields of `DraftConfig` that say it, where some do.
        slots: the stored states that it feeds, where that is what it changes.
        weight: as how many changes it counts: what was fitted to texts counts as two.
    """

    axis: str
    label: str
    change: Callable[[Case], Case] = field(compare=False)
    knobs: dict[str, Any] = field(default_factory=dict, compare=False)
    slots: tuple[int, ...] | None = field(default=None, compare=False)
    weight: int = field(default=1, compare=False)

    def __str__(self) -> str:
        """The axis and the choice."""
        return f"{self.axis}: {self.label}"


Reading = tuple[Option, ...]


def changes(reading: Reading) -> int:
    """As how many changes a reading counts."""
    return sum(option.weight for option in reading)


class Axis(NamedTuple):
    """What excludes each other.

    Attributes:
        name: what is chosen.
        configured: the draft's own choice, in words.
        options: the other ones.
    """

    name: str
    configured: str
    options: tuple[Option, ...]


class Known(NamedTuple):
    """What is at hand beside the draft.

    Attributes:
        table: the target's token embeddings, where the draft has its own.
        head: the target's head, `[Dt,V]`, where the draft has its own.
        rope: the target's rotary embedding.
    """

    table: Float[Array, "V D"] | None = None
    head: Float[Array, "Dt V"] | None = None
    rope: RopeConfig | None = None


def configured(
    config: DraftConfig,
    params: dict[str, Any],
    kernel: Float[Array, "D W"],
    target_ids: np.ndarray,
    table: Float[Array, "V D"] | None,
    slots: tuple[int, ...],
) -> Case:
    """The case that the draft's config describes."""
    return Case(
        params=params,
        kernel=kernel,
        target_ids=jnp.asarray(target_ids, jnp.int32),
        table=table,
        scale=jnp.float32(1.0),
        slots=_integer(slots),
        unit=_flag(False),
        pairing=_integer(1),
        base=_integer(0),
        pre_fc_norm=_flag(config.norm_before_fc or config.fc_norm),
        double_norm=_flag(config.double_norm),
        residual=_integer(int(config.norm_before_residual)),
        final_norm=_flag(config.final_norm),
        norm_output=_flag(config.norm_output),
        rope=_integer(0),
        advance=_integer(1),
    )


def change(case: Case, reading: Reading) -> Case:
    """The case under all choices of a reading."""
    # What a vocabulary is learned from are the draft's words under all other choices.
    for option in sorted(reading, key=lambda option: option.axis == "vocabulary"):
        case = option.change(case)
    return case


def ropes_of(config: DraftConfig, known: Known) -> tuple[RopeConfig, ...]:
    """Rotary embeddings to try, the configured one first."""
    own = config.rope
    found = [own, *(replace(own, theta=theta) for theta in THETAS)]
    if own.scaling is not None:
        found.append(replace(own, scaling=None))
    elif isinstance(config.attention, AttentionConfig):  # there a scaling changes the scores, too
        found.append(replace(own, scaling=EXPORTED_YARN))
    if known.rope is not None and known.rope.partial == own.partial:
        found += [replace(own, theta=known.rope.theta), known.rope]
    return tuple(dict.fromkeys(found))


def axes_of(setting: Setting, case: Case, known: Known) -> Iterator[Axis]:
    """Every axis but that of the states, for which see `state_axis`.

    Args:
        setting: of the search.
        case: as configured.
        known: what the target gives.
    """
    config = setting.config
    yield Axis(
        "states' norm",
        "as stored",
        (_set("states' norm", "each divided by its root mean square", unit=_flag(True)),),
    )
    names = {
        -1: "the state two tokens after",
        0: "the state of the same token",
        2: "the state two tokens before",
    }
    pairing = tuple(
        _set("pairing", f"{told} its embedding's", pairing=_integer(n)) for n, told in names.items()
    )
    yield Axis("pairing", "the state one token before its embedding's", pairing)
    yield _vocabulary(config, case)
    yield _residual(config)
    yield Axis(
        "fed back",
        "the normed state" if config.norm_output else "the raw state",
        (
            _set(
                "fed back",
                "the raw state" if config.norm_output else "the normed state",
                knobs={"norm_output": not config.norm_output},
                norm_output=_flag(not config.norm_output),
            ),
        ),
    )
    yield from _norms(config, case)
    yield _embeddings(config, case, known)
    yield _rope(setting)
    steps = tuple(
        _set("position advance", told, advance=_integer(n))
        for n, told in ((0, "none: every step at the first one's position"), (2, "two each step"))
    )
    yield Axis("position advance", "one each step", steps)
    yield Axis(
        "position base", "0", (_set("position base", "1, as speculators counts", base=_integer(1)),)
    )
    if known.head is not None and config.head == "own":
        rows = known.head[:, np.minimum(np.asarray(case.target_ids), known.head.shape[1] - 1)]
        if rows.shape == case.kernel.shape:
            option = _set("head", "the target's rows", kernel=rows.astype(case.kernel.dtype))
            yield Axis("head", "the draft's own", (option,))


def state_axis(
    current: tuple[int, ...],
    places: int,
    names: tuple[str, ...],
    *,
    configured: tuple[int, ...] | None = None,
) -> Axis:
    """Arrangements of stored states near one: other sets, other orders, all moved by some places.

    Args:
        current: places that feed the draft.
        places: how many there are to choose from.
        names: what to call each.
        configured: places that feed the draft as its config says; by default `current`.
    """
    count = len(current)
    found: list[tuple[int, ...]] = []
    if math.comb(places, count) <= _FEW:
        found += itertools.combinations(range(places), count)
    else:
        shifts = (tuple(slot + by for slot in current) for by in (-1, 1, -2, 2))
        found += (slots for slots in shifts if min(slots) >= 0 and max(slots) < places)
        for place, other in itertools.product(range(count), range(places)):
            found.append((*current[:place], other, *current[place + 1 :]))
    found += itertools.permutations(current)
    options = []
    for slots in dict.fromkeys(found):
        if slots != current and len(set(slots)) == count:
            told = ", ".join(names[slot] for slot in slots)
            moved = {slot - was for slot, was in zip(slots, configured or current, strict=True)}
            if len(moved) == 1 and 0 not in moved:
                told += f" (all moved by {moved.pop():+d})"
            options.append(Option("states", told, _setter(slots=_integer(slots)), slots=slots))
    return Axis("states", ", ".join(names[slot] for slot in current), tuple(options))


def _vocabulary(config: DraftConfig, case: Case) -> Axis:
    """Offsets taken for ids, the reverse, and a mapping that was lost."""
    ids, rows = np.asarray(case.target_ids), np.arange(config.draft_vocab_size)
    last = config.vocab_size - 1
    candidates = {
        "no d2t: the first ids": rows,
        "d2t holds ids, not offsets": np.clip(ids - rows, 0, last),
        "d2t holds offsets, not ids": np.clip(ids + rows, 0, last),
    }
    options = tuple(
        _set("vocabulary", label, target_ids=jnp.asarray(other, jnp.int32))
        for label, other in candidates.items()
        if not np.array_equal(other, ids)
    )
    return Axis("vocabulary", "as d2t says", options)


def _residual(config: DraftConfig) -> Axis:
    own = int(config.norm_before_residual)
    told = {"raw": "the raw state", "normed": "the normed state", "embedding": "the embedding"}
    options = []
    for number, name in enumerate(RESIDUALS):
        if number != own:
            knobs = {} if name == "embedding" else {"norm_before_residual": name == "normed"}
            options.append(_set("residual", told[name], knobs=knobs, residual=_integer(number)))
    return Axis("residual", told[RESIDUALS[own]], tuple(options))


def _norms(config: DraftConfig, case: Case) -> Iterator[Axis]:
    if config.norm_before_fc or config.fc_norm:
        option = _set("norm before fc", "skipped", pre_fc_norm=_flag(False))
        yield Axis("norm before fc", "applied", (option,))
    times = ("once", "twice, as ModelOpt's trainer has it")
    double = config.double_norm
    option = _set(
        "norm of the hidden half",
        times[not double],
        knobs={"double_norm": not double},
        double_norm=_flag(not double),
    )
    yield Axis("norm of the hidden half", times[double], (option,))
    if config.final_norm:
        option = _set("final norm", "skipped", final_norm=_flag(False))
        yield Axis("final norm", "applied", (option,))
    yield Axis(
        "norms before attention",
        "each its own",
        (Option("norms before attention", "swapped", _with_params(swap_norms)),),
    )
    yield Axis(
        "halves",
        "the embedding first",
        (Option("halves", "the hidden state first", _with_params(swap_halves)),),
    )
    dropped = tuple(
        Option("tensors", f"{name} dropped", _with_params(forget))
        for name, forget in forgettable(case.params)
    )
    yield Axis("tensors", "all in use", dropped)


def _embeddings(config: DraftConfig, case: Case, known: Known) -> Axis:
    root = math.sqrt(config.hidden_size)
    options = [
        _set("embedding", "times the root of its width", scale=jnp.float32(root)),
        _set("embedding", "divided by the root of its width", scale=jnp.float32(1 / root)),
    ]
    if known.table is not None and case.table is not None and known.table.shape == case.table.shape:
        options.append(_set("embedding", "the target's table", table=known.table))
    return Axis("embedding", "as configured", tuple(options))


def _rope(setting: Setting) -> Axis:
    options = [
        _set("rope", rope_told(rope), knobs={"rope": rope}, rope=_integer(number))
        for number, rope in enumerate(setting.ropes)
        if number
    ]
    other = (
        "halves" if isinstance(setting.config.attention, LatentAttentionConfig) else "neighbours"
    )
    repair = _with_params(repair_rope(setting.config))
    options.append(Option("rope", f"{other} are paired", repair))
    return Axis("rope", rope_told(setting.ropes[0]), tuple(options))


def rope_told(rope: RopeConfig) -> str:
    """A rotary embedding in a few words."""
    scaling = rope.scaling
    name = (
        "no scaling" if scaling is None else type(scaling).__name__.removesuffix("Scaling").lower()
    )
    factor = "" if scaling is None else f" x {scaling.factor:g}"
    return f"theta {rope.theta:g}, {name}{factor}"


def _set(axis: str, label: str, knobs: dict[str, Any] | None = None, **values: Any) -> Option:
    return Option(axis, label, _setter(**values), knobs or {})


def _setter(**values: Any) -> Callable[[Case], Case]:
    return lambda case: case._replace(**values)


def _with_params(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Case], Case]:
    return lambda case: case._replace(params=change(case.params))


def _flag(value: bool) -> Array:
    return jnp.asarray(value, bool)


def _integer(value: Any) -> Array:
    return jnp.asarray(value, jnp.int32)

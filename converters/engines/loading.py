"""Which tensors of a file an engine reads, by their names, and which of its parameters stay bare.

A name is read where it is one of the spellings that the engine knows for its canonical name.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from converters.engines.base import Engine, Kind
from converters.listing import listed
from converters.names import FIRST, canonical_name
from converters.shapes import expected_shapes
from eagle3_jax.config import DraftConfig

_LATER = re.compile(r"^layers\.(\d+)\.(.+)$")
_BARE = ("lm_head.", "d2t", "t2d")
_OLD_NORMS = ("low", "mid", "high")
_MAPS = ("d2t", "t2d")
_LISTED = 3  # names in one message


class Names(NamedTuple):
    """Names of a file, sorted by whether an engine knows them.

    Attributes:
        read: canonical name -> name in the file.
        strange: the same for names that the engine does not know.
        kind: the engine's class, by which that was decided.
    """

    read: dict[str, str]
    strange: dict[str, str]
    kind: Kind | None


class Loaded(NamedTuple):
    """What loading a file into an engine's parameters leaves.

    Attributes:
        dropped: canonical name -> why it is never used.
        missing: parameters that no tensor fills.
        refused: why the loader stops, a statement each.
    """

    dropped: dict[str, str]
    missing: tuple[str, ...]
    refused: tuple[str, ...]


def sort_names(names: Iterable[str], engine: Engine, kind: Kind | None) -> Names:
    """The names that an engine knows, and the others.

    Args:
        names: as in the file.
        engine: who reads them.
        kind: its class, which decides the prefixes.
    """
    found = Names({}, {}, kind)
    for name in sorted(names):
        canonical = canonical_name(name)
        known = name in _spellings(canonical, engine, kind)
        (found.read if known else found.strange)[canonical] = name
    return found


def fill(
    names: Names,
    config: DraftConfig,
    engine: Engine,
    extra: Iterable[str],
    why: Callable[[str], str],
) -> Loaded:
    """Load tensors by name into the parameters of a draft.

    Args:
        names: of the file.
        config: what the engine builds.
        engine: what it does about strange and missing names.
        extra: further parameters that it fills from the file.
        why: canonical name -> the reason that the engine has no use for such a tensor.
    """
    later = engine.dialect.later_norm
    wanted = {_later_norm(name, later) for name in expected_shapes(config)} | set(extra)
    dropped: dict[str, str] = {}
    unplaced: list[str] = []
    for canonical, name in names.strange.items():
        dropped[canonical] = f"{name} is no name that it knows"
        unplaced.append(name)
    for canonical, name in names.read.items():
        if canonical in wanted or canonical == "d2t":
            continue
        if canonical == "t2d":
            dropped[canonical] = "it goes by d2t alone"
        elif _is_idle_norm(canonical, later):
            dropped[canonical] = f"it norms with {later} there"
        else:
            dropped[canonical] = why(canonical)
            if names.kind == "latent" or not canonical.startswith(engine.silent):
                unplaced.append(name)
    missing = tuple(sorted(wanted - names.read.keys()))
    refused = []
    if unplaced and engine.unknown == "refused":
        refused.append(f"it has no parameter for {listed(unplaced, _LISTED)}")
    if missing and engine.absent == "refused":
        refused.append(f"it finds no tensor for {listed(missing, _LISTED)}")
    return Loaded(dropped, missing, tuple(refused))


def _spellings(canonical: str, engine: Engine, kind: Kind | None) -> Iterator[str]:
    """Every name under which an engine would find a tensor."""
    if canonical.startswith(_BARE):
        bodies: tuple[str, ...] = engine.prefixes if canonical in _MAPS else ("",)
        yield from (body + canonical for body in bodies)
        return
    bodies = engine.latent_prefixes if kind == "latent" else engine.prefixes
    rests = [canonical]
    later = _LATER.match(canonical)
    if later is not None:
        starts = engine.first
        if not canonical.startswith(FIRST):
            starts = tuple(start.format(i=later[1]) for start in engine.later)
        rests = [start + later[2] for start in starts]
    elif engine.old_norm_names and canonical.startswith("fc_norm.") and kind != "latent":
        index = canonical.split(".")[1]
        if index in ("0", "1", "2"):
            rests.append(f"aux_norm_{_OLD_NORMS[int(index)]}.weight")
    yield from (body + rest for body in bodies for rest in rests)


def _later_norm(name: str, later_norm: str) -> str:
    """The name of a later layer's input norm as the engine calls it."""
    later = _LATER.match(name)
    if later is None or later[1] == "0" or later[2] != "input_layernorm.weight":
        return name
    return f"layers.{later[1]}.{later_norm}.weight"


def _is_idle_norm(name: str, later_norm: str) -> bool:
    """Whether this is the norm of a later layer that the engine builds and never applies."""
    later = _LATER.match(name)
    norms = {"hidden_norm.weight", "input_layernorm.weight"} - {f"{later_norm}.weight"}
    return later is not None and later[1] != "0" and later[2] in norms

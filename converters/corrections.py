"""What to write where, so that a framework reads a draft as it was found to be wired."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from converters.conversion import fit_knobs
from converters.dialects import dialect_of
from converters.drafts import OpenDraft
from converters.writing import weights_dtype
from converters.written_configs import Surroundings, write_config
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError

SERVED = ("sglang", "vllm", "speculators", "specforge")  # whose configs people mend
_POSITIONS = 4096  # where nobody says; the same before and after, so that no difference shows it


class Correction(NamedTuple):
    """What one framework's config must say.

    Attributes:
        dialect: the framework.
        keys: (place, what it would say of the draft as configured, what it must say).
        refused: why it cannot say it; `None` where it can.
    """

    dialect: str
    keys: tuple[tuple[str, Any, Any], ...]
    refused: str | None = None


def corrections(
    draft: OpenDraft,
    config: DraftConfig,
    boundaries: tuple[int, ...] | None,
    *,
    dialects: Iterable[str] = SERVED,
) -> list[Correction]:
    """The keys that change in each framework's config.json.

    Args:
        draft: as opened.
        config: its config, corrected.
        boundaries: its capture, corrected.
        dialects: names of the frameworks.
    """
    found = []
    for name in dialects:
        try:
            before = _config(draft, name)
        except InputError:  # what stands in the way may be what is corrected
            before = {}
        try:
            after = _config(draft._replace(config=config, boundaries=boundaries), name)
        except InputError as error:
            found.append(Correction(name, (), str(error)))
            continue
        places = dict.fromkeys([*before, *after])
        keys = tuple(
            (place, before.get(place), after.get(place))
            for place in places
            if before.get(place) != after.get(place)
        )
        found.append(Correction(name, keys))
    return found


def _config(draft: OpenDraft, name: str) -> dict[str, Any]:
    """The config.json that a framework would get, with dotted names for nested keys."""
    dialect = dialect_of(name)
    positions = draft.max_positions or _POSITIONS
    changes = fit_knobs(draft, dialect, name, positions)
    around = Surroundings(positions, weights_dtype(changes.tensors), draft.target_name)
    return _flat(write_config(changes.config, dialect, draft.boundaries, around))


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        place = f"{above}{key}"
        found |= (
            _flat(value, f"{place}.") if isinstance(value, Mapping) and value else {place: value}
        )
    return found

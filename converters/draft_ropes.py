"""The rotation of a draft: what its file says, unless the user says otherwise."""

from converters.config_keys import Keys
from converters.dialects.base import Dialect
from converters.keys import read_object
from converters.ledger import Ledger
from converters.ropes import read_rope
from eagle3_jax.config import RopeConfig, YarnScaling

_PLAIN_ROPE = ("rope_theta", "partial_rotary_factor")  # what is left without a scaling


def read_draft_rope(keys: Keys, dialect: Dialect, ledger: Ledger) -> RopeConfig:
    """The rotation, as the file has it unless the user says otherwise."""
    values = dict(keys.values)
    settings = ledger.settings
    if "rope_scaling" in settings or "rope_theta" in settings:
        for holder in ("rope_parameters", "rope_scaling"):
            inner = read_object(values, holder, keys.where)
            if "rope_scaling" in settings:
                inner = {key: value for key, value in inner.items() if key in _PLAIN_ROPE}
            if "rope_theta" in settings:
                inner = {key: value for key, value in inner.items() if key != "rope_theta"}
                values["rope_theta"] = settings["rope_theta"]
            values[holder] = inner
    rope = read_rope(values, keys.where)
    source = _nested_source(keys, "rope_theta", dialect)
    ledger.settle("rope_theta", rope.theta, "--set" if "rope_theta" in settings else source)
    holders = [key for key in ("rope_parameters", "rope_scaling") if keys.values.get(key)]
    holders += ["rope_scaling"] if "rope_scaling" in keys.values else []
    scaled = keys.place(holders[0]) if holders else f"{dialect.name}'s default"
    ledger.settle("rope_scaling", rope.scaling, "--set" if "rope_scaling" in settings else scaled)
    ledger.settle(
        "partial_rotary_factor",
        rope.partial,
        _nested_source(keys, "partial_rotary_factor", dialect),
    )
    _doubt_rope(rope, dialect, ledger)
    return rope


def _nested_source(keys: Keys, key: str, dialect: Dialect) -> str:
    """Where a number of the rotation stands: at the top or in one of two holders."""
    if keys.values.get(key) is not None:
        return keys.place(key)
    for holder in ("rope_parameters", "rope_scaling"):
        nested = keys.values.get(holder)
        if isinstance(nested, dict) and nested.get(key) is not None:
            return f"{keys.place(holder)}.{key}"
    return f"{dialect.name}'s default"


def _doubt_rope(rope: RopeConfig, dialect: Dialect, ledger: Ledger) -> None:
    """What trainers are known to write that they did not train with."""
    scaling = rope.scaling
    added = dialect.added_yarn
    if isinstance(scaling, YarnScaling) and added == (
        scaling.factor,
        scaling.original_max_positions,
    ):
        ledger.notes.append(
            f"rope_scaling is yarn with factor {added[0]:g} over {added[1]} positions, which "
            f"{dialect.title} adds to drafts trained without: --set rope_scaling=none reads the "
            "training's"
        )
    if dialect.trained_theta not in (None, rope.theta):
        ledger.notes.append(
            f"rope_theta is {rope.theta:g}, but {dialect.title} trains with "
            f"{dialect.trained_theta:g} whatever it says: --set "
            f"rope_theta={dialect.trained_theta:g} reads the training's"
        )

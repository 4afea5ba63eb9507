"""What has to hold of a directory before it is read as a draft."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from converters.config_keys import Keys
from converters.features import LOSSES
from converters.names import FIRST, Names
from eagle3_jax.errors import InputError

_FOREIGN_TENSORS = (  # other kinds of draft, told by a tensor that only they have
    ("mask_hidden", "parallel drafting (P-EAGLE)"),
    ("parallel_draft_heads.", "parallel draft heads"),
    ("eh_proj.", "an eh_proj before attention"),
    ("experts.", "a mixture of experts"),
    ("g_proj.", "gated attention"),
)


def require_draft(raw: Mapping[str, Any], names: Names, directory: Path) -> None:
    """Refuse what is no EAGLE-3 draft, or another kind of it.

    Raises:
        InputError: for a tensor that only other drafts have, or without a midlayer.
    """
    for canonical, origin in sorted(names.origins.items()):
        for part, kind in _FOREIGN_TENSORS:
            if canonical.startswith(part) or f".{part}" in canonical:
                raise InputError(
                    f"{directory}: tensor {origin} belongs to {kind}, expected a dense EAGLE-3 "
                    "draft that drafts one token after another"
                )
    held = names.origins.keys()
    attention = FIRST + "self_attn."
    queries = {attention + "q_proj.weight", attention + "q_a_proj.weight"}
    missing = []
    if FIRST + "hidden_norm.weight" not in held:
        missing.append(FIRST + "hidden_norm.weight")
    if not queries & held:
        missing.append(attention + "q_proj.weight")
    if missing:
        named = raw.get("architectures")
        found = named[0] if isinstance(named, list) and named else raw.get("model_type")
        raise InputError(
            f"{directory}: not an EAGLE-3 draft: found {found!r} without "
            f"{' or '.join(missing)}, expected a midlayer that reads [embedding, hidden]"
        )


def require_known(allowed: frozenset[str], keys: Keys, names: Names, where: str) -> None:
    """Refuse a name that `--allow` could not mean: a typo would pass for consent.

    Raises:
        InputError: for a name that is neither a loss nor a key or tensor of the draft.
    """
    known = LOSSES | keys.values.keys() | keys.nested.keys() | set(names.origins.values())
    for name in sorted(allowed - known):
        raise InputError(
            f"{where}: --allow {name} is neither a key nor a tensor of this draft, expected one, "
            f"or one of {', '.join(sorted(LOSSES))}"
        )

"""Tensor names of each dialect <-> canonical names.

Canonical: `layers.{i}.*`, `fc.weight`, `norm.weight`, ... without a prefix, and
`input_layernorm` for the one input norm of the layers after the first.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from converters.dialects.base import Dialect
from eagle3_jax.config import DraftConfig, LatentAttentionConfig
from eagle3_jax.errors import InputError

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
FIRST = "layers.0."
_RENAMES = (
    (re.compile(r"^(eagle_module|draft_model)\."), ""),
    (re.compile(r"^model\."), ""),
    (re.compile(r"^midlayer\.(?=\d+\.)"), "layers."),
    (re.compile(r"^midlayer\."), FIRST),
    (re.compile(r"^aux_norm_low\."), "fc_norm.0."),
    (re.compile(r"^aux_norm_mid\."), "fc_norm.1."),
    (re.compile(r"^aux_norm_high\."), "fc_norm.2."),
)
_LATER = re.compile(r"^layers\.(?!0\.)(\d+)\.(.+)$")
_BARE = ("lm_head.", "d2t", "t2d")  # names that no framework prefixes
# What other parts of training store, and what a config says already.
_USELESS = (
    (
        re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$"),
        "computed from the config",
    ),
    (re.compile(r"^verifier_(norm|lm_head)\."), "the target's, which only a loss reads"),
)


class Names(NamedTuple):
    """How the tensors of a file are called.

    Attributes:
        origins: canonical name -> name in the file.
        useless: name in the file -> why nothing reads it.
    """

    origins: dict[str, str]
    useless: dict[str, str]


def canonical_name(name: str) -> str:
    """The name of a tensor without the framework's prefixes."""
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    return name


def canonical_names(names: Iterable[str], dialect: Dialect, where: str) -> Names:
    """Every name of a file under its canonical name.

    Args:
        names: as in the file.
        dialect: decides which of two norms the layers after the first use.
        where: the file or directory, for messages.

    Raises:
        InputError: when two names mean one tensor.
    """
    found = Names({}, {})
    names = sorted(names)
    canonical = {name: canonical_name(name) for name in names}
    held = set(canonical.values())
    for name, plain in canonical.items():
        reasons = [why for pattern, why in _USELESS if pattern.search(plain)]
        later = _LATER.match(plain)
        if later and later[2] in ("hidden_norm.weight", "input_layernorm.weight"):
            plain = f"layers.{later[1]}.input_layernorm.weight"
            used = f"layers.{later[1]}.{dialect.later_norm}.weight"
            if used in held and canonical[name] != used:
                reasons.append(f"{dialect.title} norms with {dialect.later_norm} there")
        if reasons:
            found.useless[name] = reasons[0]
        elif plain in found.origins:
            raise InputError(
                f"{where}: {found.origins[plain]} and {name} are both {plain}, expected one"
            )
        else:
            found.origins[plain] = name
    return found


def written_name(name: str, dialect: Dialect, config: DraftConfig) -> str:
    """A canonical name as a dialect writes it."""
    if name.startswith(_BARE):
        return name
    if name.startswith(FIRST):
        latent = isinstance(config.attention, LatentAttentionConfig)
        first = dialect.latent_first_layer if latent else dialect.first_layer
        if config.num_layers > 1 and dialect.later_layers.startswith(first):
            first = dialect.later_layers.format(i=0)
        return first + name.removeprefix(FIRST)
    later = _LATER.match(name)
    if later:
        rest = later[2]
        if rest == "input_layernorm.weight":
            rest = f"{dialect.later_norm}.weight"
        return dialect.later_layers.format(i=later[1]) + rest
    return dialect.prefix + name

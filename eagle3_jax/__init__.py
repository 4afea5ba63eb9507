"""The reference EAGLE-3 draft model in JAX.

The public names load their modules, and with them JAX, when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3_jax.config import AttentionConfig, DraftConfig, RopeConfig, TargetConfig
    from eagle3_jax.errors import InputError
    from eagle3_jax.metrics import figures
    from eagle3_jax.model import Drafter, head_kernel
    from eagle3_jax.rollout import Own, unroll
    from eagle3_jax.structs import Document, DraftStep, Features
    from eagle3_jax.target import Target
    from eagle3_jax.vocab import VocabMap

__all__ = [
    "AttentionConfig",
    "Document",
    "DraftConfig",
    "DraftStep",
    "Drafter",
    "Features",
    "InputError",
    "Own",
    "RopeConfig",
    "Target",
    "TargetConfig",
    "VocabMap",
    "figures",
    "head_kernel",
    "unroll",
]

_HOME = {
    "config": ("AttentionConfig", "DraftConfig", "RopeConfig", "TargetConfig"),
    "errors": ("InputError",),
    "metrics": ("figures",),
    "model": ("Drafter", "head_kernel"),
    "rollout": ("Own", "unroll"),
    "structs": ("Document", "DraftStep", "Features"),
    "target": ("Target",),
    "vocab": ("VocabMap",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

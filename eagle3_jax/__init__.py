"""The reference EAGLE-3 draft model in JAX.

    draft = place_draft(converters.load_draft(path))         (config, params, vocab) on the device
    counts = evaluate_documents(draft, documents, slots=slots)
    figures(counts), intervals(counts)                       tokens per round, and how sure
    diagnose_draft(draft, documents, slots=slots).verdict    wired as trained, or how else

The public names load their modules, and with them JAX, when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3_jax.batches import stack
    from eagle3_jax.checkpoints import Checkpoint, write_checkpoint
    from eagle3_jax.config import AttentionConfig, DraftConfig, RopeConfig, TargetConfig
    from eagle3_jax.diagnose.draft import Diagnosis, diagnose_draft
    from eagle3_jax.diagnose.readings import Known
    from eagle3_jax.drafts import Draft, cast, place_draft
    from eagle3_jax.errors import InputError
    from eagle3_jax.evaluate import evaluate_documents
    from eagle3_jax.heads import TargetHead
    from eagle3_jax.metrics import Counts, figures, intervals
    from eagle3_jax.model import Drafter, head_kernel
    from eagle3_jax.rollout import Own, unroll
    from eagle3_jax.structs import Document, DraftStep, Features
    from eagle3_jax.target import Target
    from eagle3_jax.vocab import VocabMap

__all__ = [
    "AttentionConfig",
    "Checkpoint",
    "Counts",
    "Diagnosis",
    "Document",
    "Draft",
    "DraftConfig",
    "DraftStep",
    "Drafter",
    "Features",
    "InputError",
    "Known",
    "Own",
    "RopeConfig",
    "Target",
    "TargetConfig",
    "TargetHead",
    "VocabMap",
    "cast",
    "diagnose_draft",
    "evaluate_documents",
    "figures",
    "head_kernel",
    "intervals",
    "place_draft",
    "stack",
    "unroll",
    "write_checkpoint",
]

_HOME = {
    "batches": ("stack",),
    "checkpoints": ("Checkpoint", "write_checkpoint"),
    "config": ("AttentionConfig", "DraftConfig", "RopeConfig", "TargetConfig"),
    "diagnose.draft": ("Diagnosis", "diagnose_draft"),
    "diagnose.readings": ("Known",),
    "drafts": ("Draft", "cast", "place_draft"),
    "errors": ("InputError",),
    "evaluate": ("evaluate_documents",),
    "heads": ("TargetHead",),
    "metrics": ("Counts", "figures", "intervals"),
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


def __dir__() -> list[str]:
    return list(__all__)

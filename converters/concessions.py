"""What a draft gives up, or is given, on its way into another dialect."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from converters.dialects.base import Dialect
from converters.drafts import OpenDraft, in_memory
from converters.features import FEATURES, Feature, grouped
from converters.shapes import expected_shapes
from converters.tensors import Tensor
from eagle3_jax.config import DraftConfig
from eagle3_jax.errors import InputError

_BIASES = {
    "attention_bias",
    "output_bias",
    "mlp_bias",
    "fc_bias",
    "qk_norm_output_bias",
    "qk_norm_mlp_bias",
}


class Changes:
    """What fitting has done so far."""

    def __init__(self, draft: OpenDraft) -> None:
        """Nothing has been done yet."""
        self.config = draft.config
        self.tensors: dict[str, Tensor] = dict(draft.tensors)
        self.embeddings = draft.embeddings
        self.notes: list[str] = []
        self.dropped: dict[str, str] = {}
        self.added: dict[str, str] = {}

    def drop(self, config: DraftConfig, reason: str) -> None:
        """Go on with a smaller draft; its tensors are dropped for the reason."""
        self.config = config
        for name in self.tensors.keys() - expected_shapes(config).keys():
            self.dropped[name] = reason
            del self.tensors[name]

    def add(self, name: str, tensor: Tensor, source: str) -> None:
        """Put a tensor in its place."""
        self.tensors[name] = tensor
        self.added[name] = source


def concede(
    changes: Changes,
    dialect: Dialect,
    where: str,
    max_positions: int,
    allowed: Collection[str],
) -> None:
    """Go on without the features that the user gives up; refuse the others, all in one line."""
    lacks = dict(dialect.lacks)
    if dialect.latent_architecture is None:
        lacks.setdefault("latent_attention", "it attends with grouped queries")
    refused: list[tuple[str, Feature]] = []
    for name, reason in lacks.items():
        feature = FEATURES[name]
        if not feature.holds(changes.config, max_positions):
            continue
        if feature.concede is None or name not in allowed:
            refused.append((name, feature))
            continue
        changes.notes.append(f"{feature.told} is given up (--allow {name}): {reason}")
        changes.drop(feature.concede(changes.config), f"--allow {name}")
    if refused:
        told = "; ".join(f"{feature.told}: {lacks[name]}" for name, feature in refused)
        options = " ".join(f"--allow {name}" for name, feature in refused if feature.concede)
        hopeless = any(feature.concede is None for _, feature in refused)
        end = "" if hopeless else f" ({options} accepts that)"
        raise InputError(f"{where}: {dialect.name} has no place for {told}{end}")


def drop_zero_biases(changes: Changes, dialect: Dialect) -> None:
    """Biases that the dialect lacks and that add nothing go without asking."""
    for name in sorted(_BIASES & dialect.lacks.keys()):
        feature = FEATURES[name]
        if not feature.holds(changes.config, 0):
            continue
        assert feature.concede is not None, "a bias can be left out"
        without = feature.concede(changes.config)
        extra = changes.tensors.keys() - expected_shapes(without).keys()
        if all(not np.any(in_memory(changes.tensors[tensor])) for tensor in extra):
            changes.notes.append(f"{feature.told} is all zeros and left out: {dialect.lacks[name]}")
            changes.drop(without, "all zeros")


def complete_biases(changes: Changes, dialect: Dialect) -> None:
    """Zeros for the biases that the dialect's one flag brings along."""
    attention = grouped(changes.config)
    if attention is None:
        return
    together = dialect.biases == "qkvo" and (attention.bias or attention.output_bias)
    headless = attention.qk_norm and "qk_norm_output_bias" in dialect.lacks
    bias = attention.bias or together
    output = attention.output_bias or (together and not headless)
    output = output or (dialect.fc_bias_brings_output_bias and changes.config.fc_bias)
    whole = replace(attention, bias=bias, output_bias=output)
    if whole == attention:
        return
    changes.config = replace(changes.config, attention=whole)
    for name, shape in expected_shapes(changes.config).items():
        if name not in changes.tensors and name.endswith(".bias"):
            like = changes.tensors[name.removesuffix("bias") + "weight"]
            changes.add(name, np.zeros(shape, like.dtype), f"zeros, {dialect.name} has it there")
    changes.notes.append(
        f"biases of zeros are added where one flag of {dialect.title} brings them along"
    )

"""The named stages of a draft step, in the order in which they are computed.

    aux -> fc_input -> fc              step 0 only: fc_input is aux after the norms before fc
    token -> embedding, hidden         what the first layer reads at this step
    layers.i: norms -> q, k, v -> RoPE -> scores -> attention -> residual -> MLP
    output -> head_input -> logits     state is what the next step is fed

A trace holds columns, not rows of a batch: a column is (row, position at step 0), so texts of any
length, padded batches and servers that go on with one column a request have one form. Its position
at step k is k further on.
"""

from typing import NamedTuple

import numpy as np

ONCE = ("aux", "fc_input", "fc")  # at step 0 only
LOGITS, TOP = 1024, 8  # draft ids whose logits a trace keeps at most, and how many of the best
_BEFORE = (*ONCE, "token", "embedding", "hidden")
_FIRST = ("embedding_normed", "hidden_normed")  # of the first layer
_LATER = ("input_normed",)  # of the others
_LAYER = (
    "q",
    "k",
    "v",
    "q_normed",
    "k_normed",
    "q_rotated",
    "k_rotated",
    "scores_lse",
    "scores_max",
    "attention",
    "attention_out",
    "residual",
    "residual_normed",
    "gate",
    "up",
    "mlp",
)
_AFTER = (
    "output",
    "head_input",
    "state",
    "logits",
    "logits_lse",
    "top_logits",
    "top_ids",
)


class Step(NamedTuple):
    """One draft step of some columns.

    Attributes:
        rows: `[N]`, the text or request of each column, from 0.
        columns: `[N]`, its position at step 0.
        stages: by name `[N, width]`; heads lie side by side.
    """

    rows: np.ndarray
    columns: np.ndarray
    stages: dict[str, np.ndarray]


class Trace(NamedTuple):
    """Steps 0, 1, ... of one draft.

    Attributes:
        steps: in order.
        metadata: what is known besides, as text.
    """

    steps: tuple[Step, ...]
    metadata: dict[str, str]


def stage_names(layers: int) -> tuple[str, ...]:
    """Every stage of a draft of so many layers, in order."""
    names: list[str] = [*_BEFORE]
    for index in range(layers):
        own = _LATER if index else _FIRST
        names += [f"layers.{index}.{name}" for name in (*own, *_LAYER)]
    return (*names, *_AFTER)


def layers_of(names: set[str]) -> int:
    """How many layers some stages are of; at least one."""
    numbers = {name.split(".")[1] for name in names if name.startswith("layers.")}
    return max((int(number) for number in numbers if number.isdecimal()), default=0) + 1


def logit_ids(size: int) -> np.ndarray:
    """The draft ids whose logits a trace keeps: all, or as many as `LOGITS`, evenly spread."""
    count = min(size, LOGITS)
    return np.arange(count) * size // count

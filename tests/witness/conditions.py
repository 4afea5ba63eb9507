"""Comparisons that are no largest difference in float32: in bfloat16, and of a window that stays.

Two computations in bfloat16 differ by their roundings, which are of no fixed size. So the measure
is the framework's own: how far its bfloat16 is from its float32 of the same numbers. Two roundings
of that size, independent of each other, are sqrt(2) of it apart; a norm too many is a hundred.
"""

from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from eagle3_jax import rollout
from eagle3_jax.config import DraftConfig
from eagle3_jax.structs import View
from tests.witness.frameworks import Run, Steps, compute, forward, pair

# What `Rounding.apart` may be: ours may round up to sqrt(3) as much as theirs.
ALLOWED_APART = 2.0


class Rounding(NamedTuple):
    """Root mean squares over all numbers that are compared, which are of order 1.

    Attributes:
        theirs: of the framework's bfloat16 less its float32.
        ours: of our bfloat16 less our float32, of `theirs`.
        apart: of our bfloat16 less the framework's, of `theirs`.
    """

    theirs: float
    ours: float
    apart: float

    @property
    def is_rounding(self) -> bool:
        """Whether both have rounded, about as much."""
        return self.theirs > 1e-3 and 0.5 < self.ours < ALLOWED_APART


def compare_rounding(run: Run, config: DraftConfig) -> Rounding:
    """How far ours is from a framework in bfloat16.

    Args:
        run: one in bfloat16.
        config: the framework's reading of its knobs.
    """
    assert run.exact is not None, f"{run.name} is not in bfloat16"
    half, full = forward(run, config, "bfloat16"), forward(run, config)
    in_half, in_full = pair(half, run.outputs), pair(full, run.exact)

    def distance(pairs: list[tuple[np.ndarray, np.ndarray]]) -> float:
        squares = [np.square(a - b).ravel() for a, b in pairs]
        return float(np.sqrt(np.mean(np.concatenate(squares))))

    theirs = distance([(a[1], b[1]) for a, b in zip(in_half, in_full, strict=True)])
    ours = distance([(a[0], b[0]) for a, b in zip(in_half, in_full, strict=True)])
    return Rounding(theirs, ours / theirs, distance(in_half) / theirs)


def forward_with_a_window_that_stays(run: Run, config: DraftConfig) -> Steps:
    """Our forward of a draft whose window counts from the column at every step.

    No longer than the window, the column's own steps are all of it then.
    """
    with patch.object(rollout, "View", lambda **given: View(**given | {"lead": 0})):
        return compute(run, config)

"""What the draft's own tensors tell, before any of them is used: some look as nobody trained them.

A loader that finds no tensor under the name it looks for may leave the module as it was made: a
norm's weight at one, a kernel or a bias at zero. Rounding can do the same to a norm's weight: near
one a bfloat16 moves by 1/128 or not at all.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from eagle3_jax.config import DraftConfig
from eagle3_jax.diagnose.findings import Finding
from eagle3_jax.diagnose.rewiring import tensor_name
from eagle3_jax.diagnose.sampling import count_due
from eagle3_jax.structs import Document

_HARDLY = 0.05  # of the largest block's norm: what random numbers of one size never come to
_COVERED = 0.5  # of what a vocabulary of the same size could hold of the text


def examine_weights(config: DraftConfig, params: dict[str, Any]) -> list[Finding]:
    """Look for tensors that hold what a module starts with, or what no training leaves.

    Args:
        config: of the draft.
        params: its tree.
    """
    found: list[Finding] = []
    ones, norms = [], 0
    for keys, values in _tensors(params):
        name, broken = tensor_name(keys), _count_broken(values)
        if broken:
            told = f"{broken:,} of {values.size:,} values are NaN or infinite"
            found.append(Finding("proved", f"{name} is broken", told))
        elif keys[-1] == "scale":
            norms += 1
            ones += [name] if (values == 1).all() else []
        elif keys[-1] == "kernel" and not values.any():
            told = f"all of {values.size:,} values"
            found.append(Finding("measured", f"{name} is zero everywhere", told))
    found += _judge_ones(ones, norms)
    if config.num_aux and "fc" in params:
        found += _judge_fc(np.asarray(params["fc"]["kernel"], np.float32), config.num_aux)
    return found


def require_finite(params: dict[str, Any]) -> None:
    """Refuse a draft of which a training that diverged is all that is left.

    Raises:
        ValueError: for the first tensor that holds a NaN or an infinity.
    """
    for keys, values in _tensors(params):
        broken = _count_broken(values)
        if broken:
            raise ValueError(
                f"{tensor_name(keys)} holds NaN or infinity in {broken:,} of {values.size:,} "
                "values, expected in none"
            )


def examine_vocabulary(target_ids: np.ndarray, documents: Iterable[Document]) -> list[Finding]:
    """See whether a draft vocabulary is one for these texts.

    Args:
        target_ids: `[W]`, the id that the draft means by each row of its head.
        documents: texts.
    """
    due = count_due(documents)
    if not due:
        return []
    held = sum(due[number] for number in set(target_ids.tolist())) / due.total()
    best = sum(count for _, count in due.most_common(len(target_ids))) / due.total()
    if held >= _COVERED * best:
        return []
    return [
        Finding(
            "measured",
            "the draft vocabulary is not one for these texts",
            f"its {len(target_ids):,} ids are {held:.1%} of the {due.total():,} answer tokens, as "
            f"many others could be {best:.1%}: d2t is lost or misread, or the draft is for others",
        )
    ]


def _tensors(params: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        yield tuple(str(part.key) for part in path), np.asarray(leaf, np.float32)


def _count_broken(values: np.ndarray) -> int:
    return int((~np.isfinite(values)).sum())


def _judge_ones(ones: list[str], norms: int) -> list[Finding]:
    if not ones:
        return []
    if len(ones) == norms:
        told = f"all of {norms}: lost on the way, or too small steps for the type they were kept in"
        return [Finding("suggested", "no norm's weight was trained: each is 1 everywhere", told)]
    told = f"the other {norms - len(ones)} norms are not: not trained, or lost on the way"
    return [Finding("measured", f"{name} is 1 everywhere", told) for name in ones]


def _judge_fc(kernel: np.ndarray, states: int) -> list[Finding]:
    """What fc reads of each state, by the size of its part."""
    sizes = [float(np.linalg.norm(part)) for part in np.split(kernel, states)]
    told = f"sizes of its parts: {', '.join(f'{size:.3g}' for size in sizes)}"
    return [
        Finding("measured", f"fc hardly reads the state at place {place}", told)
        for place, size in enumerate(sizes)
        if np.isfinite(sizes).all() and max(sizes) > 0 and size < _HARDLY * max(sizes)
    ]

"""Faults to plant in a draft or its shard, and what is known of the draft so that they can be told.

A fault changes what the config, the weights or the stored states say. The truth stays: the case
under which the draft was trained, on the states as they are stored. A reading names the fault when
it turns the configured case into that truth, whatever words it is told in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.config import DraftConfig, RopeConfig
from eagle3_jax.diagnose.cases import Case
from eagle3_jax.diagnose.readings import Known, configured
from eagle3_jax.heads import TargetHead
from eagle3_jax.structs import Document

LEARNED = 0.3  # of the text's tokens must be in what was learned of a draft vocabulary


class Subject(NamedTuple):
    """A draft as a user has it, its texts, and the truth about it.

    Attributes:
        name: of the draft.
        config: as configured; so are the parameters, ids and slots that follow.
        params: in float32.
        kernel: the head.
        target_ids: `[W]`.
        slots: stored states that feed the draft.
        documents: texts with states.
        places: what to call each stored state, and the embedding after them.
        table: `[V,D]`, token embeddings; `None`: those of the documents.
        head: what makes the target's logits, where the target is known.
        known: what the search may try of the target.
        truth: as trained, on the states as they are stored.
        rope: that the draft was trained with.
    """

    name: str
    config: DraftConfig
    params: dict[str, Any]
    kernel: jax.Array
    target_ids: np.ndarray
    slots: tuple[int, ...]
    documents: list[Document]
    places: tuple[str, ...]
    table: np.ndarray | None
    head: TargetHead | None
    known: Known
    truth: Case
    rope: RopeConfig

    def configured(self) -> Case:
        """The case that the config describes."""
        return configured(self.config, self.params, self.kernel, self.target_ids, None, self.slots)

    def truly(self, **changes: Any) -> "Subject":
        """The same with another truth."""
        return self._replace(truth=self.truth._replace(**changes))


Plant = Callable[[Subject], Subject]


@dataclass(frozen=True)
class Fault:
    """Something to plant.

    Attributes:
        family: of the table.
        name: of the fault in it.
        plant: the subject with the fault.
        axes: the axes of readings that it touches: two faults of a pair have none in common.
        known: false where no reading can be right: the diagnosis should not claim one.
    """

    family: str
    name: str
    plant: Plant
    axes: frozenset[str]
    known: bool = True


def joined(one: Fault, other: Fault) -> Fault:
    """Both at once."""
    return Fault(
        "pair",
        f"{one.family}: {one.name} + {other.family}: {other.name}",
        lambda subject: other.plant(one.plant(subject)),
        one.axes | other.axes,
    )


def pairs_of(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Pairs of faults on different axes, drawn without replacement."""
    good = [fault for fault in faults if fault.known]
    possible = [
        (one, other)
        for number, one in enumerate(good)
        for other in good[number + 1 :]
        if not one.axes & other.axes
    ]
    order = np.random.default_rng(seed).permutation(len(possible))[:count]
    return [joined(*possible[i]) for i in order]


def is_truth(
    subject: Subject, case: Case, ropes: tuple[RopeConfig, ...], *, learned: bool = False
) -> bool:
    """Whether a case is the one under which the draft was trained.

    Args:
        subject: with its fault.
        case: a reading of it.
        ropes: what `Case.rope` is a place in.
        learned: its draft vocabulary is learned from a few texts: it need not be whole.
    """
    truth = subject.truth
    names = ("unit", "pairing", "base", "double_norm", "residual", "norm_output", "advance")
    names += ("slots", "scale", "final_norm", "pre_fc_norm")
    alike = all(
        np.allclose(np.asarray(getattr(case, name)), np.asarray(getattr(truth, name)), rtol=1e-5)
        for name in names
    )
    if not alike or ropes[int(case.rope)] != subject.rope:
        return False
    same = jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-5)), case.params, truth.params)
    if not all(jax.tree.leaves(same)) or not bool(jnp.allclose(case.kernel, truth.kernel)):
        return False
    agree = np.asarray(case.target_ids) == np.asarray(truth.target_ids)
    if not learned:
        return bool(agree.all())
    due = np.concatenate([text.ids[text.answer] for text in subject.documents])
    counts = np.bincount(due, minlength=subject.config.vocab_size)[truth.target_ids]
    return bool(counts[agree].sum() >= LEARNED * counts.sum())

"""A draft vocabulary that was lost, as far as the text shows it.

Where the draft says row r and the text goes on with id i, again and again, r means i, whatever the
file says. Rows that the texts never show keep what the file says.
"""

import jax.numpy as jnp
import numpy as np

from eagle3_jax.diagnose.cases import Case, Setting, first_rows
from eagle3_jax.diagnose.readings import Option
from eagle3_jax.structs import Features


def learned_vocabulary(setting: Setting, batches: list[Features]) -> Option:
    """The choice to take each row of the head for the id that most often follows it.

    Args:
        setting: of the search.
        batches: texts to learn from; what is learned shows nothing on them.
    """

    def learn(case: Case) -> Case:
        said = [first_rows(setting, case, features) for features in batches]
        rows, due = (np.concatenate(parts) for parts in zip(*said, strict=True))
        ids = _likeliest(rows, due, np.asarray(case.target_ids))
        return case._replace(target_ids=jnp.asarray(ids))

    return Option("vocabulary", "another d2t, learned from the text", learn, weight=2)


def _likeliest(rows: np.ndarray, due: np.ndarray, target_ids: np.ndarray) -> np.ndarray:
    """The id that follows each row most often; the lowest among equals."""
    pairs, counts = np.unique(np.stack([rows, due]), axis=1, return_counts=True)
    order = np.lexsort((-pairs[1], counts))  # the last one written stays
    ids = target_ids.copy()
    ids[pairs[0, order]] = pairs[1, order]
    return ids

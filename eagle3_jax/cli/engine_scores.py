"""What each engine's way with a draft gives on the shards."""

from typing import Any

import numpy as np

from converters.engines import Served
from eagle3_jax.cli.engines import engine_row
from eagle3_jax.cli.inputs import Inputs
from eagle3_jax.diagnose.cases import Case, score
from eagle3_jax.diagnose.draft import Searched
from eagle3_jax.diagnose.served import served_case


def score_engine(
    inputs: Inputs, one: Served, tried: Searched | None, names: tuple[str, ...]
) -> dict[str, Any]:
    """One row of the engines' table.

    Args:
        inputs: draft and shards.
        one: the engine's reading.
        tried: the search, whose documents it is scored on; `None` where there was none.
        names: of each stored state, and of the embedding where it may be one.
    """
    accepted, why = None, one.refused or ""
    if tried is not None and one.config is not None and one.refused is None:
        case = _as_served(inputs, one, tried, names)
        if isinstance(case, str):
            why = case
        else:
            accepted = score(tried.setting, case, tried.data.fresh or tried.data.second).accepted()
    length = None if accepted is None else accepted + 1.0
    return {**engine_row(one), "tokens_per_round": length, "not_scored": why or None}


def _as_served(inputs: Inputs, one: Served, tried: Searched, names: tuple[str, ...]) -> Case | str:
    assert one.config is not None, "only what a DraftConfig says is scored"
    places = _by_boundary(inputs, tried, names)
    missing = [b for b in one.boundaries if b not in places]
    if missing:
        return f"the shards store no boundary {', '.join(map(str, missing))}"
    if one.head != inputs.draft.config.head:
        return f"its head is another one: {one.head}"
    ids = one.vocab if isinstance(one.vocab, np.ndarray) else one.vocab.target_ids
    own = inputs.draft.embeddings is not None
    if own and one.embeddings == "target":
        return "it reads the target's token embeddings"
    return served_case(
        tried.setting,
        tried.case,
        one.config,
        slots=tuple(places[b] for b in one.boundaries),
        target_ids=ids,
        unused=frozenset(one.dropped) | frozenset(one.missing),
        table=tried.case.table,
        kernel=tried.case.kernel,
        longest=tried.data.first[0].ids.shape[1],
    )


def _by_boundary(inputs: Inputs, tried: Searched, names: tuple[str, ...]) -> dict[int, int]:
    """The place of each boundary that the shards store, and of the embedding."""
    residual, draft = inputs.shards.info.residual, inputs.draft
    if residual is not None:
        found = {boundary: slot for slot, boundary in enumerate(residual)}
    else:
        slots = np.asarray(tried.case.slots).tolist()
        found = dict(zip(draft.boundaries or (), slots, strict=False))
    if names[-1] == "the embedding":
        found.setdefault(0, len(names) - 1)
    return found

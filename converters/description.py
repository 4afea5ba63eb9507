"""What a draft is, as facts to print: resolved values, captures in every numbering, vocabulary."""

import contextlib
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from converters.comparison import same_bytes
from converters.config_keys import NESTED
from converters.dialects import DIALECTS
from converters.drafts import OpenDraft
from converters.features import scaling_name
from converters.names import EMBEDDING
from converters.tensors import Tensor
from eagle3_jax.capture import default_boundaries, to_ids
from eagle3_jax.config import DraftConfig
from eagle3_jax.vocab import VocabMap

# Where a value is called otherwise in the ledger than in `DraftConfig`.
_NAMES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "bias": "attention_bias",
}


class Numbered(NamedTuple):
    """A capture as one framework has it.

    Attributes:
        dialect: its name.
        ids: what it states; `None` where it states none.
        place: where its config states them, or what it takes without any.
        fits: whether what it takes is the draft's capture; `None` where that is unknown.
    """

    dialect: str
    ids: list[int] | None
    place: str
    fits: bool | None


def values_of(config: DraftConfig) -> dict[str, Any]:
    """Every dimension and knob under the names of config files, in a readable order."""
    flat = asdict(config)
    attention, rope = flat.pop("attention"), flat.pop("rope")
    flat = {**flat, **attention}
    values = {_NAMES.get(name, name): value for name, value in flat.items()}
    scaling = rope["scaling"]
    values["rope_theta"] = rope["theta"]
    values["rope_scaling"] = None
    if scaling is not None:
        given = {name: value for name, value in scaling.items() if value is not None}
        values["rope_scaling"] = {"type": scaling_name(config.rope), **given}
    if rope["partial"] != 1.0:
        values["partial_rotary_factor"] = rope["partial"]
    return values


def numbered_captures(
    boundaries: tuple[int, ...] | None, target_layers: int | None
) -> list[Numbered]:
    """A capture as every framework states it, or takes it without being told."""
    usual = None
    if target_layers is not None:
        with contextlib.suppress(ValueError):  # a shallow target has no default
            usual = default_boundaries(target_layers)
    rows = []
    for dialect in DIALECTS.values():
        if dialect.name == "native" or not dialect.writable:
            continue
        if dialect.ids is None:
            fits = None if usual is None or boundaries is None else usual == boundaries
            rows.append(Numbered(dialect.name, None, "states none, takes 2, L//2, L-3", fits))
            continue
        place = NESTED if dialect.ids == "eagle_config" else "the config's top"
        ids = None if boundaries is None else to_ids(boundaries, dialect.numbering)
        rows.append(Numbered(dialect.name, ids, place, None if boundaries is None else True))
    return rows


def vocabulary_facts(vocab: VocabMap) -> dict[str, Any]:
    """Counts that show a lost or odd draft vocabulary at a glance."""
    ids, whole = vocab.target_ids, len(vocab.in_draft)
    return {
        "draft_vocab_size": len(ids),
        "vocab_size": whole,
        "share": len(ids) / whole,
        "lowest_id": int(ids.min()),
        "highest_id": int(ids.max()),
        "ascending": bool(np.all(np.diff(ids) > 0)),
        "first_ids_only": bool(np.array_equal(ids, np.arange(len(ids))) and len(ids) < whole),
        "whole": bool(len(ids) == whole),
        "gaps": int(np.count_nonzero(np.diff(ids) != 1)),
    }


def differences(one: OpenDraft, other: OpenDraft) -> list[tuple[str, Any, Any]]:
    """What tells two drafts apart: (what, in the first, in the second), nothing where equal."""
    rows: list[tuple[str, Any, Any]] = []
    mine = {**values_of(one.config), "boundaries": one.boundaries}
    theirs = {**values_of(other.config), "boundaries": other.boundaries}
    for name in dict.fromkeys([*mine, *theirs]):
        if mine.get(name) != theirs.get(name):
            rows.append((name, mine.get(name), theirs.get(name)))
    if not np.array_equal(one.vocab.target_ids, other.vocab.target_ids):
        shared = np.intersect1d(one.vocab.target_ids, other.vocab.target_ids).size
        here, there = (f"{len(d.vocab.target_ids)} ids, {shared} shared" for d in (one, other))
        rows.append(("draft vocabulary", here, there))
    ours, others = _tensors(one), _tensors(other)
    for name in sorted(ours.keys() | others.keys()):
        held, held_there = ours.get(name), others.get(name)
        if held is None or held_there is None or _told(held) != _told(held_there):
            rows.append((f"tensor {name}", _told(held), _told(held_there)))
        elif not same_bytes(held, held_there):
            rows.append((f"tensor {name}", _told(held), "same type and shape, other bytes"))
    return rows


def _tensors(draft: OpenDraft) -> dict[str, Tensor]:
    embeddings = {} if draft.embeddings is None else {EMBEDDING: draft.embeddings}
    return {**draft.tensors, **embeddings}


def _told(tensor: Tensor | None) -> str | None:
    return None if tensor is None else f"{tensor.dtype.name} {list(tensor.shape)}"

"""A draft into another dialect: what is written, and what becomes of every tensor.

Nothing is lost unless the user names it: what a dialect has no place for is refused, with the
option that accepts the loss.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from converters.comparison import same_bytes
from converters.concessions import Changes, complete_biases, concede, drop_zero_biases
from converters.dialects.base import Dialect
from converters.drafts import OpenDraft
from converters.features import grouped
from converters.names import EMBEDDING, HEAD, written_name
from converters.targets import OpenTarget
from converters.tensors import Tensor
from converters.vocabs import write_vocab
from eagle3_jax.capture import default_boundaries
from eagle3_jax.errors import InputError


class Fitted(NamedTuple):
    """A draft that a dialect can express.

    Attributes:
        draft: what is written; `dialect` is the new one.
        notes: what was added, left out or assumed on the way, a sentence each.
        dropped: canonical name -> why it is not written.
        added: canonical name -> where it came from.
    """

    draft: OpenDraft
    notes: tuple[str, ...]
    dropped: Mapping[str, str]
    added: Mapping[str, str]


def fit(
    draft: OpenDraft,
    dialect: Dialect,
    *,
    where: str,
    max_positions: int,
    allowed: Collection[str] = (),
    target: OpenTarget | None = None,
) -> Fitted:
    """Make a draft one that a dialect can express, or say why it cannot.

    Args:
        draft: as opened.
        dialect: who is to read it.
        where: the destination, for messages.
        max_positions: the longest context.
        allowed: losses that the user accepts.
        target: gives token embeddings or a head that the dialect wants in the file.

    Raises:
        InputError: for the first part or knob that it has no place for.
    """
    if not dialect.writable:
        raise InputError(f"{where}: {dialect.title} is only read, expected another dialect")
    changes = fit_knobs(draft, dialect, where, max_positions, allowed)
    _settle_head(changes, dialect, where, target)
    _settle_embeddings(changes, dialect, where, allowed, target)
    boundaries = _settle_boundaries(draft, changes, dialect, where, allowed, target)
    _require_map(draft, dialect, where)
    name = _target_name(draft, changes, dialect, target)
    fitted = draft._replace(
        config=changes.config,
        tensors=changes.tensors,
        embeddings=changes.embeddings,
        boundaries=boundaries,
        dialect=dialect,
        max_positions=max_positions,
        target_name=name,
    )
    return Fitted(fitted, tuple(changes.notes), changes.dropped, changes.added)


def fit_knobs(
    draft: OpenDraft,
    dialect: Dialect,
    where: str,
    max_positions: int,
    allowed: Collection[str] = (),
) -> Changes:
    """What of `fit` concerns the draft's own parts alone: its knobs, biases and norms.

    Raises:
        InputError: for the first of them that the dialect has no place for.
    """
    changes = Changes(draft)
    drop_zero_biases(changes, dialect)
    concede(changes, dialect, where, max_positions, allowed)
    complete_biases(changes, dialect)
    return changes


def _target_name(
    draft: OpenDraft, changes: Changes, dialect: Dialect, target: OpenTarget | None
) -> str | None:
    """Where the target is found, for a config that names it."""
    name = draft.target_name
    if name is None and target is not None:
        name = str(target.directory)
    if name is None and dialect.nested_config:
        changes.notes.append(
            "verifier.name_or_path is unknown and null: speculators looks the target up by it, and "
            "ends with an error (--target with the target's directory fills it in)"
        )
    return name


def written_tensors(draft: OpenDraft) -> dict[str, Tensor]:
    """Every tensor under the name that the draft's dialect gives it."""
    dialect, config = draft.dialect, draft.config
    tensors = {written_name(name, dialect, config): t for name, t in draft.tensors.items()}
    if draft.embeddings is not None:
        tensors[written_name(EMBEDDING, dialect, config)] = draft.embeddings
    if dialect.norm_output_is_final_norm and not config.final_norm:
        # Its class has the norm whether the head reads it or not.
        like = draft.tensors["fc.weight"]
        tensors["norm.weight"] = np.ones(config.hidden_size, like.dtype)
    return tensors | written_map(draft)


def written_map(draft: OpenDraft) -> dict[str, np.ndarray]:
    """The vocabulary tensors that the draft's dialect writes."""
    size, whole = len(draft.vocab.target_ids), len(draft.vocab.in_draft)
    if size == whole and not draft.dialect.whole_maps:
        return {}
    return {name: t for name, t in write_vocab(draft.vocab).items() if name in draft.dialect.maps}


def _settle_head(changes: Changes, dialect: Dialect, where: str, target: OpenTarget | None) -> None:
    """A head in the file, where the dialect takes it from nowhere else."""
    config = changes.config
    if config.head == "tied" and not dialect.tied_head:
        table, source = changes.embeddings, "the draft's token embeddings"
        if table is None and target is not None:
            table, source = target.embeddings, f"token embeddings of {target.directory}"
    elif config.head == "target" and not dialect.borrowed_head:
        table, source = None, ""
        if target is not None:
            table, source = target.head, f"the head of {target.directory}"
    else:
        return
    if table is None:
        raise InputError(
            f"{where}: the draft has no lm_head and {dialect.name} needs one in the file, expected "
            "--target with the target's directory, whose head the draft uses"
        )
    _require_width(table, config.vocab_size, config.hidden_size, where)
    changes.config = replace(config, head="own")
    changes.add(HEAD, table, source)
    changes.notes.append(f"lm_head is written out: {source}")


def _settle_embeddings(
    changes: Changes,
    dialect: Dialect,
    where: str,
    allowed: Collection[str],
    target: OpenTarget | None,
) -> None:
    """The token embeddings in the file or out of it, as the dialect wants them."""
    config, table = changes.config, changes.embeddings
    own_width = config.hidden_size != config.target_hidden_size
    if table is None:
        if dialect.embeddings == "needed":
            if target is None or own_width:
                raise InputError(
                    f"{where}: the draft holds no token embeddings and {dialect.name} would make "
                    "random ones, expected --target with the target's directory, whose embeddings "
                    "the draft uses"
                )
            _require_width(target.embeddings, config.vocab_size, config.hidden_size, where)
            changes.embeddings = target.embeddings
            changes.added[EMBEDDING] = f"token embeddings of {target.directory}"
        return
    if dialect.embeddings in ("own", "needed") or (own_width and dialect.embeddings != "unread"):
        return
    same = target is not None and not own_width and same_bytes(table, target.embeddings)
    if same and config.head != "tied":
        changes.embeddings = None
        changes.dropped[EMBEDDING] = "equal to the target's"
        return
    loses = dialect.embeddings == "unread" or (
        dialect.embeddings == "replaced" and target is not None
    )
    if not loses or same:
        if dialect.embeddings == "replaced" and not same:
            changes.notes.append(
                f"token embeddings are written, but {dialect.title} puts the target's in their "
                "place: --target with the target's directory tells whether they are the same"
            )
        return
    if "embed_tokens" not in allowed:
        others = (
            "differ from the target's" if target is not None else "may differ from the target's"
        )
        raise InputError(
            f"{where}: the draft's token embeddings {others}, and {dialect.name} takes the "
            "target's (--target DIR drops them when they are equal, --allow embed_tokens in any "
            "case)"
        )
    changes.embeddings = None
    changes.dropped[EMBEDDING] = "--allow embed_tokens"


def _require_width(table: Tensor, rows: int, columns: int, where: str) -> None:
    if tuple(table.shape) != (rows, columns):
        raise InputError(
            f"{where}: the target's table has shape {list(table.shape)}, expected "
            f"{[rows, columns]}, the draft's vocabulary and width"
        )


def _settle_boundaries(
    draft: OpenDraft,
    changes: Changes,
    dialect: Dialect,
    where: str,
    allowed: Collection[str],
    target: OpenTarget | None,
) -> tuple[int, ...] | None:
    """The capture that the file can state, and what to say where it cannot."""
    boundaries, config = draft.boundaries, changes.config
    if config.num_aux == 0:
        return boundaries
    if boundaries is None:
        counts = dialect.counts_ids or (grouped(config) is None and dialect.latent_counts_ids)
        if counts and config.num_aux != 3:
            raise InputError(
                f"{where}: {dialect.name} counts aux states by layer ids, and the draft has none "
                f"for its {config.num_aux}, expected --boundaries"
            )
        changes.notes.append(
            f"layer ids are unknown and not written: {dialect.title} will take its default, "
            "boundaries 2, L//2, L-3, which may not be what the draft was trained on"
        )
        return None
    if dialect.ids is not None:
        return boundaries
    if target is not None and "boundaries" not in allowed:
        try:
            usual = default_boundaries(target.num_layers)
        except ValueError as error:
            raise InputError(
                f"{where}: {dialect.name} states no layer ids, and {error} (--allow boundaries "
                "writes it all the same)"
            ) from None
        if usual != boundaries:
            raise InputError(
                f"{where}: {dialect.name} states no layer ids and takes boundaries {list(usual)} "
                f"of this target, but the draft reads {list(boundaries)} (--allow boundaries "
                "writes it all the same)"
            )
    else:
        changes.notes.append(
            f"boundaries {list(boundaries)} are not written: {dialect.title} states none and takes "
            "2, L//2, L-3 (--target checks that)"
        )
    return boundaries


def _require_map(draft: OpenDraft, dialect: Dialect, where: str) -> None:
    """Refuse ids in another order where nobody would look for it."""
    ids, whole = draft.vocab.target_ids, len(draft.vocab.in_draft)
    if np.all(np.diff(ids) > 0):
        return
    if len(ids) == whole and (dialect.order != "any" or not dialect.whole_maps):
        raise InputError(
            f"{where}: {dialect.name} heeds no d2t of a whole vocabulary, but the draft's is in "
            "another order"
        )
    if dialect.order == "none":
        raise InputError(
            f"{where}: {dialect.name} takes the ids of t2d as ascending, but the draft's are in "
            "another order"
        )

"""A draft, shards and token embeddings from disk, checked against each other.

Every check is made on headers and configs, before anything long begins, and names the file that
does not fit, what was found and what was expected.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from converters.drafts import LoadedDraft, Reading, load_draft
from converters.shards import LastState, ShardSet, open_shards
from converters.targets import OpenTarget
from eagle3_jax.drafts import Draft, place_draft
from eagle3_jax.errors import InputError
from eagle3_jax.heads import TargetHead


class Inputs(NamedTuple):
    """A draft, shards and token embeddings that fit together.

    Attributes:
        draft: as loaded; `params` as on disk.
        draft_path: where from.
        shards: one or more files, all of one layout and capture.
        params: the draft's parameters in float32.
        kernel: the head in float32, `[D,W]`.
        table: `[V,D]` token embeddings, or `None`: each shard's boundary 0.
        embeddings: where the embeddings come from, in words.
        head: where the head comes from, in words.
        target_head: what makes the target's logits of its last states; `None`: the text's tokens
            are what is due.
        due: what the predictions are compared with, in words.
    """

    draft: LoadedDraft
    draft_path: Path
    shards: ShardSet
    params: dict[str, Any]
    kernel: jax.Array
    table: np.ndarray | None
    embeddings: str
    head: str
    target_head: TargetHead | None
    due: str


def load(
    draft_path: Path,
    shard_paths: list[Path],
    target: OpenTarget | None = None,
    *,
    reading: Reading | None = None,
    layout: str | None = None,
    last_state: LastState | None = None,
    strict: bool = True,
    teacher: bool = True,
) -> Inputs:
    """Read a draft and the headers of shards, and see that they fit together.

    Args:
        draft_path: the draft's directory.
        shard_paths: shard files, directories of them or patterns.
        target: gives embeddings and heads, and what is due.
        reading: how the draft is to be read.
        layout: of the shards, where their keys do not tell.
        last_state: what the last stored state is, where the shards do not say.
        strict: a shard file that is broken is an error; else it is left out, and told.
        teacher: what is due is the target's choice, where a target is given.

    Raises:
        InputError: when something is missing, broken, or does not fit.
    """
    draft = load_draft(draft_path, reading)
    config = draft.config
    if not shard_paths:
        raise InputError("--shards names nothing, expected shard files or directories of them")
    shards = open_shards(shard_paths, layout=layout, num_aux=config.num_aux or None, strict=strict)
    shards = _with_last_state(shards, last_state)
    _require_width(shards, draft, draft_path)
    if target is not None:
        _require_target(target, draft, draft_path)
    table, embeddings = _embeddings(draft, draft_path, shards, target)
    placed, head = _place(draft, draft_path, table, target)
    target_head, due = _due(shards, target if teacher else None)
    return Inputs(
        draft,
        draft_path,
        shards,
        placed.params,
        placed.kernel,
        table,
        embeddings,
        head,
        target_head,
        due,
    )


def _with_last_state(shards: ShardSet, asked: LastState | None) -> ShardSet:
    """The shards, with what the user says of their last state."""
    said = shards.info.last_state
    if asked is None:
        return shards
    if said is not None and said != asked:
        raise InputError(
            f"{shards.files[0].path}: --last-state is {asked}, but the shards say {said}, expected "
            "no option"
        )
    return shards._replace(info=shards.info._replace(last_state=asked))


def _require_width(shards: ShardSet, draft: LoadedDraft, draft_path: Path) -> None:
    config = draft.config
    states = max(config.num_aux, 1)
    for file in shards.files:
        if states * file.width != config.aux_width:
            raise InputError(
                f"{file.path}: {states} states of width {file.width} make {states * file.width} "
                f"features, expected {config.aux_width} ({states} x {config.target_hidden_size}), "
                f"which the draft {draft_path} reads"
            )


def _require_target(target: OpenTarget, draft: LoadedDraft, draft_path: Path) -> None:
    found = (target.vocab_size, target.hidden_size)
    expected = (draft.config.vocab_size, draft.config.target_hidden_size)
    if found != expected:
        raise InputError(
            f"{target.directory}: a target of vocabulary {found[0]} and width {found[1]}, expected "
            f"{expected[0]} and {expected[1]}, which the draft {draft_path} was made for"
        )


def _embeddings(
    draft: LoadedDraft, draft_path: Path, shards: ShardSet, target: OpenTarget | None
) -> tuple[np.ndarray | None, str]:
    """The embedding table (`None`: each shard's boundary 0) and where it is from."""
    width = draft.config.hidden_size
    if draft.embeddings is not None:
        return draft.embeddings, f"the draft's own file, {draft_path}"
    if target is not None:
        _require_embeddings(target.directory, target.hidden_size, width, draft_path)
        return target.embeddings.read(), f"the target, {target.directory}"
    for file in shards.files:
        if file.embedding_width is None:
            raise InputError(
                f"{file.path}: stores no embeddings (boundary 0) and the draft {draft_path} "
                "holds none, expected --target with the target's directory"
            )
        _require_embeddings(file.path, file.embedding_width, width, draft_path)
    return None, "boundary 0 of the shards"


def _require_embeddings(path: Path, found: int, expected: int, draft_path: Path) -> None:
    if found != expected:
        raise InputError(
            f"{path}: token embeddings have width {found}, expected {expected}, the width of the "
            f"draft {draft_path}"
        )


def _place(
    draft: LoadedDraft, draft_path: Path, table: np.ndarray | None, target: OpenTarget | None
) -> tuple[Draft, str]:
    """The draft in float32, in which a count is the same on every machine; whose head it has."""
    source = {
        "own": f"the draft's own file, {draft_path}",
        "tied": "the draft's token embeddings",
        "target": "" if target is None else f"the target, {target.directory}",
    }[draft.config.head]
    theirs = None
    if draft.config.head == "target" and target is not None:
        if target.hidden_size != draft.config.hidden_size:
            raise InputError(
                f"{target.directory}: the head reads width {target.hidden_size}, expected "
                f"{draft.config.hidden_size}, the width of the draft {draft_path}, which has none"
            )
        theirs = jnp.asarray(target.head.read()).T
    try:
        return place_draft(draft, table=table, target_head=theirs), source
    except ValueError as error:
        raise InputError(
            f"{draft_path}: {error}; --target with the target's directory gives it"
        ) from error


def _due(shards: ShardSet, target: OpenTarget | None) -> tuple[TargetHead | None, str]:
    """What the predictions are compared with."""
    text, last = "the text's own tokens", shards.info.last_state
    if target is None:
        return None, text
    if last == "absent":
        return None, f"{text}: the shards store no last state of the target"
    if last is None:
        raise InputError(
            f"{shards.files[0].path}: does not say whether its last state is before or after the "
            "target's final norm, expected --last-state pre_norm or post_norm"
        )
    normed = last == "post_norm"
    norm = None if normed else jnp.asarray(target.norm.read(), jnp.float32)
    kernel = jnp.asarray(target.head.read(), jnp.float32).T
    stored = "after" if normed else "before"
    told = f"the likeliest token of {target.directory} (last state stored {stored} the final norm)"
    return TargetHead(kernel, norm, target.rms_norm_eps), told

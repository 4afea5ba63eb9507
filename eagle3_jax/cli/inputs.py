"""A draft, shards and token embeddings from disk, checked against each other.

Every check is made on headers and configs, before anything long begins, and names the file that
does not fit, what was found and what was expected.
"""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from converters.drafts import LoadedDraft, load_draft
from converters.files import open_tensors
from converters.shards import ShardInfo, read_info, shard_files
from converters.targets import LoadedTarget, load_target
from eagle3_jax.errors import InputError
from eagle3_jax.model import head_kernel


class Shard(NamedTuple):
    """A shard file by its header.

    Attributes:
        path: the file.
        info: what its stored states are.
        width: Dt, the width of a stored state.
        dtype: their type, as safetensors writes it.
        documents: how many it holds.
        embedding_width: width of boundary 0, or `None` where it is not stored.
    """

    path: Path
    info: ShardInfo
    width: int
    dtype: str
    documents: int
    embedding_width: int | None


class Inputs(NamedTuple):
    """A draft, shards and token embeddings that fit together.

    Attributes:
        draft: as loaded; `params` as on disk.
        draft_path: where from.
        shards: one or more, all of one capture.
        params: the draft's parameters in float32.
        kernel: the head in float32, `[D,W]`.
        table: `[V,D]` token embeddings, or `None`: each shard's boundary 0.
        embeddings: where the embeddings come from, in words.
        head: where the head comes from, in words.
    """

    draft: LoadedDraft
    draft_path: Path
    shards: tuple[Shard, ...]
    params: dict[str, Any]
    kernel: jax.Array
    table: np.ndarray | None
    embeddings: str
    head: str


def load(draft_path: Path, shard_paths: list[Path], target_path: Path | None) -> Inputs:
    """Read a draft and the headers of shards, and see that they fit together.

    Args:
        draft_path: the draft's directory.
        shard_paths: shard files or directories of them.
        target_path: the target's directory, where embeddings or a head are wanted from it.

    Raises:
        InputError: when something is missing, broken, or does not fit.
    """
    draft = load_draft(draft_path)
    if not shard_paths:
        raise InputError("--shards names nothing, expected shard files or directories of them")
    shards = tuple(_read_header(path) for path in shard_files(shard_paths))
    for shard in shards:
        _require_alike(shard, shards[0])
        _require_width(shard, draft, draft_path)
    target = None if target_path is None else _read_target(target_path, draft, draft_path)
    table, embeddings = _embeddings(draft, draft_path, shards, target, target_path)
    params = _float32(draft.params)
    kernel, head = _head(draft, draft_path, params, table, target, target_path)
    return Inputs(draft, draft_path, shards, params, kernel, table, embeddings, head)


def listed(numbers: tuple[int, ...]) -> str:
    """Numbers as a message says them."""
    return ", ".join(map(str, numbers))


def _read_header(path: Path) -> Shard:
    info = read_info(path)
    with open_tensors(path) as handle:
        states = handle.get_slice("hidden_states")
        shape, dtype = states.get_shape(), states.get_dtype()
        documents = len(handle.get_tensor("document_lengths"))
        embedding_width = None
        if "embeddings" in handle.keys():  # noqa: SIM118  # a handle, not a dict
            embedding_width = handle.get_slice("embeddings").get_shape()[-1]
    if len(shape) != 3 or shape[1] != len(info.boundaries):
        raise InputError(
            f"{path}: hidden_states has shape {shape}, expected [tokens, {len(info.boundaries)}, "
            f"width], a state for each of the boundaries {listed(info.boundaries)}"
        )
    return Shard(path, info, shape[2], dtype, documents, embedding_width)


def _require_alike(shard: Shard, first: Shard) -> None:
    """One capture for all: slots are places in the stored order."""

    def told(one: Shard) -> str:
        return f"boundaries {listed(one.info.boundaries)} ({one.info.last_state}, {one.dtype})"

    if told(shard) != told(first):
        raise InputError(
            f"{shard.path}: stores {told(shard)}, expected {told(first)} as in {first.path}"
        )


def _require_width(shard: Shard, draft: LoadedDraft, draft_path: Path) -> None:
    config = draft.config
    states = max(config.num_aux, 1)
    if states * shard.width != config.aux_width:
        raise InputError(
            f"{shard.path}: {states} states of width {shard.width} make {states * shard.width} "
            f"features, expected {config.aux_width} ({states} x {config.target_hidden_size}), "
            f"which the draft {draft_path} reads"
        )


def _read_target(path: Path, draft: LoadedDraft, draft_path: Path) -> LoadedTarget:
    if not path.is_dir():
        raise InputError(f"{path}: no such directory, expected a target (config.json, weights)")
    target = load_target(path)
    found = (target.config.vocab_size, target.config.hidden_size)
    expected = (draft.config.vocab_size, draft.config.target_hidden_size)
    if found != expected:
        raise InputError(
            f"{path}: a target of vocabulary {found[0]} and width {found[1]}, expected "
            f"{expected[0]} and {expected[1]}, which the draft {draft_path} was made for"
        )
    return target


def _embeddings(
    draft: LoadedDraft,
    draft_path: Path,
    shards: tuple[Shard, ...],
    target: LoadedTarget | None,
    target_path: Path | None,
) -> tuple[np.ndarray | None, str]:
    """The embedding table (`None`: each shard's boundary 0) and where it is from."""
    width = draft.config.hidden_size
    if draft.embeddings is not None:
        _require_embeddings(draft_path, draft.embeddings.shape[1], width, draft_path)
        return draft.embeddings, f"the draft's own file, {draft_path}"
    if target is not None and target_path is not None:
        table = target.params["embed_tokens"]
        _require_embeddings(target_path, table.shape[1], width, draft_path)
        return table, f"the target, {target_path}"
    for shard in shards:
        if shard.embedding_width is None:
            raise InputError(
                f"{shard.path}: stores no embeddings (boundary 0) and the draft {draft_path} "
                "holds none, expected --target with the target's directory"
            )
        _require_embeddings(shard.path, shard.embedding_width, width, draft_path)
    return None, "boundary 0 of the shards"


def _require_embeddings(path: Path, found: int, expected: int, draft_path: Path) -> None:
    if found != expected:
        raise InputError(
            f"{path}: token embeddings have width {found}, expected {expected}, the width of the "
            f"draft {draft_path}"
        )


def _head(
    draft: LoadedDraft,
    draft_path: Path,
    params: dict[str, Any],
    table: np.ndarray | None,
    target: LoadedTarget | None,
    target_path: Path | None,
) -> tuple[jax.Array, str]:
    """The head in float32, and where it is from."""
    source = {
        "own": f"the draft's own file, {draft_path}",
        "tied": "the draft's token embeddings",
        "target": f"the target, {target_path}",
    }[draft.config.head]
    theirs = None
    if draft.config.head == "target" and target is not None:
        tied = target.config.tie_embeddings
        theirs = target.params["embed_tokens"].T if tied else target.params["lm_head"]["kernel"]
        if len(theirs) != draft.config.hidden_size:
            raise InputError(
                f"{target_path}: the head reads width {len(theirs)}, expected "
                f"{draft.config.hidden_size}, the width of the draft {draft_path}, which has none"
            )
    try:
        kernel = head_kernel(
            draft.config,
            params,
            None if table is None else jnp.asarray(table),
            None if theirs is None else jnp.asarray(theirs),
        )
    except ValueError as error:
        raise InputError(
            f"{draft_path}: {error}; --target with the target's directory gives it"
        ) from error
    return jnp.asarray(kernel, jnp.float32), source


def _float32(params: dict[str, Any]) -> dict[str, Any]:
    # Parameters carry the precision: in float32 a count is the same on every machine.
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)

"""A fitted draft, written; and what became of every tensor, as a table."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from converters.comparison import same_bytes
from converters.conversion import Fitted, fit, written_map, written_tensors
from converters.detect import CAPTURE, MARK
from converters.dialects import dialect_of
from converters.dialects.native import NATIVE
from converters.drafts import LoadedDraft, OpenDraft, require_fitting
from converters.files import SINGLE, whole_directory, write_json, write_tensors
from converters.names import EMBEDDING, written_name
from converters.tensors import Stored, Tensor, Tick
from converters.trees import FLOATS, to_tensors
from converters.written_configs import Surroundings, write_config
from eagle3_jax.errors import InputError

Fate = Literal["written", "renamed", "rebuilt", "added", "dropped"]


class Row(NamedTuple):
    """What became of one tensor.

    Attributes:
        source: its name in the file that was read; `None` for an added one.
        fate: what became of it.
        written: its name in the new file; `None` for a dropped one.
        shape: `[out, in]`.
        dtype: as the file that holds it names it.
        reason: why it was dropped, or where it was taken from.
    """

    source: str | None
    fate: Fate
    written: str | None
    shape: tuple[int, ...]
    dtype: str
    reason: str = ""


def write_draft(
    directory: Path, fitted: Fitted, *, overwrite: bool = False, tick: Tick | None = None
) -> None:
    """Write a draft, whole or not at all.

    Args:
        directory: where to.
        fitted: what to write.
        overwrite: replace an existing directory.
        tick: is told after each piece how many bytes it had, for a progress bar.

    Raises:
        InputError: when the parts of the draft do not fit together, or the directory exists.
    """
    draft = fitted.draft
    require_fitting(draft, str(directory))
    assert draft.max_positions is not None, "fitting sets it"
    around = Surroundings(draft.max_positions, weights_dtype(draft.tensors), draft.target_name)
    config = write_config(draft.config, draft.dialect, draft.boundaries, around)
    metadata = {"format": "pt", MARK: draft.dialect.name}
    if draft.boundaries is not None:
        metadata[CAPTURE] = ",".join(map(str, draft.boundaries))
    with whole_directory(directory, overwrite=overwrite) as building:
        write_tensors(building / SINGLE, written_tensors(draft), metadata, tick)
        write_json(building / "config.json", config)


def save_draft(
    directory: Path,
    draft: LoadedDraft,
    *,
    max_positions: int,
    dialect: str = "sglang",
    overwrite: bool = False,
) -> None:
    """Write a draft that is in memory.

    Args:
        directory: where to.
        draft: what to write; its `notes` are not written.
        max_positions: the longest context, which the format states.
        dialect: who is to read it.
        overwrite: replace an existing directory.

    Raises:
        InputError: when the dialect has no place for a part of the draft, its parts do not fit
            together, the directory exists, or the native form is asked for.
    """
    reader = dialect_of(dialect)
    if reader is NATIVE:
        raise InputError(
            f"{directory}: the native form is written by eagle3_jax.checkpoints.write_checkpoint, "
            "expected another dialect"
        )
    opened = OpenDraft(
        draft.config,
        to_tensors(draft.params),
        draft.vocab,
        draft.embeddings,
        draft.boundaries,
        reader,
    )
    require_fitting(opened, str(directory))
    fitted = fit(opened, reader, where=str(directory), max_positions=max_positions)
    write_draft(directory, fitted, overwrite=overwrite)


def written_bytes(fitted: Fitted) -> int:
    """How many bytes of tensors a draft takes on disk."""
    return sum(tensor.nbytes for tensor in written_tensors(fitted.draft).values())


def fates(source: OpenDraft, fitted: Fitted) -> list[Row]:
    """What became of every tensor of a draft, and what was added.

    Args:
        source: as opened.
        fitted: as written.
    """
    new = fitted.draft
    before, after = _parameters(source), _parameters(new)
    rows = []
    for name, tensor in before.items():
        if name in fitted.dropped:
            rows.append(_row(tensor, name, "dropped", None, fitted.dropped[name]))
        else:
            rows.append(_kept(tensor, name, written_name(name, new.dialect, new.config)))
    for name in sorted(after.keys() - before.keys()):
        written = written_name(name, new.dialect, new.config)
        rows.append(Row(None, "added", written, *_kind(after[name]), fitted.added.get(name, "")))
    rows += _map_fates(source, new)
    told = {row.written for row in rows}
    for name, tensor in written_tensors(new).items():
        if name not in told:
            why = f"ones, {new.dialect.name} has it and its head does not read it"
            rows.append(Row(None, "added", name, *_kind(tensor), why))
    rows += [_row(tensor, "", "dropped", None, reason) for tensor, reason in source.unread]
    return rows


def weights_dtype(tensors: Mapping[str, Tensor]) -> str:
    """The type of most weights, since norms may be of a wider one."""
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        sizes[FLOATS[tensor.dtype]] += tensor.size
    return sizes.most_common(1)[0][0]


def _parameters(draft: OpenDraft) -> dict[str, Tensor]:
    embeddings = {} if draft.embeddings is None else {EMBEDDING: draft.embeddings}
    return {**draft.tensors, **embeddings}


def _map_fates(source: OpenDraft, new: OpenDraft) -> list[Row]:
    """d2t and t2d: as they were, made anew, or left out."""
    rows, written = [], written_map(new)
    for name, tensor in source.maps.items():
        if name not in written:
            whole = len(new.vocab.target_ids) == len(new.vocab.in_draft)
            reason = "the whole vocabulary needs no map" if whole else "rebuilt from d2t by readers"
            rows.append(_row(tensor, name, "dropped", None, reason))
        elif same_bytes(tensor, written[name]):
            rows.append(_kept(tensor, name, name))
        else:
            told = FLOATS.get(tensor.dtype, tensor.dtype.name)
            rows.append(
                _row(written[name], name, "rebuilt", name, f"from {told}, as readers take it")
            )
    for name in sorted(written.keys() - source.maps.keys()):
        rows.append(Row(None, "added", name, *_kind(written[name]), "rebuilt from the vocabulary"))
    return rows


def _kept(tensor: Tensor, name: str, written: str) -> Row:
    origin = _origin(tensor, name)
    return _row(tensor, name, "written" if written == origin else "renamed", written)


def _row(tensor: Tensor, name: str, fate: Fate, written: str | None, reason: str = "") -> Row:
    return Row(_origin(tensor, name), fate, written, *_kind(tensor), reason)


def _origin(tensor: Tensor, name: str) -> str:
    return tensor.name if isinstance(tensor, Stored) else name


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), tensor.dtype.name

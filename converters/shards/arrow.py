"""speculators' data set: tokens and loss mask in Arrow, states in hidden_states/hs_{row}.

data set/  state.json  dataset_info.json  data-00000-of-00001.arrow   input_ids, loss_mask
           hidden_states/hs_{row}.safetensors                         hidden_states, token_ids
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.files import read_json
from converters.shards.base import Content, Hints, Sample, Shape
from converters.shards.packing import require_apart
from converters.shards.readings import Stacked
from converters.tensors import Stored
from eagle3_jax.errors import InputError

_NAME = re.compile(r"hs_(\d+)\.safetensors")
_STATE = "state.json"
_STATES = Stacked()
_COLUMNS = ("input_ids", "loss_mask")


def has_row(path: Path) -> bool:
    """Whether a file's name is that of a row, and a data set is near."""
    return _NAME.fullmatch(path.name) is not None and _data_set(path) is not None


def _data_set(path: Path) -> Path | None:
    for folder in path.absolute().parents[:2]:
        if (folder / _STATE).is_file():
            return folder
    return None


@dataclass(frozen=True)
class Joined:
    """States in a file, the loss mask in the data set's row of that number."""

    def shape(self, content: Content, hints: Hints) -> Shape:
        """See `Reading`; whether the row fits is seen when it is read."""
        _require_row(content.path)
        _pyarrow(content.path)
        return _STATES.shape(content, hints)

    def samples(self, content: Content, hints: Hints) -> Iterator[Sample]:
        """See `Reading`."""
        folder, index = _require_row(content.path)
        for sample in _STATES.samples(content, hints):
            tokens, answer = _read_row(folder, index, content.path)
            ids = sample.ids.read() if isinstance(sample.ids, Stored) else sample.ids
            if not np.array_equal(ids, tokens):
                raise InputError(
                    f"{content.path}: token_ids are not those of row {index} of {folder}, expected "
                    f"the same ({len(ids)} and {len(tokens)} of them)"
                )
            if len(answer) != len(ids):
                raise InputError(
                    f"{folder}: row {index} has {len(ids)} input_ids and {len(answer)} in "
                    "loss_mask, expected one length"
                )
            yield sample._replace(ids=ids, answer=answer)


def _require_row(path: Path) -> tuple[Path, int]:
    name, folder = _NAME.fullmatch(path.name), _data_set(path)
    if name is None or folder is None:
        raise InputError(
            f"{path}: found no data set ({_STATE}) near a file hs_ROW.safetensors, expected one: "
            "it holds the loss mask (--layout vllm reads the states without)"
        )
    return folder, int(name[1])


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise InputError(
            f"{path}: the loss mask is in an Arrow data set, expected pyarrow to read it "
            "(pip install 'eagle3-jax[arrow]')"
        ) from None
    return pyarrow


def _read_row(folder: Path, index: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and loss mask of a row; of the files only what lies before it is looked at."""
    arrow = _pyarrow(path)
    start = 0
    for file in _files(folder):
        try:
            with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
                missing = [name for name in _COLUMNS if name not in stream.schema.names]
                if missing:
                    raise InputError(
                        f"{file}: found columns {', '.join(stream.schema.names)}, expected "
                        f"{' and '.join(_COLUMNS)}"
                    )
                require_apart(file, stream.schema.names)
                for batch in stream:
                    if index < start + batch.num_rows:
                        lists = (batch.column(name)[index - start] for name in _COLUMNS)
                        tokens, answer = (np.array(cell.as_py() or []) for cell in lists)
                        return tokens, answer
                    start += batch.num_rows
        except (OSError, arrow.ArrowException) as error:
            told = " ".join(str(error).split())
            raise InputError(f"{file}: found no Arrow stream ({told}), expected one") from None
    raise InputError(f"{folder}: has {start} rows, expected row {index} for {path}")


def _files(folder: Path) -> list[Path]:
    listed = read_json(folder / _STATE).get("_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed or []]
    if not names or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"{folder / _STATE}: _data_files is {listed!r}, expected the files of an Arrow data set"
        )
    return [folder / str(name) for name in names]

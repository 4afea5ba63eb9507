"""Traces on disk: what each part of a draft said at every step, in a form that anybody can write.

A trace is one file: safetensors, or torch's (`torch.save` of `{"metadata": ..., "tensors": ...}`),
where a process has torch and nothing else. Its metadata are texts, those in brackets optional:

    schema       "eagle3-jax-trace"
    version      "1"
    steps        K, the number of draft steps
    [writer]     who wrote it
    [draft]      a digest of the draft's weights and config
    [tokens]     "text" or "own": what steps after 0 read
    [head_dim]   of the attention, which tells how RoPE pairs dimensions

Step k has two tensors that say which columns it holds, in any order, and one for each stage:

    {k}.row      [N] int64          the text or request, from 0
    {k}.column   [N] int64          the column's position at step 0; at step k it is k further on
    {k}.STAGE    [N, width]         whatever type it was computed in

Columns of padding are left out, and so are columns that have run out of text. Where a column is
there twice the later one counts: a server computes the columns of rejected tokens again. STAGE is
one of `eagle3_jax.stages`, and whatever is not known is not there:

    aux                [N, A*Dt]    the target's states at x[t]                       step 0 only
    fc_input           [N, A*Dt]    aux after the norm or norms before fc             step 0 only
    fc                 [N, D]       what fc makes of that                             step 0 only
    token              [N, 1]       target id of the token that the column reads, at step 0 x[t+1]
    embedding          [N, D]       its embedding
    hidden             [N, D]       fc's output, or the state that the step before handed on
    layers.0.embedding_normed, layers.0.hidden_normed    [N, D]    the halves that attention reads
    layers.{i}.input_normed                              [N, D]    what it reads in later layers
    layers.{i}.q       [N, N*H]     q_proj's output, heads side by side; so k and v, [N, K*H]
    layers.{i}.q_normed, k_normed   after the norms of query and key heads (Qwen3)
    layers.{i}.q_rotated, k_rotated after RoPE
    layers.{i}.scores_lse           [N, heads]    the log-sum-exp of the scaled scores that it sees
    layers.{i}.scores_max           [N, heads]    the largest of them
    layers.{i}.attention            [N, heads*H]  the mixed values, which o_proj reads
    layers.{i}.attention_out        [N, D]        o_proj's output
    layers.{i}.residual             [N, D]        the residual stream after attention
    layers.{i}.residual_normed      [N, D]        that after post_attention_layernorm
    layers.{i}.gate, up             [N, F]        the MLP's two projections
    layers.{i}.mlp                  [N, D]        its output
    output             [N, D]       the last layer's output
    head_input         [N, D]       what the head reads: output after the final norm
    state              [N, D]       what the next step is fed
    logits             [N, <=1024]  of all W draft ids, or of id i*W//1024 for i below 1024
    logits_lse         [N, 1]       the log-sum-exp of all logits
    top_logits         [N, <=8]     the largest logits, in descending order
    top_ids            [N, <=8]     their draft ids
"""

from pathlib import Path
from typing import Any

import numpy as np

from converters.files import open_tensors, write_tensors
from converters.pickles import read_pickle
from converters.tensors import Stored
from eagle3_jax.errors import InputError
from eagle3_jax.stages import Step, Trace, layers_of, stage_names

SCHEMA, VERSION = "eagle3-jax-trace", "1"
_TORCH = (".pt", ".pth", ".bin")
_PLACES = ("row", "column")
_INTEGERS = ("token", "top_ids")


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as safetensors, whole or not at all."""
    tensors: dict[str, np.ndarray] = {}
    for number, step in enumerate(trace.steps):
        places = {"row": step.rows.astype(np.int64), "column": step.columns.astype(np.int64)}
        parts = places | step.stages
        tensors |= {f"{number}.{name}": np.ascontiguousarray(part) for name, part in parts.items()}
    known = {"schema": SCHEMA, "version": VERSION, "steps": str(len(trace.steps))}
    write_tensors(path, tensors, trace.metadata | known)


def read_trace(path: Path) -> Trace:
    """Read a trace of either form.

    Raises:
        InputError: when the file is no trace, is one of another version, or its parts do not fit
            together.
    """
    metadata, tensors = _read_torch(path) if path.suffix in _TORCH else _read_safetensors(path)
    if metadata.get("schema") != SCHEMA:
        found = metadata.get("schema", "none")
        raise InputError(f"{path}: found schema {found}, expected a trace, {SCHEMA}")
    if metadata.get("version") != VERSION:
        found = metadata.get("version", "none")
        raise InputError(f"{path}: is a trace of version {found}, expected {VERSION}")
    told = metadata.get("steps", "none")
    if not told.isdecimal() or not int(told):
        raise InputError(f"{path}: steps is {told}, expected 1 or more")
    by_step: list[dict[str, np.ndarray]] = [{} for _ in range(int(told))]
    for name, tensor in tensors.items():
        number, _, stage = name.partition(".")
        if not number.isdecimal() or int(number) >= len(by_step):
            raise InputError(
                f"{path}: tensor {name} is of no step, expected {{k}}.STAGE with k below {told}"
            )
        by_step[int(number)][stage] = tensor
    return Trace(
        tuple(_step(path, number, parts) for number, parts in enumerate(by_step)), metadata
    )


def _read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    with open_tensors(path) as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (no dict)
        return handle.metadata() or {}, tensors


def _read_torch(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    content: Any = read_pickle(path)
    if isinstance(content, dict):
        metadata, tensors = content.get("metadata"), content.get("tensors")
        if isinstance(metadata, dict) and isinstance(tensors, dict):
            stored = {name: value for name, value in tensors.items() if isinstance(value, Stored)}
            if len(stored) == len(tensors) and all(isinstance(m, str) for m in metadata.values()):
                return dict(metadata), {name: value.read() for name, value in stored.items()}
    raise InputError(f"{path}: found no dict of metadata and tensors, expected a trace, {SCHEMA}")


def _step(path: Path, number: int, parts: dict[str, np.ndarray]) -> Step:
    """One step, each column once and in order."""
    for place in _PLACES:
        found = parts.get(place)
        if found is None or found.ndim != 1 or found.dtype.kind not in "iu":
            told = "none" if found is None else f"{found.dtype} {list(found.shape)}"
            raise InputError(f"{path}: tensor {number}.{place} is {told}, expected integers [N]")
    rows, columns = parts.pop("row"), parts.pop("column")
    size, known = len(rows), stage_names(layers_of(set(parts)))
    if len(columns) != size:
        raise InputError(
            f"{path}: tensor {number}.column has {len(columns)} entries, expected {size}, as many "
            f"as {number}.row"
        )
    for name, tensor in parts.items():
        if name not in known:
            raise InputError(f"{path}: tensor {number}.{name} is of no stage that is known")
        wanted = "iu" if name in _INTEGERS else "fV"  # ml_dtypes' bfloat16 is a "V" to NumPy
        if tensor.ndim != 2 or len(tensor) != size or tensor.dtype.kind not in wanted:
            kind = "integers" if name in _INTEGERS else "floats"
            raise InputError(
                f"{path}: tensor {number}.{name} is {tensor.dtype} {list(tensor.shape)}, expected "
                f"{kind} [{size}, width]"
            )
    places = np.stack([rows, columns], axis=1)[::-1]
    _, later = np.unique(places, axis=0, return_index=True)
    kept = size - 1 - later
    return Step(rows[kept], columns[kept], {name: part[kept] for name, part in parts.items()})

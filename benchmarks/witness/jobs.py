"""Job directories of the runners that read and write drafts; torch and safetensors only.

`job.json` is a list of cases. Each has a `mode` and a `name` that its files begin with:

    write    the framework builds the draft that the case's knobs describe, is given
             NAME.weights.safetensors, writes it with its own export into NAME.checkpoint/
    run      the same, but nothing is exported
    read     the framework's own loader reads NAME.draft/, and NAME.report.json tells what it made
             of it: {"missing": [...], "unexpected": [...], "config": {...}}

`NAME.weights.safetensors` holds canonical names (`fc.weight`, `input_norm.weight`,
`fc_norm.{a}.weight`, `layers.{i}....`, `norm.weight`, `lm_head.weight`, `embed_tokens.weight`,
`d2t`, `t2d`), matrices `[out, in]`. Every tensor must find its place and every place must be
filled, or the run ends with an error.

In these modes `NAME.inputs.safetensors` holds `tokens [B,T]`, `aux [B,T,A*Dt]`, `positions [B,T]`
and, in mode "read", `embed_tokens [V,D]` for a draft that has no table of its own. B is 1, or there
is `valid [B,T]` too, false behind a row's text; a framework that has no such batches is given the
texts as it would be, and its answers are put into their places.
`NAME.out.safetensors` gets, in float32, `fc [B,T,D]` and, for step k of K, `logits.{k} [B,T,W]` and
`state.{k} [B,T,D]`, which is what step k+1 is fed.

A case's `dtype` is the type of the parameters and of the states that the draft is given; "float32"
where there is none.

In mode "write" NAME.trace.pt gets, from three of the runners, what `converters/torch_recorder.py`
hears of that forward, by the map of the framework.

A case of mode "train" is a batch of `documents`, N, through the framework's own loss and backward
pass; its steps and their weights are the framework's defaults. Its inputs are, for each document n,
`ids.{n} [T]`, `loss_mask.{n} [T]`, `aux.{n} [T,A*Dt]` and `last.{n} [T,Dt]`, the target's last
states; its `norm [Dt]` and its `head [V,Dt]`. NAME.gradients.safetensors gets the `loss []` and the
gradient of every trained parameter under its canonical name.

`missing` are parameters that the loader did not fill, under the framework's names; `unexpected`
are tensors in the files that it did not use; `config` are the knobs as the model now has them.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RECORDER = Path(__file__).resolve().parents[2] / "converters" / "torch_recorder.py"

Case = dict[str, Any]
Tensors = dict[str, torch.Tensor]


def run_job(description: str, modes: Mapping[str, Callable[[Path, Case], None]]) -> None:
    """Run every case of the job directory on the command line, each in its own mode.

    Args:
        description: of the program.
        modes: what is called with the job directory and the case.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("job", type=Path)
    job = parser.parse_args().job
    torch.set_num_threads(1)
    for case in json.loads((job / "job.json").read_text()):
        with torch.no_grad():
            modes[case["mode"]](job, case)


def read_weights(job: Path, case: Case) -> Tensors:
    """The case's weights under canonical names."""
    return load_file(job / f"{case['name']}.weights.safetensors")


def read_inputs(job: Path, case: Case) -> Tensors:
    """The case's inputs."""
    return load_file(job / f"{case['name']}.inputs.safetensors")


def write_gradients(
    job: Path, case: Case, loss: torch.Tensor, trained: Iterable[tuple[str, torch.nn.Parameter]]
) -> None:
    """Run the backward pass and write the loss and the gradients that it left.

    Args:
        job: the job directory.
        case: one of its cases.
        loss: what the framework descends.
        trained: parameters under canonical names; the frozen ones are left out.
    """
    loss.backward()
    named = {name: place.grad for name, place in trained if place.grad is not None}
    whole = {name: gradient.contiguous() for name, gradient in (named | {"loss": loss}).items()}
    save_file(whole, job / f"{case['name']}.gradients.safetensors")


def write_outputs(job: Path, case: Case, heard: Tensors) -> None:
    """Write what the modules were heard to say."""
    whole = {name: tensor.float().contiguous() for name, tensor in heard.items()}
    save_file(whole, job / f"{case['name']}.out.safetensors")


def unpack(heard: Tensors, valid: torch.Tensor) -> Tensors:
    """What was said of texts that lie one behind the other in a row, back in a row for each."""
    count = int(valid.sum())

    def placed(row: torch.Tensor) -> torch.Tensor:
        rows = row.new_zeros(*valid.shape, row.shape[-1])
        rows[valid] = row[0, :count]
        return rows

    return {name: placed(row) for name, row in heard.items()}


def load_recorder() -> Any:
    """The recorder, as the single file that it is: its package is not installed here."""
    spec = importlib.util.spec_from_file_location("torch_recorder", RECORDER)
    assert spec is not None, RECORDER
    assert spec.loader is not None, RECORDER
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def recorded(job: Path, case: Case, model: torch.nn.Module, framework: str) -> Iterator[None]:
    """Record what a model's parts say meanwhile, by the map of a framework."""
    module = load_recorder()
    recorder = module.record(model, module.MAPS[framework])
    yield
    recorder.save(str(job / f"{case['name']}.trace.pt"))
    recorder.stop()


def write_report(
    job: Path, case: Case, missing: set[str], unexpected: set[str], config: dict[str, Any]
) -> None:
    """Write what the framework's loader made of a directory."""
    report = {"missing": sorted(missing), "unexpected": sorted(unexpected), "config": config}
    (job / f"{case['name']}.report.json").write_text(json.dumps(report, indent=2))


def require_filled(case: Case, missing: set[str], unexpected: set[str]) -> None:
    """End the run when a case's weights do not fit the framework's module exactly."""
    if missing or unexpected:
        raise SystemExit(
            f"error: {case['name']}: missing {sorted(missing)}, unexpected {sorted(unexpected)}"
        )

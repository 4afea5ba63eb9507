"""Speed and memory of the converter on a large synthetic draft, beside `cp` of the same file.

    python -m benchmarks.convert            prints the ratios; needs 7 GB of disk for a while

Every run is a whole process. `cp` and the converter take turns, and each of their outputs is
removed before the next run. The converter flushes to the disk before it renames, `cp` does not:
`cp` with `sync -f` after it is timed, too.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from converters.conversion import fit
from converters.dialects import dialect_of
from converters.drafts import OpenDraft
from converters.shapes import expected_shapes
from converters.writing import write_draft
from eagle3_jax.config import AttentionConfig, DraftConfig
from eagle3_jax.vocab import VocabMap

_MEGABYTE = 1 << 20


class Cost(NamedTuple):
    """What one process took: wall-clock seconds and peak resident MB."""

    seconds: float
    megabytes: float


def configured(width: int) -> DraftConfig:
    """The draft's dimensions."""
    return DraftConfig(
        hidden_size=width,
        target_hidden_size=width,
        intermediate_size=4 * width,
        vocab_size=128_256,
        draft_vocab_size=32_000,
        attention=AttentionConfig(num_heads=width // 128, num_kv_heads=8, head_dim=128),
    )


def synthetic(directory: Path, width: int) -> None:
    """Write a draft of random bits in bfloat16 for SGLang."""
    config = configured(width)
    noise = np.random.default_rng(0).standard_normal(1 << 24, np.float32).astype(ml_dtypes.bfloat16)
    tensors = {name: np.resize(noise, shape) for name, shape in expected_shapes(config).items()}
    vocab = VocabMap.from_ids(4 * np.arange(config.draft_vocab_size), config.vocab_size)
    draft = OpenDraft(config, tensors, vocab, None, (2, 16, 29), dialect_of("sglang"))
    fitted = fit(draft, draft.dialect, where=str(directory), max_positions=4096)
    write_draft(directory, fitted)


def run(command: list[str]) -> Cost:
    """Run a process to its end.

    Raises:
        CalledProcessError: when it fails.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(seconds, usage.ru_maxrss / 1024)


def told(name: str, values: list[float], unit: str) -> str:
    """Median and spread in one line."""
    return (
        f"{name:<44} {statistics.median(values):8.2f} {unit}"
        f"  ({min(values):.2f} to {max(values):.2f})"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=6144, help="of the draft; 6144 makes 2 GB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to work; by default a temporary one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = Path(name)
        figures = measured(place, options.width, options.rounds)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measured(place: Path, width: int, rounds: int) -> dict[str, list[float]]:
    """Time conversion, copies and inspection in turns."""
    source, copy, converted = place / "source", place / "copy", place / "converted"
    # In a process of its own: a child's peak counts what its parent held when it was started.
    maker = multiprocessing.get_context("spawn").Process(target=synthetic, args=(source, width))
    maker.start()
    maker.join()
    config = configured(width)
    weights = source / "model.safetensors"
    largest = max(2 * rows[0] * rows[-1] for rows in expected_shapes(config).values())
    size = weights.stat().st_size
    print(f"draft of {size / 1e9:.2f} GB, largest tensor {largest / _MEGABYTE:.0f} MB")
    tool = str(Path(sys.executable).with_name("eagle3-jax"))
    commands = {
        "convert": [tool, "convert", str(source), str(converted), "--to", "vllm", "--quiet"],
        "cp": ["cp", str(weights), str(copy)],
        "cp and sync": ["sh", "-c", f"cp {weights} {copy} && sync -f {copy}"],
        "inspect": [tool, "inspect", str(source), "--quiet"],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(run(command))
            copy.unlink(missing_ok=True)
            shutil.rmtree(converted, ignore_errors=True)
    seconds = {name: [cost.seconds for cost in found] for name, found in costs.items()}
    for name in commands:
        print(told(name, seconds[name], "s"))
    peak = [cost.megabytes for cost in costs["convert"]]
    print(told("convert, peak memory", peak, "MB"))
    print(told("  allowed: 1.5 x largest tensor + 200 MB", [1.5 * largest / _MEGABYTE + 200], "MB"))
    for name in ("cp", "cp and sync"):
        ratios = [a / b for a, b in zip(seconds[name], seconds["convert"], strict=True)]
        print(told(f"throughput, of {name}", ratios, "x"))
    return {**seconds, "peak": peak}


if __name__ == "__main__":
    sys.exit(main())

"""Speed and memory of evaluation beside SpecForge and speculators, on the same shapes.

    python -m benchmarks.eval               all of it: 30 minutes on two cores
    python -m benchmarks.eval --quick       T=1024 in float32 only: 3 minutes

Every run is a whole process and the implementations take turns. A run is one text through all
steps, after a first run that is not counted (and that compiles). What of the peers' work is
counted, and what is left out in their favour, say `witness/time_specforge.py` and
`witness/time_speculators.py`; ours is `evaluate` on a batch that stands in memory.

The limit is what the same process reaches in products of 2048 x 2048 matrices of the same type,
over the multiplications that one token cannot do without (causal attention counted by half).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.witness_env import WitnessError, python_of

# This process stays small: a child's peak counts what its parent held when it was started.
ROOT = Path(__file__).resolve().parents[1]
PEERS = ("specforge", "speculators")
STEPS = 7
CASE = {
    "name": "baseline",
    "hidden_size": 1024,
    "target_hidden_size": 1024,
    "num_heads": 16,
    "num_kv_heads": 8,
    "head_dim": 64,
    "intermediate_size": 4096,
    "vocab_size": 32768,
    "draft_vocab_size": 8192,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16384,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "fc_norm": None,
    "norm_output": None,
    "aux_layer_ids": None,
    "steps": STEPS,
}
LARGE = CASE | {"name": "large vocabulary", "vocab_size": 151_936, "draft_vocab_size": 32_000}


class Cost(NamedTuple):
    """What one process found.

    Attributes:
        rate: tokens per second, the median of its runs.
        first: seconds of the first run, less those of a later one: compilation.
        megabytes: peak resident memory of the process.
        limit: tokens per second that matrix products allow; `None` for peers.
    """

    rate: float
    first: float
    megabytes: float
    limit: float | None


class Job(NamedTuple):
    """One shape.

    Attributes:
        columns: T.
        dtype: of weights and states.
        repeats: counted runs in a process.
        rounds: processes of each implementation.
        case: the draft.
        teacher: with a target's head.
        peers: beside which implementations.
    """

    columns: int
    dtype: str
    repeats: int
    rounds: int
    case: dict[str, Any] = CASE
    teacher: bool = False
    peers: tuple[str, ...] = PEERS


JOBS = (
    Job(1024, "float32", 2, 5),
    Job(4096, "float32", 1, 3),
    Job(1024, "bfloat16", 1, 3),
    Job(4096, "bfloat16", 1, 1),
    Job(8192, "float32", 1, 1, LARGE, True, ()),
)


def needed(case: dict[str, Any], columns: int) -> float:
    """Floating-point operations that one token cannot do without, over all steps."""
    width, heads = case["hidden_size"], case["num_heads"] * case["head_dim"]
    kv = case["num_kv_heads"] * case["head_dim"]
    layer = 2 * width * (heads + 2 * kv) + heads * width + 3 * width * case["intermediate_size"]
    head = width * case["draft_vocab_size"]
    context = heads * (columns + 1)  # two products with half of the columns
    once = 3 * case["target_hidden_size"] * width
    return 2.0 * (case["steps"] * (layer + head + context) + once)


def run(command: list[str]) -> tuple[dict[str, Any], float]:
    """Run a process that tells JSON in its last line; its peak memory in MB.

    Raises:
        CalledProcessError: when it fails.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(said.splitlines()[-1]), usage.ru_maxrss / 1024


def timed(who: str, job: Job) -> Cost:
    """One process of ours or of a peer."""
    request = {
        "case": job.case,
        "columns": job.columns,
        "dtype": job.dtype,
        "repeats": job.repeats,
        "threads": len(os.sched_getaffinity(0)),
        "teacher": job.teacher,
    }
    if who == "ours":
        command = [sys.executable, "-m", "benchmarks.eval_ours"]
    else:
        script = ROOT / "benchmarks" / "witness" / f"time_{who}.py"
        command = [str(python_of(who)), "-I", str(script)]
    told, megabytes = run([*command, json.dumps(request)])
    seconds = statistics.median(told["seconds"])
    flops = told.get("flops")
    limit = None if flops is None else flops / needed(job.case, job.columns)
    return Cost(job.columns / seconds, told["first"] - seconds, megabytes, limit)


def line(name: str, values: list[float], unit: str) -> str:
    """Median and spread."""
    spread = f"({min(values):.2f} to {max(values):.2f})"
    return f"  {name:<38} {statistics.median(values):9.2f} {unit:<6} {spread}"


def measure(job: Job, log: Any) -> dict[str, Any]:
    """Time one shape in turns, and print it."""
    title = f"T={job.columns}, {job.dtype}, {job.case['name']}"
    print(f"{title}{', with a target' if job.teacher else ''}", flush=True)
    costs: dict[str, list[Cost]] = {who: [] for who in ("ours", *job.peers)}
    for turn in range(job.rounds):
        # The order turns too: who comes after whom must not matter.
        for who in [*costs][:: 1 if turn % 2 == 0 else -1]:
            costs[who].append(timed(who, job))
            log(f"{title}: {who} {costs[who][-1].rate:.1f} tok/s, load {os.getloadavg()[0]:.1f}")
    found: dict[str, Any] = {
        "columns": job.columns,
        "dtype": job.dtype,
        "case": job.case["name"],
        "teacher": job.teacher,
        "tokens_per_second": {who: [cost.rate for cost in all_] for who, all_ in costs.items()},
        "peak_megabytes": {who: [cost.megabytes for cost in all_] for who, all_ in costs.items()},
        "compile_seconds": [cost.first for cost in costs["ours"]],
    }
    for who in costs:
        print(line(who, found["tokens_per_second"][who], "tok/s"))
        print(line("  peak memory", found["peak_megabytes"][who], "MB"))
    print(line("ours, compilation", found["compile_seconds"], "s"))
    ratios: dict[str, list[float]] = {}
    ours = costs["ours"]
    ratios["of the matrix-multiply limit"] = [
        cost.rate / cost.limit for cost in ours if cost.limit is not None
    ]
    for who in job.peers:
        pairs = zip(ours, costs[who], strict=True)
        ratios[f"of {who}"] = [one.rate / other.rate for one, other in pairs]
    if job.peers:
        peers = zip(*(costs[who] for who in job.peers), strict=True)
        fastest = [max(cost.rate for cost in turn) for turn in peers]
        pairs = zip(ours, fastest, strict=True)
        ratios["of the faster peer"] = [one.rate / rate for one, rate in pairs]
    for name, values in ratios.items():
        print(line(f"ours, {name}", values, "x"), flush=True)
    return found | {"ratios": ratios}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="T=1024 in float32 only")
    parser.add_argument("--rounds", type=int, help="processes of each; by default 1 to 5")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    jobs = JOBS[:1] if options.quick else JOBS
    try:
        for who in PEERS:
            python_of(who)
        found = [
            measure(
                job._replace(rounds=options.rounds or job.rounds),
                lambda said: print(said, file=sys.stderr, flush=True),
            )
            for job in jobs
        ]
    except WitnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    short, long = ([one for one in found if one["columns"] == t] for t in (1024, 4096))
    for one, other in zip(short, long, strict=False):
        pairs = zip(
            other["tokens_per_second"]["ours"], one["tokens_per_second"]["ours"], strict=False
        )
        print(line(f"T=4096 of T=1024, {one['dtype']}", [a / b for a, b in pairs], "x"))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

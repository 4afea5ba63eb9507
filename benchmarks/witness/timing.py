"""What the peers' timers share: the shape that `benchmarks/eval.py` asks for, and the clock."""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Asked(NamedTuple):
    """A draft's dimensions, a text's length and how often to run.

    Attributes:
        case: the knobs that `run_specforge.py` and `run_speculators.py` share.
        columns: T.
        dtype: of weights and states.
        repeats: timed runs, after one that is not.
    """

    case: dict[str, Any]
    columns: int
    dtype: torch.dtype
    repeats: int


def asked(description: str) -> Asked:
    """Read the request from the command line: one argument of JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("request", type=json.loads)
    request = parser.parse_args().request
    torch.set_num_threads(request["threads"])
    torch.manual_seed(0)
    return Asked(
        request["case"], request["columns"], getattr(torch, request["dtype"]), request["repeats"]
    )


def tell(wanted: Asked, work: Callable[[], object]) -> None:
    """Time whole runs and print them as JSON.

    Args:
        wanted: how often.
        work: one run over the text.
    """
    seconds = []
    with torch.no_grad():
        for _ in range(1 + wanted.repeats):
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"first": seconds[0], "seconds": seconds[1:]}))

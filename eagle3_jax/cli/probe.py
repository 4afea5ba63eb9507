"""Imports modules and lists JAX's devices: `python -m eagle3_jax.cli.probe MODULE...`.

A process of its own, for `doctor`: a broken extension module or driver may end the process that
loads it. It writes a line of JSON before each step, so that whoever reads knows how far it came.
"""

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Import the modules named, then tell the devices, a line of JSON each."""
    for module in sys.argv[1:]:
        _tell(begun=f"import {module}")
        importlib.import_module(module)
    _tell(begun="jax.devices()")
    import jax

    for device in jax.devices():
        statistics = device.memory_stats() or {}  # none of a CPU
        _tell(
            device={
                "platform": device.platform,
                "kind": device.device_kind,
                "memory_bytes": statistics.get("bytes_limit"),
            }
        )


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()

"""Environments for witnesses: other people's implementations, run where their pins cannot hurt.

A witness is a framework whose numbers ours are compared with. Its own pins (torch, transformers)
would clash with another's, so each runs in a virtual environment of its own: it reads inputs from
a directory, writes safetensors there, and the test compares. This builds such an environment
from `benchmarks/witness/<name>.txt`, which lists every package with its version, once:

    python benchmarks/witness_env.py speculators      prints the interpreter's path
    python benchmarks/witness_env.py all              builds every one: 15 minutes, 8 GB

It is kept under `$EAGLE3_JAX_CACHE/witness/<name>-<hash of the list>`, so a changed list is a new
environment and an unchanged one is never built twice. Which package index serves the list, and so
whether torch is a build for CPU or CUDA, is for pip's own settings to say.
"""

import argparse
import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __package__ in (None, ""):  # run as a file: the repository's root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from eagle3_jax.cli.manners import cache_directory

PINS = Path(__file__).resolve().parent / "witness"
_PYTHON = (3, 11)  # the version that the lists were made with
_log = logging.getLogger(__name__)


class WitnessError(RuntimeError):
    """An environment that cannot be built, in one sentence."""


def python_of(name: str) -> Path:
    """The interpreter of a witness's environment, built first if it is not there.

    Args:
        name: a list of pins, `benchmarks/witness/<name>.txt`.

    Returns:
        The path of its python.

    Raises:
        WitnessError: for an unknown name, without Python 3.11, or when pip fails.
    """
    pins = PINS / f"{name}.txt"
    if not pins.is_file():
        raise WitnessError(f"witness {name!r} is unknown, expected one of {', '.join(_known())}")
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()[:12]
    home = cache_directory() / "witness" / f"{name}-{digest}"
    python, complete = home / "bin" / "python", home / "complete"
    if complete.is_file():
        return python
    home.parent.mkdir(parents=True, exist_ok=True)
    with _locked(home.with_name(f"{home.name}.lock")):
        if not complete.is_file():  # another process may have built it while this one waited
            _build(home, python, pins)
            complete.touch()
    return python


def _known() -> list[str]:
    return sorted(path.stem for path in PINS.glob("*.txt"))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file's lock; the system lets go of it even when a build is killed."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(home: Path, python: Path, pins: Path) -> None:
    torch = next(
        (line for line in pins.read_text().splitlines() if line.startswith("torch==")), None
    )
    if torch is None:
        raise WitnessError(f"{pins}: found no line torch==VERSION, expected one")
    if home.exists():
        _log.info("removing what a broken build left in %s", home)
        shutil.rmtree(home)
    _log.info("creating %s (a few minutes and 1.4 to 2.7 GB)", home)
    _run([_base_python(), "-m", "venv", str(home)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch alone with its dependencies: a CUDA build needs libraries that a list made with the
    # CPU build does not name. The rest without: frameworks pin other builds of torch.
    _log.info("installing %s", torch)
    _run([*pip, torch])
    _log.info("installing the rest of %s", pins.name)
    _run([*pip, "--no-deps", "--requirement", str(pins)])


def _base_python() -> str:
    wanted = "python{}.{}".format(*_PYTHON)
    if sys.version_info[:2] == _PYTHON:
        return sys.executable
    found = shutil.which(wanted)
    if found is None:
        running = "{}.{}".format(*sys.version_info[:2])
        raise WitnessError(
            f"a witness needs {wanted}, found Python {running} running and no {wanted} on PATH"
        )
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        # pip names the package in its first error; the last line is often a link to its manual.
        first = next((line for line in said if line.startswith("ERROR:")), said[-1])
        raise WitnessError(f"{' '.join(command)} failed: {first}")


def main(arguments: list[str] | None = None) -> int:
    """Build if need be and print the interpreters' paths; 0 when all are there, else 2."""
    parser = argparse.ArgumentParser(
        description="Build (once) the environment of a witness and print its interpreter.",
        epilog="example: python benchmarks/witness_env.py speculators",
    )
    parser.add_argument("name", help="a list of pins in benchmarks/witness, without .txt; or all")
    name = parser.parse_args(arguments).name
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        for witness in _known() if name == "all" else [name]:
            print(python_of(witness))
    except WitnessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

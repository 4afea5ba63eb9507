"""Does a test fail when a line of the mathematics is broken? Mutants of it, one at a time.

    python -m benchmarks.mutants                     18 modules, 12 mutants each
    python -m benchmarks.mutants --of ops rope --number 40

`benchmarks.mutations` makes the mutants. They are drawn evenly over the modules and over the kinds
of change, by their names and a seed. Each is written into a copy of the repository, where the
module's tests run until one fails. A mutant that lives is a hole in the tests, or it computes the
same: then `mutants_table.EQUIVALENT` says why.

`mutants.json` holds what became of each and `mutants.md` the table that is made of it. A run goes
on where the last one stopped: what was killed is not tried again while its line is the same.

The tests of a mutant run in a fork of a process that has imported JAX and has not used it, so that
no thread is lost; what is compiled is kept on disk for the mutants that follow.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.progress import track

from benchmarks.mutants_table import Row, module_of, outcome_of, render, show
from benchmarks.mutations import Mutant, mutate
from eagle3_jax.cli.manners import cache_directory

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks" / "mutants.json"
COPIED = ("eagle3_jax", "converters", "tests", "benchmarks", "pyproject.toml")
PRELOADED = ("beartype", "flax.linen", "jax.numpy", "optax")

# The files whose tests are to notice a change of a module: fast ones, its own first.
TESTS = {
    "ops": ("ops",),
    "rope": ("rope",),
    "attention": ("attention",),
    "layers": ("model", "target"),
    "model": ("model", "rollout"),
    "rollout": ("rollout",),
    "heads": ("heads",),
    "metrics": ("metrics",),
    "losses": ("losses",),
    "wiring": ("rewiring",),
    "vocab": ("vocab",),
    "capture": ("capture",),
    "batches": ("batches", "documents"),
    "generate": ("generate",),
    "propose": ("rollout",),
    "evaluate": ("evaluate", "documents"),
    "train": ("train",),
    "target": ("target",),
}
# The one line of the copy that is not the repository's, besides the mutant.
_UNCACHED = 'jax.config.update("jax_enable_compilation_cache", False)'
_CACHED = """
jax.config.update("jax_compilation_cache_dir", {directory!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
"""


def draw(mutants: list[Mutant], number: int, seed: int) -> list[Mutant]:
    """Some of a module's mutants, evenly over the kinds of change; others stay where one is added.

    Args:
        mutants: all of them.
        number: how many are wanted.
        seed: another seed, others.
    """

    def lot(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.name}".encode()).hexdigest()

    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(mutants, key=lot):
        by_kind[mutant.name.split(":")[1]].append(mutant)
    places = {mutant.name: place for kind in by_kind.values() for place, mutant in enumerate(kind)}
    drawn = sorted(mutants, key=lambda mutant: (places[mutant.name], lot(mutant)))[:number]
    return sorted(drawn, key=lambda mutant: mutant.line)


class Workshop:
    """A copy of the repository in which modules are broken and mended.

    Attributes:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        """Copy the repository's files into a folder; what is compiled there stays."""
        shutil.rmtree(folder / "copy", ignore_errors=True)
        self.folder = folder / "copy"
        self._log = folder / "log.txt"
        self._seconds: dict[str, float] = {}
        for name in COPIED:
            source, target = ROOT / name, self.folder / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "mutants.*")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy2(source, target)
        shared = self.folder / "tests" / "conftest.py"
        text = shared.read_text()
        if text.count(_UNCACHED) != 1:
            raise SystemExit(f"error: tests/conftest.py has no line {_UNCACHED}")
        cached = _CACHED.format(directory=str(folder / "compiled"))
        shared.write_text(text.replace(_UNCACHED, cached))

    def try_unbroken(self, module: str) -> None:
        """Run a module's tests as they are, which also says how long they take.

        Raises:
            SystemExit: when one fails: then no failure would mean anything.
        """
        for name in TESTS[module]:
            if name not in self._seconds:
                began = time.monotonic()
                failed = self._run((name,), limit=1200.0, keep=True)
                if failed:
                    raise SystemExit(f"error: a test fails without any change: {failed}")
                self._seconds[name] = time.monotonic() - began

    def try_mutant(self, module: str, mutant: Mutant) -> str | None:
        """The test that fails where a module is replaced by a mutant; none where it lives."""
        path = self.folder / "eagle3_jax" / f"{module}.py"
        kept = path.with_suffix(".kept")
        shutil.copy2(path, kept)
        try:
            path.write_text(mutant.source)
            limit = 60.0 + 5.0 * sum(self._seconds[name] for name in TESTS[module])
            return self._run(TESTS[module], limit=limit, keep=False)
        finally:
            kept.replace(path)

    def _run(self, names: tuple[str, ...], *, limit: float, keep: bool) -> str | None:
        """The first test that fails, or what else went wrong; none where all pass.

        Args:
            names: of the test files.
            limit: seconds; a change that makes a loop endless is noticed, too.
            keep: keep the bytecode. A mutant's must not be: another one of the same length and
                second would be taken for it.
        """
        files = [f"tests/test_{name}.py" for name in names]
        if len(os.listdir("/proc/self/task")) > 1:
            raise SystemExit("error: the process that forks has threads")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # JAX's, at every fork
            child = os.fork()
        if not child:
            self._run_tests(files, keep)
        until = time.monotonic() + limit
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return f"no end after {limit:.0f} s"
            time.sleep(0.05)
        if not status:
            return None
        lines = self._log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith(("FAILED", "ERROR", "ImportError"))]
        return told[0].split(" - ")[0] if told else f"exit status {status}: {' '.join(lines[-1:])}"

    def _run_tests(self, files: list[str], keep: bool) -> None:
        """In the child: run pytest in the copy, and leave."""
        code = 70
        try:
            os.chdir(self.folder)
            log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(log, stream)
            sys.path[:] = [str(self.folder), *(p for p in sys.path if Path(p or ".") != ROOT)]
            # The copy's own files are imported, not those that made this process.
            for name in [name for name in sys.modules if name.split(".")[0] in COPIED]:
                del sys.modules[name]
            sys.dont_write_bytecode = not keep
            code = int(pytest.main(["-x", "-q", "--tb=line", "-p", "no:cacheprovider", *files]))
            sys.stdout.flush()
        finally:
            os._exit(code)


def mutants_of(module: str) -> list[Mutant]:
    """Every mutant of a module of the mathematics."""
    return mutate(module, (ROOT / "eagle3_jax" / f"{module}.py").read_text())


def list_drawn(
    modules: list[str], number: int, seed: int, known: dict[str, Row]
) -> dict[str, list[Mutant]]:
    """Draw mutants and give each its row in `known`, which keeps what is known of the same line.

    Args:
        modules: whose.
        number: of mutants of each.
        seed: of the draw.
        known: rows by name; those of these modules that are not drawn are left out.

    Returns:
        The mutants that are to be tried, by module. One that lived is, until a test fails or
        there is a reason.
    """
    drawn = {module: draw(mutants_of(module), number, seed) for module in modules}
    names = {mutant.name for mutants in drawn.values() for mutant in mutants}
    for name in [name for name in known if module_of(name) in modules and name not in names]:
        del known[name]
    due: dict[str, list[Mutant]] = {}
    for module, mutants in drawn.items():
        due[module] = []
        for mutant in mutants:
            line = {"line": mutant.line, "removed": mutant.removed, "added": mutant.added}
            told = known.get(mutant.name, {})
            same = all(told.get(key) == line[key] for key in ("removed", "added"))
            known[mutant.name] = (told if same else {"lives": None, "by": None}) | line
            if outcome_of(mutant.name, known[mutant.name]) in ("not run", "survived"):
                due[module].append(mutant)
    return due


def save(known: dict[str, Row], seed: int) -> None:
    """Write `mutants.json`, whole or not at all, and `mutants.md`."""
    modules = list(TESTS)
    order = sorted(known, key=lambda name: (modules.index(module_of(name)), known[name]["line"]))
    date = datetime.now(UTC).date().isoformat()
    figures = {"date": date, "seed": seed, "mutants": {name: known[name] for name in order}}
    fresh = FIGURES.with_suffix(".fresh")
    fresh.write_text(json.dumps(figures, indent=1) + "\n")
    fresh.replace(FIGURES)
    FIGURES.with_suffix(".md").write_text(render(figures, TESTS))


def main() -> int:
    """Run from the command line; 1 where a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants")
    parser.add_argument("--of", nargs="+", choices=TESTS, default=list(TESTS), metavar="MODULE")
    parser.add_argument("--number", type=int, default=12, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    known = json.loads(FIGURES.read_text())["mutants"] if FIGURES.exists() else {}
    due = list_drawn(arguments.of, arguments.number, arguments.seed, known)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # or else NumPy starts threads
    for name in PRELOADED:
        importlib.import_module(name)
    workshop = Workshop(cache_directory() / "mutants")
    for module, mutants in due.items():
        if mutants:
            workshop.try_unbroken(module)
        for mutant in track(mutants, module, auto_refresh=False):
            killer = workshop.try_mutant(module, mutant)
            known[mutant.name] |= {"lives": killer is None, "by": killer}
            save(known, arguments.seed)
    save(known, arguments.seed)
    show(known)
    return int(any(outcome_of(name, row) == "survived" for name, row in known.items()))


if __name__ == "__main__":
    sys.exit(main())

"""`eagle3-jax doctor`: what is installed, what it runs on, and what more could be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from eagle3_jax.cli.manners import (
    FINE,
    SAYS_NO,
    Options,
    cache_directory,
    near,
    people_console,
    require_destination,
    write_result,
)
from eagle3_jax.errors import InputError

if TYPE_CHECKING:  # `--help` of every command imports this module
    from packaging.requirements import Requirement
    from rich.console import Console

PROGRAM = "eagle3-jax"  # and the name of the distribution
# What each extra of the package's metadata is good for.
ENABLES = {
    "arrow": "reading the loss masks of speculators' data sets",
    "bench": "reading the GGUF file that the demo's target comes in",
    "docs": "building the documentation",
    "lint": "checking style and types",
    "notebooks": "running the notebooks",
    "test": "running the tests",
    "torch": "capturing states of targets that transformers runs",
}


class Installed(NamedTuple):
    """A distribution that is asked for, and what there is of it.

    Attributes:
        name: as the index has it.
        version: what is installed, or nothing.
        expected: which versions will do, like ">=0.10"; empty for any.
        fits: an installed version is one of them.
    """

    name: str
    version: str | None
    expected: str
    fits: bool


class Probed(NamedTuple):
    """What loading everything in a process of its own told.

    Attributes:
        devices: of each, JAX's platform and kind and, where it is known, the memory in bytes.
        broken: what failed and with what words, or nothing.
    """

    devices: list[dict[str, Any]]
    broken: str | None


@dataclass(frozen=True, kw_only=True)
class Doctor(Options):
    """Tell what is installed here, and what each extra would enable."""

    example: ClassVar[str] = "eagle3-jax doctor"

    def run(self) -> int:
        """Look at versions, devices, cache and extras; print them, write the JSON.

        Returns:
            0 when all that every command needs is there and loads, else 1.
        """
        require_destination(self.json)
        import platform
        from importlib.metadata import metadata

        ours = own_version()
        core = needed_by(None)
        probed = probe([one.name.replace("-", ".") for one in core if one.version is not None])
        cache = _cache()
        found: dict[str, Any] = {
            "healthy": probed.broken is None and all(one.fits for one in core),
            "python": platform.python_version(),
            "eagle3_jax": {
                "version": ours,
                "directory": str(near(Path(__file__).resolve().parents[1])),
            },
            "packages": [one._asdict() for one in core],
            "broken": probed.broken,
            "devices": probed.devices,
            "cache": cache,
            "extras": [_extra(name) for name in metadata(PROGRAM).get_all("Provides-Extra", [])],
        }
        _print(people_console(self), found)
        write_result(self.json, found)
        return FINE if found["healthy"] else SAYS_NO


def _cache() -> dict[str, Any]:
    try:
        directory = cache_directory()
    except InputError as error:
        return {"directory": None, "parts": [], "wrong": str(error)}
    return {"directory": str(near(directory)), "parts": sizes(directory), "wrong": None}


def own_version() -> str:
    """The version of this package.

    Raises:
        InputError: when its files are here and it is not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        raise InputError(f"{PROGRAM}: found no such distribution, expected it installed") from None


def needed_by(extra: str | None) -> list[Installed]:
    """What an extra requires by the package's metadata, or every command; JAX's own first.

    Args:
        extra: its name; `None` for what is always required, jaxlib with it.
    """
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    every = [Requirement(text) for text in requires(PROGRAM) or []]
    if extra is not None:
        chosen = [one for one in every if one.marker and one.marker.evaluate({"extra": extra})]
        return [_look_for(one) for one in chosen if not _is_core(one)]
    core = sorted(filter(_is_core, every), key=lambda one: (one.name != "jax", one.name))
    # JAX names the jaxlib that it needs in its own metadata; what is broken is mostly that one.
    return [_look_for(one) for one in (Requirement("jaxlib"), *core)]


def _is_core(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _look_for(requirement: Requirement) -> Installed:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return Installed(requirement.name, None, str(requirement.specifier), False)
    fits = requirement.specifier.contains(found, prereleases=True)
    return Installed(requirement.name, found, str(requirement.specifier), fits)


def probe(modules: list[str]) -> Probed:
    """Import modules and ask JAX for its devices, in a process that may die of it.

    Args:
        modules: their names; those that others need come first.
    """
    import json
    import signal
    import subprocess
    import sys

    done = subprocess.run(
        # -P: what lies in the working directory is not what is installed.
        [sys.executable, "-P", "-m", "eagle3_jax.cli.probe", *modules],
        capture_output=True,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    devices = [line["device"] for line in told if "device" in line]
    if done.returncode == 0:
        return Probed(devices, None)
    begun = [line["begun"] for line in told if "begun" in line]
    last_words = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    if done.returncode < 0:
        last_words = [f"ended by {signal.Signals(-done.returncode).name}"]
    return Probed(devices, f"{begun[-1] if begun else 'python'}: {last_words[0]}")


def sizes(directory: Path) -> list[dict[str, Any]]:
    """Name, number of files and bytes of everything that stands in a directory, if it is there."""
    if not directory.is_dir():
        return []
    parts = []
    for place in sorted(directory.iterdir()):
        files = [place] if place.is_file() else [one for one in place.rglob("*") if one.is_file()]
        held = sum(one.lstat().st_size for one in files)
        parts.append({"name": place.name, "files": len(files), "bytes": held})
    return parts


def _extra(name: str) -> dict[str, Any]:
    missing = [
        one.name if one.version is None else f"{one.name}{one.expected} (found {one.version})"
        for one in needed_by(name)
        if not one.fits
    ]
    return {
        "name": name,
        "installed": not missing,
        "missing": missing,
        "enables": ENABLES[name],
        "install": f'pip install "{PROGRAM}[{name}]"',
    }


def _print(console: Console, found: dict[str, Any]) -> None:
    from rich import box
    from rich.filesize import decimal
    from rich.table import Table

    from eagle3_jax.cli.lines import print_lines

    ours = found["eagle3_jax"]
    lines = {"python": found["python"], PROGRAM: f"{ours['version']}, in {ours['directory']}"}
    for one in found["packages"]:
        wrong = "" if one["fits"] else f", expected {one['expected'] or 'any version'}"
        lines[one["name"]] = (one["version"] or "not installed") + wrong
    for number, one in enumerate(found["devices"]):
        memory = one["memory_bytes"]
        room = "" if memory is None else f", {decimal(memory)}"
        lines[f"device {number}"] = f"{one['platform']}, {one['kind']}{room}"
    cache = found["cache"]
    held = [f"{one['name']} {decimal(one['bytes'])}" for one in cache["parts"]]
    lines["cache"] = cache["wrong"] or f"{cache['directory']}: {', '.join(held) or 'nothing in it'}"
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("extra", "enables", "installed"):
        table.add_column(heading)
    commands = {}
    for one in found["extras"]:
        missing = ", ".join(one["missing"])
        table.add_row(one["name"], one["enables"], f"without {missing}" if missing else "yes")
        if missing:
            commands[one["name"]] = one["install"]
    print_lines(console, lines, ())
    console.print(table)
    if commands:
        print_lines(console, commands, ())
    if found["broken"] is not None:
        console.print(f"\nbroken: {found['broken']}", soft_wrap=True, markup=False)

"""What `eagle3-jax doctor` finds, in a healthy environment and in broken ones."""

import json
import os
import platform
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import pytest

from eagle3_jax.cli import doctor
from eagle3_jax.cli.doctor import ENABLES, Installed, Probed, needed_by, probe
from eagle3_jax.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
CPU = {"platform": "cpu", "kind": "cpu", "memory_bytes": None}
GPU = {"platform": "gpu", "kind": "H200", "memory_bytes": 143_000_000_000}
REQUIRED = [
    "jax>=0.10",
    "numpy>=2.4",
    'pyarrow>=26.0; extra == "arrow"',
    'no-such-thing>=1.0; extra == "torch"',
    'numpy>=999; extra == "torch"',
    'colorama; sys_platform == "win32"',
    'rich; sys_platform != "win32"',
]


@pytest.fixture
def healthy(monkeypatch, tmp_path):
    """An environment where everything loads and nothing is cached."""
    monkeypatch.setenv("EAGLE3_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "probe", lambda modules: Probed([CPU], None))
    monkeypatch.setattr("importlib.metadata.requires", lambda name: REQUIRED)


def found(capsys, code=0):
    assert main(["doctor", "--json", "-"]) == code
    out, err = capsys.readouterr()
    return json.loads(out), err


def test_a_healthy_environment(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EAGLE3_JAX_CACHE", str(tmp_path))
    told, printed = found(capsys)
    assert told["healthy"] is True
    assert told["broken"] is None
    assert told["python"] == platform.python_version()
    assert told["eagle3_jax"]["version"] == version("eagle3-jax")
    assert (Path.cwd() / told["eagle3_jax"]["directory"]) == ROOT / "eagle3_jax"
    packages = {one["name"]: one for one in told["packages"]}
    assert list(packages)[:2] == ["jaxlib", "jax"]  # the ones that break first
    assert packages.keys() >= {"flax", "numpy", "optax", "orbax-checkpoint", "safetensors"}
    assert all(one["version"] == version(name) for name, one in packages.items())
    assert all(one["fits"] for one in packages.values())
    assert [one["platform"] for one in told["devices"]] == [
        one.platform for one in jax.local_devices()
    ]
    assert [one["name"] for one in told["extras"]] == list(ENABLES)
    assert f"jaxlib            {version('jaxlib')}\n" in printed


def test_every_extra_has_its_sentence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(ENABLES) == list(project["optional-dependencies"])


def test_core_and_extras_come_from_the_metadata(healthy):
    assert [one.name for one in needed_by(None)] == ["jaxlib", "jax", "numpy", "rich"]
    assert needed_by("arrow") == [Installed("pyarrow", version("pyarrow"), ">=26.0", True)]
    assert needed_by("torch") == [
        Installed("no-such-thing", None, ">=1.0", False),
        Installed("numpy", version("numpy"), ">=999", False),
    ]
    assert needed_by("docs") == []


def test_an_extra_that_is_not_there_is_no_fault(healthy, capsys):
    told, printed = found(capsys)
    assert told["healthy"] is True
    extras = {one["name"]: one for one in told["extras"]}
    assert extras["arrow"]["installed"] is True
    assert extras["torch"] == {
        "name": "torch",
        "installed": False,
        "missing": ["no-such-thing", f"numpy>=999 (found {version('numpy')})"],
        "enables": ENABLES["torch"],
        "install": 'pip install "eagle3-jax[torch]"',
    }
    assert 'torch  pip install "eagle3-jax[torch]"\n' in printed
    assert "[arrow]" not in printed


@pytest.mark.parametrize(
    ("requirement", "line"),
    [
        ("no-such-thing>=1", "no-such-thing  not installed, expected >=1\n"),
        ("no-such-thing", "no-such-thing  not installed, expected any version\n"),
        ("numpy>=999", f"{'numpy':13}  {version('numpy')}, expected >=999\n"),
    ],
)
def test_a_core_package_that_is_missing_or_too_old(healthy, capsys, monkeypatch, requirement, line):
    required = [*REQUIRED[:1], requirement, "no-such-thing>=0; sys_platform == 'win32'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: required)
    told, printed = found(capsys, code=1)
    assert told["healthy"] is False
    assert " ".join(line.split()) in [" ".join(row.split()) for row in printed.splitlines()]


def test_what_is_not_installed_is_not_loaded(healthy, capsys, monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda name: ["no-such-thing", "orbax-checkpoint"]
    )
    asked = []
    monkeypatch.setattr(doctor, "probe", lambda names: asked.extend(names) or Probed([CPU], None))
    found(capsys, code=1)
    assert asked == ["jaxlib", "orbax.checkpoint"]


def test_devices_and_their_memory(healthy, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "probe", lambda modules: Probed([GPU, CPU], None))
    told, printed = found(capsys)
    assert told["devices"] == [GPU, CPU]
    assert "gpu, H200, 143.0 GB\n" in printed
    assert "cpu, cpu\n" in printed


def test_the_cache_and_what_it_holds(healthy, capsys, tmp_path, monkeypatch):
    told, printed = found(capsys)
    assert told["cache"] == {"directory": str(tmp_path / "cache"), "parts": [], "wrong": None}
    assert f"{tmp_path / 'cache'}: nothing in it\n" in printed
    (tmp_path / "cache/compiled/deep").mkdir(parents=True)
    (tmp_path / "cache/compiled/a").write_bytes(bytes(1500))
    (tmp_path / "cache/compiled/deep/b").write_bytes(bytes(1000))
    (tmp_path / "cache/file").write_bytes(bytes(7))
    monkeypatch.chdir(tmp_path)
    told, printed = found(capsys)
    assert told["cache"] == {
        "directory": "cache",
        "parts": [
            {"name": "compiled", "files": 2, "bytes": 2500},
            {"name": "file", "files": 1, "bytes": 7},
        ],
        "wrong": None,
    }
    assert "cache: compiled 2.5 kB, file 7 bytes\n" in printed


def test_a_cache_in_a_home_that_nobody_knows_is_told(healthy, capsys, monkeypatch):
    monkeypatch.setenv("EAGLE3_JAX_CACHE", "~nobody-of-this-name/cache")
    told, printed = found(capsys)
    assert told["healthy"] is True
    wrong = (
        "~nobody-of-this-name/cache: found no such home directory, expected EAGLE3_JAX_CACHE to "
        "name another one"
    )
    assert told["cache"] == {"directory": None, "parts": [], "wrong": wrong}
    assert wrong in printed


def test_what_does_not_load_is_told(healthy, capsys, monkeypatch):
    broken = "import jaxlib: ImportError: [x] no"
    monkeypatch.setattr(doctor, "probe", lambda modules: Probed([], broken))
    told, printed = found(capsys, code=1)
    assert (told["healthy"], told["broken"]) == (False, broken)
    assert printed.endswith(f"\nbroken: {broken}\n")


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """Puts a module before all others that a new process finds."""
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)

    def write(name, code):
        (tmp_path / f"{name}.py").write_text(code)

    return write


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ImportError('libx.so: not there')", "ImportError: libx.so: not there"),
        ("raise RuntimeError('too old for jax')", "RuntimeError: too old for jax"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_broken_module(plant, code, told):
    plant("sound", "print('a word of its own')")
    plant("broken_one", code)
    assert probe(["sound", "broken_one", "never_reached"]) == Probed(
        [], f"import broken_one: {told}"
    )


def test_a_file_in_the_working_directory_is_not_what_is_installed(tmp_path, monkeypatch):
    (tmp_path / "flax.py").write_text("raise ImportError('a file of the user')")
    monkeypatch.chdir(tmp_path)
    assert probe(["flax"]).broken is None


def test_a_broken_jaxlib_in_a_real_process(plant, tmp_path):
    plant("jaxlib", "raise ImportError('libx.so: not there')")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "eagle3_jax", "doctor"],
        cwd=tmp_path,
        env=os.environ | {"EAGLE3_JAX_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.endswith("\nbroken: import jaxlib: ImportError: libx.so: not there\n")


def test_a_platform_that_is_not_there(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    devices, broken = probe([])
    assert devices == []
    assert broken.startswith("jax.devices(): RuntimeError: ")
    assert "no_such_platform" in broken


def test_files_without_an_installation(capsys, monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    told = "error: eagle3-jax: found no such distribution, expected it installed\n"
    for arguments in (["doctor"], ["--version"]):
        assert main(arguments) == 2
        assert capsys.readouterr() == ("", told)


def test_a_place_for_the_json_that_is_none(capsys):
    assert main(["doctor", "--json", "no/r.json"]) == 2
    assert capsys.readouterr().err == (
        "error: no: no such directory, expected one to write r.json in\n"
    )

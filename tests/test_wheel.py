"""The wheel: what is in it, and that it runs where no checkout is."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
WHERE = """
import importlib, json, pathlib, sys
names = "eagle3_jax", "converters"
print(json.dumps([str(pathlib.Path(importlib.import_module(name).__file__)) for name in names]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    # Without an index: what builds it is in the extra `test`.
    arguments = ("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", directory)
    subprocess.run([*PIP, *arguments, ROOT], check=True)
    (file,) = directory.iterdir()
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A directory that holds what the wheel installs, and nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [*PIP, "install", "--no-deps", "--no-index", "--target", directory, wheel], check=True
    )
    return directory


@pytest.fixture
def run(installed, tmp_path):
    """Runs a command in an empty folder, with the wheel's packages before all others."""

    def start(*command):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(installed), "EAGLE3_JAX_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return start


def test_it_holds_both_packages_whole_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "eagle3_jax", "converters"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:  # a source distribution has no repository
        assert held == {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert {name.split("/")[0] for name in held} == {"eagle3_jax", "converters"}
    shards = {f"eagle3_jax/demo/shards/{name}.safetensors" for name in ("familiar", "unfamiliar")}
    assert held > shards | {
        "eagle3_jax/py.typed",
        "converters/py.typed",
        "eagle3_jax/demo/card.json",
        "eagle3_jax/demo/draft/config.json",
        "eagle3_jax/demo/draft/model.safetensors",
        "eagle3_jax/report/templates/diagnosis.html",
    }


def test_its_packages_are_those_that_run(run, installed):
    assert json.loads(run(sys.executable, "-c", WHERE)) == [
        str(installed / name / "__init__.py") for name in ("eagle3_jax", "converters")
    ]


def test_demo_runs_from_another_folder(run, installed, tmp_path):
    run(sys.executable, "-m", "eagle3_jax", "demo", "--steps", "1", "--json", "demo.json")
    result = json.loads((tmp_path / "demo.json").read_text())
    assert result["clearly_better"] is True
    assert Path(result["right"]["draft"]) == installed / "eagle3_jax/demo/draft"
    assert (tmp_path / "eagle3-jax-demo.png").stat().st_size > 10_000


def test_its_script_and_both_modules_run(run, installed, tmp_path):
    script = installed / "bin/eagle3-jax"
    version = run(script, "--version")
    assert re.fullmatch(r"eagle3-jax \d+\.\d+\.\d+\n", version)
    draft = installed / "eagle3_jax/demo/draft"
    run(sys.executable, "-m", "converters", draft, "native-draft", "--to", "native")
    told = run(script, "inspect", "native-draft", draft, "--json", "-")
    assert json.loads(told)["paths"] == ["native-draft", str(draft)]
    assert (tmp_path / "native-draft").is_dir()

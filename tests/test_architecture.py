"""The two rules of the layout: imports only go down a floor, and only the disk knows files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FLOORS = (
    "config errors structs vocab capture stages native",
    "ops attention rope losses batches verify wiring",
    "layers metrics heads",
    "model target",
    "rollout generate propose drafts",
    "checkpoints conventions evaluate train record suspicions trace",
    "diagnose report compare",
    "cli",
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names.split()}
CLI, PUBLIC_NAMES = FLOOR["cli"], FLOOR["cli"] - 1  # `eagle3_jax` itself: for the top floor only
JAX = {"jax", "jaxlib", "flax", "optax", "orbax"}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def modules(package: str) -> list[str]:
    names = sorted(map(module_name, (ROOT / package).rglob("*.py")))
    assert names, f"{package} has no modules"
    return [name for name in names if not name.endswith(("__init__", "__main__"))]


def imports(module: str) -> set[str]:
    """Dotted names that a module imports, anywhere in it; `from a import b` gives `a.b`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def part(module: str) -> str:
    return [*module.split("."), ""][1]


def floor(module: str) -> int:
    name = part(module)
    assert name in FLOOR, f"{module} is on no floor: give {name!r} its row in FLOORS"
    return FLOOR[name]


def floor_of_import(name: str) -> int:
    return FLOOR.get(part(name), PUBLIC_NAMES)


@pytest.mark.parametrize("module", modules("eagle3_jax"))
def test_the_mathematics_imports_only_downward(module):
    here = floor(module)
    for name in imports(module):
        if name.split(".")[0] == "eagle3_jax" and part(name) != part(module):
            there = floor_of_import(name)
            assert there < here, f"{module} (floor {here}) imports {name} (floor {there})"
        assert here == CLI or name.split(".")[0] != "converters", f"{module} imports {name}"


@pytest.mark.parametrize("module", modules("converters"))
def test_the_disk_knows_floor_0_and_no_jax(module):
    for name in imports(module):
        assert not JAX & set(name.split(".")), f"{module} imports {name}"
        ours = name.split(".")[0] == "eagle3_jax"
        assert not ours or floor_of_import(name) == 0, f"{module} imports {name}"


FLOOR_0 = [module for module in modules("eagle3_jax") if FLOOR.get(part(module)) == 0]
HELP = """
import sys
from eagle3_jax.cli.main import main
sys.argv = ["eagle3-jax", "--help"]
try:
    code = main()
except SystemExit as leaving:
    code = leaving.code
assert not code, code
"""


@pytest.mark.parametrize(
    "code",
    [
        "import eagle3_jax",
        "import " + ", ".join(["converters", *modules("converters")]),
        "import " + ", ".join(FLOOR_0),
        HELP,
    ],
    ids=["import eagle3_jax", "import converters", "import floor 0", "eagle3-jax --help"],
)
def test_jax_stays_unloaded(code):
    check = "\nimport sys\nassert not {'jax', 'flax'} & set(sys.modules), 'jax was imported'"
    done = subprocess.run(
        [sys.executable, "-c", code + check], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

"""Compiled programs are kept where only the user can write, and used again."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from eagle3_jax.cli.compiled import keep_compiled
from tests.samples import texts, tiny_draft, write_draft, write_texts

ROOT = Path(__file__).resolve().parents[1]
NAMES = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache directory of one's own, and JAX's settings as they were afterwards."""
    before = {name: jax.config.values[name] for name in NAMES}
    monkeypatch.setenv("EAGLE3_JAX_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)


def told(capsys):
    return capsys.readouterr().err


def kept():
    return jax.config.values["jax_compilation_cache_dir"]


def test_the_directory_is_made_for_the_user_alone(home, capsys):
    keep_compiled()
    assert kept() == str(home / "compiled")
    assert stat.S_IMODE((home / "compiled").stat().st_mode) == 0o700
    assert told(capsys) == ""


def test_a_cache_that_the_user_gave_jax_stays(home):
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    keep_compiled()
    assert kept() == "elsewhere"
    assert not home.exists()


@pytest.mark.parametrize("mode", [0o770, 0o702])
@pytest.mark.parametrize("place", ["compiled", "."])
def test_a_directory_that_others_write_is_not_used(home, capsys, mode, place):
    (home / "compiled").mkdir(mode=0o700, parents=True)
    (home / place).chmod(mode)
    keep_compiled()
    assert kept() is None
    assert told(capsys) == (
        f"note: {home / 'compiled'} keeps no compiled programs: others can write there\n"
    )


def test_a_home_that_nobody_knows_is_told_and_nothing_kept(home, monkeypatch, capsys):
    monkeypatch.setenv("EAGLE3_JAX_CACHE", "~nobody-of-this-name/cache")
    keep_compiled()
    assert kept() is None
    assert told(capsys) == (
        "note: compiled keeps no compiled programs: ~nobody-of-this-name/cache: found no such home "
        "directory, expected EAGLE3_JAX_CACHE to name another one\n"
    )


def test_what_others_cannot_rename_is_safe_in_a_directory_that_they_write(home):
    home.mkdir()
    home.chmod(0o1777)
    keep_compiled()
    assert kept() == str(home / "compiled")


def test_a_directory_of_another_user_is_not_used(home, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    keep_compiled()
    assert kept() is None
    assert "it belongs to another user" in told(capsys)


def test_a_link_is_not_used(home, capsys, tmp_path):
    home.mkdir()
    (home / "compiled").symlink_to(tmp_path)
    keep_compiled()
    assert kept() is None
    assert "it is no directory of its own" in told(capsys)


def test_a_place_that_cannot_be_made_is_no_error(home, capsys):
    home.write_text("a file")
    keep_compiled()
    assert kept() is None
    assert told(capsys).count("\n") == 1


COUNTING = """
import json, sys
from collections import Counter
import jax
from eagle3_jax.cli.main import main
seen = Counter()
jax.monitoring.register_event_listener(lambda event, **_: seen.update([event]))
assert main(sys.argv[1:]) == 0
print(json.dumps(seen), file=sys.stderr)
"""


def test_a_second_run_compiles_nothing(tmp_path):
    draft = write_draft(tmp_path / "draft", tiny_draft(embeddings=True))
    shards = write_texts(tmp_path / "texts.safetensors", texts())
    command = [
        "eval",
        "--draft",
        str(draft),
        "--shards",
        str(shards),
        "--steps",
        "2",
        "--json",
        "-",
    ]

    def events():
        done = subprocess.run(
            [sys.executable, "-c", COUNTING, *command, "--quiet"],
            cwd=ROOT,
            env=os.environ | {"EAGLE3_JAX_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        seen = json.loads(done.stderr.splitlines()[-1])
        hits, misses = (
            seen.get(f"/jax/compilation_cache/cache_{w}", 0) for w in ("hits", "misses")
        )
        found = json.loads(done.stdout)
        del found["seconds"]
        return hits, misses, found, done.stderr.splitlines()[:-1]

    first, second = events(), events()
    assert first[1] > 5
    assert second[:2] == (first[0] + first[1], 0)
    assert second[2] == first[2]
    assert first[3] == second[3] == []

"""Pages hold: links lead somewhere, commands parse, marked ones run, tables are of this code."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from eagle3_jax.cli import main as cli

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
README = ROOT / "README.md"
EVERY = [*PAGES, README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
_FENCE = re.compile(r"(?:<!-- (\w+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Fence(NamedTuple):
    mark: str
    language: str
    body: str


def fences(page):
    return [Fence(*found) for found in _FENCE.findall(page.read_text())]


def commands(fence):
    """What a fence calls of this program, its paths as they stand, with a number for L."""
    if fence.language != "sh":
        return
    for line in fence.body.splitlines():
        program, *arguments = shlex.split(line, comments=True) or [""]
        if program == "eagle3-jax":
            yield ["32" if word == "L" else word for word in arguments]


def anchors(page):
    """The anchors of a page's headings, as Python-Markdown makes them."""
    prose = _FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in titles)
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def named(path):
    return str(path.relative_to(ROOT))


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_links_lead_somewhere(page):
    prose = _FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        path, _, anchor = target.partition("#")
        there = page if not path else (page.parent / path).resolve()
        assert there.is_file(), f"{named(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{named(page)} links to {target}"


@pytest.mark.parametrize("page", [*PAGES, README], ids=named)
def test_tables_are_of_this_code(page):
    render = runpy.run_path(str(DOCS / "tables.py"))["render"]
    assert page.read_text() == render(page.read_text()), "run python docs/tables.py"


def test_a_table_that_the_code_does_not_make_is_made_anew():
    render = runpy.run_path(str(DOCS / "tables.py"))["render"]
    page = (DOCS / "capture.md").read_text()
    assert "| 32 | 2, 16, 29 | 1, 15, 28 | 2, 16, 29, 32 | 3, 17, 30, 32 |" in page
    assert render(page.replace("2, 16, 29 |", "2, 16, 28 |")) == page


@pytest.mark.parametrize("page", EVERY, ids=named)
def test_every_command_parses(page):
    for fence in fences(page):
        for arguments in commands(fence):
            cli.parse(arguments)


@pytest.mark.parametrize(
    "page",
    [page for page in (*PAGES, README) if any(fence.mark for fence in fences(page))],
    ids=named,
)
def test_marked_fences_run_and_print_what_they_say(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "eagle3_jax").symlink_to(ROOT / "eagle3_jax")
    monkeypatch.chdir(tmp_path)
    printed = ""
    for fence in fences(page):
        if fence.mark == "run":
            if fence.language == "python":
                exec(compile(fence.body, named(page), "exec"), {})
            for arguments in commands(fence):
                assert cli.main(arguments) == 0, (arguments, capsys.readouterr().err)
            printed = "\n".join(" ".join(x.split()) for x in capsys.readouterr().out.splitlines())
        elif fence.mark == "printed":
            for line in filter(None, fence.body.splitlines()):
                assert " ".join(line.split()) in printed.splitlines(), line
    assert printed


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    fetched = [
        page.name
        for page in pages
        if re.search(
            r'<(?:script|link rel="stylesheet"|img)[^>]*="(?:https?:)?//', page.read_text()
        )
    ]
    assert not fetched

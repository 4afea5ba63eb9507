"""A diagnosis as files: one page, its pictures and the JSON."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eagle3_jax.errors import InputError

PAGE, FIGURES = "index.html", "diagnosis.json"


def require_report_directory(directory: Path | None) -> None:
    """Refuse a place for a report that cannot be written, before minutes are spent on it.

    Raises:
        InputError: when it is no directory, or is to be made in none.
    """
    if directory is None:
        return
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: found a file, expected a directory for the report")
    for name in (PAGE, FIGURES):
        if (directory / name).is_dir():
            raise InputError(f"{directory / name}: found a directory, expected a file to replace")
    if not directory.parent.is_dir():
        raise InputError(
            f"{directory.parent}: no such directory, expected one to make {directory.name} in"
        )


def write_report(directory: Path, found: dict[str, Any]) -> None:
    """Write the page, its pictures and the JSON into a directory.

    All is drawn before anything is written, and written aside before anything is replaced. Files
    of other names stay; a picture that this diagnosis has no figures for goes.

    Args:
        directory: is made where it is missing.
        found: the diagnosis as JSON has it.

    Raises:
        InputError: when the directory cannot be one.
    """
    require_report_directory(directory)

    from eagle3_jax.report import PICTURES, draw_diagnosis, render_diagnosis

    pictures = draw_diagnosis(found)
    contents = {f"{picture.name}.png": picture.png for picture in pictures}
    contents[FIGURES] = (json.dumps(found, indent=2, allow_nan=False) + "\n").encode()
    # A path need not be text: what UTF-8 has no code for is spelled out.
    contents[PAGE] = render_diagnosis(found, pictures).encode("utf-8", "backslashreplace")
    directory.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=directory, prefix=".report.") as aside:
        for name, content in contents.items():
            (Path(aside) / name).write_bytes(content)
        for name in contents:
            (Path(aside) / name).replace(directory / name)
    for name in PICTURES:
        if f"{name}.png" not in contents:
            (directory / f"{name}.png").unlink(missing_ok=True)

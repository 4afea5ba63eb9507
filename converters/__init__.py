"""The disk: drafts, targets and training shards of every framework, read and written with NumPy.

The public names load their modules when they are first asked for.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.drafts import LoadedDraft, Reading, load_draft, open_draft
    from converters.engines import serve_all
    from converters.feeding import Capture, choose_capture
    from converters.shards import open_shards, read_documents, read_info
    from converters.targets import load_target, open_target

__all__ = [
    "Capture",
    "LoadedDraft",
    "Reading",
    "choose_capture",
    "load_draft",
    "load_target",
    "open_draft",
    "open_shards",
    "open_target",
    "read_documents",
    "read_info",
    "serve_all",
]

_HOME = {
    "drafts": ("LoadedDraft", "Reading", "load_draft", "open_draft"),
    "engines": ("serve_all",),
    "feeding": ("Capture", "choose_capture"),
    "shards": ("open_shards", "read_documents", "read_info"),
    "targets": ("load_target", "open_target"),
}


def __getattr__(name: str) -> object:
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)

"""Stand-ins for modules that a witness imports and, on a CPU, never uses."""

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, ClassVar
from unittest.mock import MagicMock


class Stub(types.ModuleType):
    """A module in which every name is found."""

    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        """A class to derive from where the name looks like one's, else something to call."""
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else MagicMock(name=name)


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for each of some names and all names below them."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Remember the names."""
        self.names = names

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """The stub's spec."""
        if any(name == stubbed or name.startswith(f"{stubbed}.") for stubbed in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Stub:
        """The stub."""
        return Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def stand_in_for(*names: str) -> None:
    """Answer imports of these names, and of names below them, with stubs from now on."""
    sys.meta_path.insert(0, StubFinder(names))

"""What there is to tell a draft's config from, and how a number is settled where two say it."""

from collections.abc import Mapping
from typing import NamedTuple

from converters.config_keys import Keys
from converters.dialects.base import Dialect
from converters.ledger import Ledger
from converters.tensors import Tensor
from eagle3_jax.errors import InputError


class Evidence(NamedTuple):
    """A draft's config, its tensors by their headers, and whose file it is.

    Attributes:
        keys: config.json.
        tensors: the draft's parameters under canonical names, unread.
        vocab_sizes: V by each tensor that shows it.
        dialect: whose rules hold.
        ledger: takes values, sources and notes.
        boundaries: the capture that the user gives, which no config decides then.
    """

    keys: Keys
    tensors: Mapping[str, Tensor]
    vocab_sizes: Mapping[str, int]
    dialect: Dialect
    ledger: Ledger
    boundaries: tuple[int, ...] | None = None

    def settle(self, key: str, found: int, source: str) -> int:
        """The number by the tensors; a note where the config states another."""
        stated = self.keys.values.get(key)
        if stated is not None and (type(stated) is not int or stated != found):
            self.ledger.notes.append(f"{key} is {stated!r} in the config, {found} by the {source}")
        return self.ledger.settle(key, found, source)

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a matrix that every draft has."""
        rows, columns = self._shape(name, 2, "rows and columns")
        return rows, columns

    def length(self, name: str) -> int:
        """Entries of a vector that has to be there."""
        return self._shape(name, 1, "one axis")[0]

    def _shape(self, name: str, axes: int, expected: str) -> tuple[int, ...]:
        where = self.keys.where
        if name not in self.tensors:
            raise InputError(f"{where}: found no tensor {name}, expected it beside the others")
        shape = self.tensors[name].shape
        if len(shape) != axes or not all(shape):
            raise InputError(f"{where}: tensor {name} has shape {list(shape)}, expected {expected}")
        return shape

    def has(self, name: str, key: str | None = None) -> bool:
        """Whether a tensor is there; a note where the config's flag says otherwise."""
        stated, found = self.keys.values.get(key) if key else None, name in self.tensors
        if stated is not None and stated != found:
            held = "holds" if found else "holds no"
            self.ledger.notes.append(f"{key} is {stated} in the config, but the file {held} {name}")
        return found

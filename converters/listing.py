"""Several things in one line of a message."""

from collections.abc import Iterable


def listed(things: Iterable[object], most: int | None = None) -> str:
    """Things as a message says them: `1, 2, 5`.

    Args:
        things: names or numbers.
        most: how many are said; of the others, how many they are. By default all are said.
    """
    every = [str(thing) for thing in things]
    rest = 0 if most is None else len(every) - most
    return ", ".join(every[:most]) + (f" and {rest} more" if rest > 0 else "")

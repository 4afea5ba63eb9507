"""Which target states feed the draft, as boundaries, and how files number them.

Boundary b is the residual stream after b target layers: 0 the embeddings, L the last layer's
output before the final norm. Files number them in two ways, and which way depends on the
framework: by boundary, or by the layer whose output is taken (boundary - 1, so the embeddings
are -1).
"""

from typing import Literal

Numbering = Literal["boundary", "output"]


def default_boundaries(num_layers: int) -> tuple[int, int, int]:
    """The capture that every framework defaults to: boundaries 2, L//2, L-3.

    Raises:
        ValueError: when the target is too shallow for three different ones.
    """
    boundaries = (2, num_layers // 2, num_layers - 3)
    if not boundaries[0] < boundaries[1] < boundaries[2]:
        raise ValueError(
            f"a target of {num_layers} layers has no default capture: {boundaries} are not "
            "three ascending boundaries"
        )
    return boundaries


def to_ids(boundaries: tuple[int, ...], numbering: Numbering) -> list[int]:
    """Boundaries as a file of that numbering writes them."""
    return [b - _offset(numbering) for b in boundaries]


def from_ids(ids: list[int], numbering: Numbering, num_layers: int | None) -> tuple[int, ...]:
    """The boundaries that a file's ids mean.

    Args:
        ids: as written.
        numbering: how the file numbers.
        num_layers: L where it is known, to check the range.

    Raises:
        ValueError: for an id outside the target, or ids that do not ascend.
    """
    boundaries = tuple(i + _offset(numbering) for i in ids)
    lowest, highest = to_ids((0,), numbering)[0], None
    if num_layers is not None:
        highest = to_ids((num_layers,), numbering)[0]
    for layer_id in ids:
        if layer_id < lowest or (highest is not None and layer_id > highest):
            raise ValueError(
                f"layer id {layer_id} is outside the target, expected {lowest} to "
                f"{'L' if highest is None else highest}"
            )
    if list(boundaries) != sorted(set(boundaries)):
        raise ValueError(f"layer ids {list(ids)} do not ascend, expected each higher than the last")
    return boundaries


def _offset(numbering: Numbering) -> int:
    return 1 if numbering == "output" else 0

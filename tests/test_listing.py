"""Several things in one line of a message."""

import pytest

from converters.listing import listed


@pytest.mark.parametrize(
    ("things", "most", "said"),
    [
        ((1, 2, 5), None, "1, 2, 5"),
        (iter("abc"), 3, "a, b, c"),
        (["a", "b", "c", "d"], 3, "a, b, c and 1 more"),
        ([], 3, ""),
    ],
)
def test_things_are_said_up_to_a_number(things, most, said):
    assert listed(things, most) == said

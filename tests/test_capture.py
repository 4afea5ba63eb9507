"""Boundaries and how files number them."""

import pytest

from eagle3_jax.capture import default_boundaries, from_ids, to_ids


def test_layer_output_ids_and_boundaries_of_the_same_states_resolve_alike():
    assert from_ids([1, 3, 4], "output", 8) == (2, 4, 5)
    assert from_ids([2, 4, 5], "boundary", 8) == (2, 4, 5)


@pytest.mark.parametrize("numbering", ["output", "boundary"])
def test_ids_survive_a_round_trip(numbering):
    for boundaries in [(0, 4, 8), (2, 4, 5), (7,), ()]:
        assert from_ids(to_ids(boundaries, numbering), numbering, 8) == boundaries


def test_minus_one_means_the_embeddings_among_layer_output_ids():
    assert from_ids([-1, 7], "output", 8) == (0, 8)
    assert to_ids((0, 8), "output") == [-1, 7]
    assert to_ids((0, 8), "boundary") == [0, 8]


def test_the_last_boundary_is_the_number_of_layers():
    assert from_ids([4, 6, 8], "boundary", 8) == (4, 6, 8)


@pytest.mark.parametrize(
    ("ids", "numbering", "layers", "message"),
    [
        ([4, 6, 9], "boundary", 8, "layer id 9 is outside the target, expected 0 to 8"),
        ([4, 6, 8], "output", 8, "layer id 8 is outside the target, expected -1 to 7"),
        ([-1, 6], "boundary", 8, "layer id -1 is outside the target, expected 0 to 8"),
        ([-2, 6], "output", None, "layer id -2 is outside the target, expected -1 to L"),
        ([1, 1], "output", 8, r"layer ids \[1, 1\] do not ascend, expected each higher"),
        ([3, 1], "output", None, r"layer ids \[3, 1\] do not ascend, expected each higher"),
    ],
)
def test_ids_that_no_target_has_are_refused(ids, numbering, layers, message):
    with pytest.raises(ValueError, match=message):
        from_ids(ids, numbering, layers)


def test_without_the_number_of_layers_high_ids_pass():
    assert from_ids([2, 500], "boundary", None) == (2, 500)


def test_the_default_capture_is_early_middle_and_late():
    assert default_boundaries(8) == (2, 4, 5)
    assert default_boundaries(7) == (2, 3, 4)
    assert default_boundaries(33) == (2, 16, 30)


@pytest.mark.parametrize("layers", [1, 5, 6])
def test_a_shallow_target_has_no_default_capture(layers):
    message = f"a target of {layers} layers has no default capture: .* three ascending boundaries"
    with pytest.raises(ValueError, match=message):
        default_boundaries(layers)

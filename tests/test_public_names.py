"""The public face: every name is there, and each comes from where the type checker sees it."""

import pkgutil

import pytest

import eagle3_jax


@pytest.mark.parametrize("name", eagle3_jax.__all__)
def test_public_name_is_there(name):
    assert getattr(eagle3_jax, name).__module__.startswith("eagle3_jax.")


def test_every_lazy_name_is_public_and_the_other_way_round():
    lazy = [name for names in eagle3_jax._HOME.values() for name in names]
    assert sorted(lazy) == sorted(eagle3_jax.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'eagle3_jax' has no attribute 'drafter'"):
        eagle3_jax.drafter  # noqa: B018


def test_no_name_is_also_a_module():
    """Importing the module would put it where the name was."""
    assert not set(eagle3_jax.__all__) & {
        name.name for name in pkgutil.iter_modules(eagle3_jax.__path__)
    }

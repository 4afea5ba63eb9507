"""The public faces: every name is there, and each comes from where the type checker sees it."""

import pkgutil

import pytest

import converters
import eagle3_jax

PACKAGES = (eagle3_jax, converters)
each = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)


@pytest.mark.parametrize(
    ("package", "name"), [(package, name) for package in PACKAGES for name in package.__all__]
)
def test_public_name_is_there(package, name):
    assert getattr(package, name).__module__.startswith(f"{package.__name__}.")


@each
def test_every_lazy_name_is_public_and_the_other_way_round(package):
    lazy = [name for names in package._HOME.values() for name in names]
    assert sorted(lazy) == sorted(package.__all__)


@each
def test_every_public_name_is_listed(package):
    assert dir(package) == sorted(package.__all__)


@each
def test_unknown_name_is_an_attribute_error(package):
    told = f"module '{package.__name__}' has no attribute 'drafter'"
    with pytest.raises(AttributeError, match=told):
        package.drafter  # noqa: B018


@each
def test_no_name_is_also_a_module(package):
    """Importing the module would put it where the name was."""
    assert not set(package.__all__) & {name.name for name in pkgutil.iter_modules(package.__path__)}

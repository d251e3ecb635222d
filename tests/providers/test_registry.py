"""Finding an adapter by its name."""

import pytest

from domain.errors import InvalidInput
from providers import registry


def test_every_name_has_its_adapter() -> None:
    """An adapter answers to the name it is registered under."""
    assert {"claude", "script"} <= set(registry.names())
    assert all(registry.get(name).name == name for name in registry.names())


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """The message says what would have been right."""
    with pytest.raises(InvalidInput, match=r"claude, .*script"):
        registry.get("nobody")

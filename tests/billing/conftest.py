"""What the tests of money share: after each one, the books must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from billing import books
from portal.actor import Actor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portal.models import User


@pytest.fixture
def sound_books(db: None) -> Iterator[None]:
    """Lines sum to balances and holds to what is held, whatever the test did; the triggers are still there."""
    yield
    assert books.faults() == []
    assert books.missing_triggers() == []


@pytest.fixture
def actor(operator: User) -> Actor:
    """The operator, acting."""
    return Actor.of_user(operator)

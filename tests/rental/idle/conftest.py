"""The simulated world, and a lease in it that is released when nothing uses it for ten minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import time_machine

from tests.rental.factories import running
from tests.rental.idle.world import NOON, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodes.models import Node
    from portal.models import Tenant, User
    from rental.models import Lease


@pytest.fixture
def world(node: Node) -> Iterator[World]:
    with time_machine.travel(NOON, tick=False) as moment:
        yield World(node, moment)


@pytest.fixture
def lease(world: World, renter: User, tenant: Tenant) -> Lease:
    """Ready at noon, with ten minutes of idle time: exempt until 12:10, warned at 12:15, released at 12:20."""
    return running(renter, tenant, inactive_timeout_s=600)

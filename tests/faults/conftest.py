"""Two nodes of two GPUs each under one portal, for tests that break things. After each test all must be whole again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from tests.e2e.conftest import Desk
from tests.faults import times, truth
from tests.rig.nvml import make_gpus
from tests.rig.services import Postgres, postgres
from tests.rig.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripts.demolib.renter import Renter
    from tests.e2e.guest import Guest
    from tests.rig.stack_node import StackNode

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe"
Rent = Callable[..., "Guest"]


@pytest.fixture(scope="package")
def database() -> Iterator[Postgres | None]:
    """A PostgreSQL of our own that may be killed, where the run is about PostgreSQL; None on SQLite."""
    if not str(settings.DATABASES["default"]["ENGINE"]).endswith("postgresql"):
        yield None
        return
    with postgres(durable=True) as server:
        yield server


@pytest.fixture(scope="package")
def fleet(bundle_dir: Path, database: Postgres | None) -> Iterator[Stack]:
    """Portal and two nodes: H100 on the first, A100 on the second."""
    url = database.url if database else None
    with ExitStack() as exits:
        yield exits.enter_context(
            Stack(
                make_gpus(2, name=H100), bundle_dir, url, more_nodes=[make_gpus(2, name=A100)], settings=times.SETTINGS
            )
        )


@pytest.fixture(scope="package")
def renter(fleet: Stack) -> Renter:
    """Somebody with a key, a token and money."""
    return fleet.renter("ines", money="500.00")


@pytest.fixture(scope="package")
def desk(fleet: Stack) -> Desk:
    """Orders."""
    return Desk(fleet)


@pytest.fixture
def rent(fleet: Stack, desk: Desk, renter: Renter) -> Iterator[Rent]:
    """Rents an H100 unless told otherwise; after the test all leases end, and everything must be whole."""

    def begin(**wanted: Any) -> Guest:
        return desk.rent(renter, **wanted)

    yield begin
    for (lease_id,) in fleet.query("select id from rental_lease where state not in (?, ?)", *truth.OVER):
        desk.stop(renter, lease_id)
    fleet.wait("the catalog as at the start", lambda: fleet.free_count() == 4, seconds=90)
    truth.assert_whole(fleet)
    for (lease_id,) in fleet.query("select id from rental_lease"):
        truth.assert_receipt_is_whole(renter, lease_id)


def other(fleet: Stack, node: StackNode) -> StackNode:
    """The node beside this one."""
    return next(found for found in fleet.nodes if found is not node)

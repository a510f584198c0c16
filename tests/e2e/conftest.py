"""One live Lessor for all end-to-end tests, its people, and leases that end with their test."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings

from scripts.demolib.processes import DemoError
from tests.e2e.guest import Guest
from tests.rig.images import SCRATCH
from tests.rig.nvml import make_gpus
from tests.rig.stack import Stack, postgres_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripts.demolib.renter import Renter

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100 80GB PCIe"
LIMIT_S = 90.0
Rent = Callable[..., Guest]


class Desk:
    """Ordering and releasing through the API. `left` is what of a lease is on the machine afterwards."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def order(self, renter: Renter, **wanted: Any) -> dict[str, Any]:
        """Quote and order; the new lease as the API answers it."""
        request = {"gpu_model": H100, "gpu_count": 1, "image": SCRATCH, "max_duration_s": 3600} | wanted
        quote = renter.call("POST", "quotes", request)
        return renter.call("POST", "leases", {"quote": quote["quote"]})

    def rent(self, renter: Renter, **wanted: Any) -> Guest:
        """Order and wait until it is ready; the renter inside it."""
        lease = self.order(renter, **wanted)
        try:
            ready, _ = renter.follow(lease["id"], "ready_at", since=time.monotonic(), seconds=LIMIT_S)
        except DemoError as error:
            pytest.fail(f"{error}\nagent:\n{self.stack.log('agent')}")
        return Guest(renter, ready, renter.home / "demo_ed25519")

    def stop(self, renter: Renter, lease_id: str) -> dict[str, Any]:
        """Release it and wait for its end."""
        renter.call("POST", f"leases/{lease_id}/stop")
        return self.ended(renter, lease_id)

    def ended(self, renter: Renter, lease_id: str) -> dict[str, Any]:
        """The lease once it has ended, by itself or not."""
        path = f"leases/{lease_id}"
        self.stack.wait("the lease's end", lambda: renter.call("GET", path)["state"] == "ended", seconds=LIMIT_S)
        return renter.call("GET", path)

    def codes(self, renter: Renter, lease_id: str) -> list[str]:
        """The codes of its history, oldest first."""
        return [event["code"] for event in renter.call("GET", f"leases/{lease_id}/events")["results"]]

    def assert_costs_nothing(self, renter: Renter, lease_id: str) -> None:
        """No second charged, nothing held back, nothing left on the machine, no device taken."""
        receipt = renter.call("GET", f"leases/{lease_id}/receipt")
        assert (receipt["seconds"], receipt["total_ticks"], receipt["ledger_ticks"]) == (0, 0, 0)
        self.assert_gone(lease_id)

    def assert_gone(self, lease_id: str) -> None:
        """Nothing of it on the machine, in the database's capacity, or held back of the balance."""
        [(container_id,)] = self.stack.query("select container_id from rental_lease where id = ?", lease_id)
        left = self.stack.node.left_of(lease_id, container_id)
        assert not any(left.values()), left
        assert self.stack.devices_in_database(lease_id) == []
        assert self.stack.query("select 1 from billing_hold where lease_id = ? and released_at is null", lease_id) == []


@pytest.fixture(scope="package")
def stack(bundle_dir: Path) -> Iterator[Stack]:
    """Portal and node, on the database that this run of the tests is about."""
    gpus = [*make_gpus(4, name=H100), *make_gpus(1, name=A100)]
    gpus[4] = type(gpus[4])(uuid=gpus[4].uuid, name=A100, index=4, serial="1650123099999")
    database = settings.DATABASES["default"]
    with ExitStack() as exits:
        url = None
        if str(database["ENGINE"]).endswith("postgresql"):
            server = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/postgres".format(**database)
            url = exits.enter_context(postgres_database(server))
        yield exits.enter_context(Stack(gpus, bundle_dir, url))


@pytest.fixture(scope="package")
def renter(stack: Stack) -> Renter:
    """Somebody with a key, a token and 50 dollars."""
    return stack.renter("maya")


@pytest.fixture(scope="package")
def neighbour(stack: Stack) -> Renter:
    """Somebody else."""
    return stack.renter("noor")


@pytest.fixture(scope="package")
def desk(stack: Stack) -> Desk:
    """Orders."""
    return Desk(stack)


@pytest.fixture(scope="package")
def one_minute(desk: Desk, neighbour: Renter) -> Iterator[dict[str, Any]]:
    """A lease of the shortest duration there is, on the one GPU of its model."""
    lease = desk.order(neighbour, gpu_model=A100, max_duration_s=60)
    yield lease
    if neighbour.call("GET", f"leases/{lease['id']}")["state"] != "ended":
        desk.stop(neighbour, lease["id"])


@pytest.fixture
def rent(desk: Desk) -> Iterator[Rent]:
    """Rents that end with the test; the test may end them earlier."""
    rented: list[Guest] = []

    def begin(renter: Renter, **wanted: Any) -> Guest:
        rented.append(desk.rent(renter, **wanted))
        return rented[-1]

    yield begin
    for guest in rented:
        desk.stop(guest.renter, guest.id)

"""Every way a lease ends other than by its renter's word, and that none of the bad ones costs anything."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import A100, H100

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module", autouse=True)
def one_minute(desk: Desk, neighbour: Renter) -> Iterator[dict[str, Any]]:
    """A lease of the shortest duration there is, running beside the other tests until the last one waits for it."""
    lease = desk.order(neighbour, gpu_model=A100, max_duration_s=60)
    yield lease
    if neighbour.call("GET", f"leases/{lease['id']}")["state"] != "ended":
        desk.stop(neighbour, lease["id"])


def test_a_gpu_that_has_gone_since_the_inventory_fails_the_lease_free_of_charge(
    stack: Stack, desk: Desk, renter: Renter
) -> None:  # case F01
    with stack.node.agent_frozen():
        lease = desk.order(renter, gpu_count=2)
        gone = stack.engine.fleet.remove(stack.devices_in_database(lease["id"])[0])
    try:
        over = desk.ended(renter, lease["id"])
    finally:
        stack.engine.fleet.add(gone)

    assert over["end_reason"] == "failed_gpu"
    assert gone.uuid in over["end_detail"]
    desk.assert_costs_nothing(renter, lease["id"])
    stack.wait("the GPU's return", lambda: stack.free(H100) == 4)


def test_an_unknown_image_fails_the_lease_free_of_charge(stack: Stack, desk: Desk, renter: Renter) -> None:  # case F01
    lease = desk.order(renter, image="localhost:1/nobody/has-this:1")
    over = desk.ended(renter, lease["id"])

    assert over["end_reason"] == "failed_image"
    assert "localhost:1/nobody/has-this:1" in over["end_detail"]
    desk.assert_costs_nothing(renter, lease["id"])
    assert stack.free(H100) == 4


def test_a_stop_before_ready_cancels_free_of_charge(stack: Stack, desk: Desk, renter: Renter) -> None:  # case F01
    stack.engine.pause()
    try:
        lease = desk.order(renter)
        path = f"leases/{lease['id']}"
        stack.wait("the node's answer", lambda: renter.call("GET", path)["state"] == "starting")
        assert renter.call("POST", f"{path}/stop")["state"] == "stopping"
    finally:
        stack.engine.resume()
    over = desk.ended(renter, lease["id"])

    assert (over["end_reason"], over["ready_at"]) == ("cancelled", None)
    desk.assert_costs_nothing(renter, lease["id"])
    assert stack.free(H100) == 4


def test_a_main_process_that_ends_by_itself_releases_the_lease(
    stack: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:
    guest = rent(renter)
    stack.engine.docker("kill", "--signal", "TERM", guest.lease["container_id"])
    over = desk.ended(renter, guest.id)

    assert over["end_reason"] == "released"
    receipt = renter.call("GET", f"leases/{guest.id}/receipt")
    assert receipt["ledger_ticks"] == receipt["total_ticks"] == sum(line["ticks"] for line in receipt["lines"])
    desk.assert_gone(guest.id)


def test_the_node_stops_at_the_maximum_duration_and_no_second_more_is_charged(
    desk: Desk, neighbour: Renter, one_minute: dict[str, Any]
) -> None:
    neighbour.follow(one_minute["id"], "ready_at", since=time.monotonic())
    over = desk.ended(neighbour, one_minute["id"])

    assert over["end_reason"] == "max_duration"
    receipt = neighbour.call("GET", f"leases/{one_minute['id']}/receipt")
    assert 0 < receipt["seconds"] <= 60
    assert receipt["ledger_ticks"] == receipt["seconds"] * over["price_micros_per_hour"]
    desk.assert_gone(one_minute["id"])

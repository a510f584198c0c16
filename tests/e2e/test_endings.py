"""Every way a lease ends other than by its renter's word, and that none of the bad ones costs anything."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import H100

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

# the lease of one minute runs beside these tests and those that follow; tests/e2e/test_time.py waits for its end
pytestmark = [pytest.mark.rig, pytest.mark.usefixtures("one_minute")]


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
    # A new agent has no older look at its GPUs, which it would tell a moment later.
    stack.node.stop_agent()
    stack.node.start_agent()
    stack.wait("the GPU's return", lambda: stack.free(H100) == 4)


def test_an_unknown_image_fails_the_lease_free_of_charge(stack: Stack, desk: Desk, renter: Renter) -> None:  # case F01
    lease = desk.order(renter, image="localhost:1/nobody/has-this:1")
    over = desk.ended(renter, lease["id"])

    assert over["end_reason"] == "failed_image"
    assert "localhost:1/nobody/has-this:1" in over["end_detail"]
    desk.assert_costs_nothing(renter, lease["id"])
    assert stack.free(H100) == 4


def test_a_stop_during_the_pull_cancels_at_once_and_free_of_charge(
    stack: Stack, desk: Desk, renter: Renter
) -> None:  # case F01, case C03
    with socket.create_server((stack.engine.host_ip, 0)) as silent:  # a registry that answers nobody
        port = silent.getsockname()[1]
        lease = desk.order(renter, image=f"{stack.engine.host_ip}:{port}/nobody/slow:1")
        path = f"leases/{lease['id']}"
        stack.wait("the node's answer", lambda: renter.call("GET", path)["state"] == "starting")
        assert renter.call("POST", f"{path}/stop")["state"] == "stopping"
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


def test_an_operators_stop_ends_the_lease_with_the_reason_given(
    stack: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:
    guest = rent(renter)
    stack.operator().form(f"/admin/rental/lease/{guest.id}/stop/", {"reason": "The rack moves."})
    over = desk.ended(renter, guest.id)

    assert (over["end_reason"], over["end_detail"]) == ("operator", "The rack moves.")
    receipt = renter.call("GET", f"leases/{guest.id}/receipt")
    assert receipt["lines"][-1]["end"] <= over["stop_requested_at"]
    assert receipt["ledger_ticks"] == receipt["total_ticks"]
    desk.assert_gone(guest.id)

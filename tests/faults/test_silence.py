"""Nodes out of reach: for a while, for too long, and back again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.faults import times, truth
from tests.faults.conftest import A100, H100

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk
    from tests.faults.conftest import Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig


@pytest.mark.long
def test_a_node_away_for_a_while_loses_nothing_and_its_time_is_confirmed_afterwards(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case G01
    guest = rent()
    fleet.node.cut()
    try:
        fleet.wait("the node to be called silent", lambda: fleet.free_count() == 2, seconds=times.QUIET_S + 30)
        time.sleep(max(0, times.SHORT_CUT_S - times.QUIET_S))
        assert desk.rent(renter, gpu_model=A100).run("echo other").stdout == "other\n"
    finally:
        fleet.node.join()
    fleet.wait("the node to sell again", lambda: fleet.free_count() == 2)  # one of each model is leased
    assert guest.run("echo still here").stdout == "still here\n"
    ended = desk.stop(renter, guest.id)

    receipt = truth.assert_receipt_is_whole(renter, guest.id)
    assert "node_silent" not in truth.reasons(receipt)
    assert ended["end_reason"] == "released"


@pytest.mark.long
def test_a_node_away_for_too_long_loses_its_leases_and_stops_them_by_its_own_clock(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case G01
    guest, beside = rent(), rent(gpu_model=A100)
    fleet.node.cut()
    try:
        lost = _ended(fleet, renter, guest.id)
        fleet.wait("the agent's own end of it", lambda: not fleet.node.containers(), seconds=times.LOST_WITHIN_S)
        assert lost["end_reason"] == "node_lost"
        # Nobody may have what is out of sight.
        assert fleet.devices_in_database(guest.id) != []
        assert fleet.free(H100) == 0
        assert beside.run("true").returncode == 0
    finally:
        fleet.node.join()
    fleet.wait("its devices to be free", lambda: fleet.devices_in_database(guest.id) == [], seconds=90)

    receipt = truth.assert_receipt_is_whole(renter, guest.id)
    [confirmed] = fleet.query("select confirmed_at from rental_lease where id = ?", guest.id)
    [(segment_end,)] = fleet.query('select "end" from rental_usagesegment where lease_id = ?', guest.id)
    assert segment_end == confirmed[0]  # charged to the last moment the node vouched for it
    assert truth.reasons(receipt) <= {"starting", "node_silent"}
    assert truth.nothing_left(fleet.node, guest.id)


def _ended(fleet: Stack, renter: Renter, lease_id: str) -> dict[str, object]:
    fleet.wait(
        "the lease's end",
        lambda: renter.call("GET", f"leases/{lease_id}")["state"] == "ended",
        seconds=times.LOST_WITHIN_S,
    )
    return renter.call("GET", f"leases/{lease_id}")


@pytest.mark.long
def test_a_container_that_ended_while_its_node_was_away_is_not_called_running(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case G01
    guest = rent()
    fleet.node.cut()
    try:
        fleet.wait("the node to be called silent", lambda: fleet.free_count() == 2, seconds=times.QUIET_S + 30)
        fleet.engine.docker("kill", guest.lease["container_id"])
    finally:
        fleet.node.join()
    ended = desk.ended(renter, guest.id)

    assert ended["end_reason"] == "released"
    truth.assert_receipt_is_whole(renter, guest.id)


@pytest.mark.long
def test_a_node_that_comes_back_from_a_reboot_cleans_what_is_left_and_sells_again(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case G01
    guest = rent()
    fleet.node.kill_agent()
    fleet.node.kill_gateway()
    fleet.engine.kill_dockerd()
    fleet.engine.docker("version", check=False)
    fleet.engine.start_dockerd()
    fleet.engine.docker("kill", guest.lease["container_id"], check=False)  # nothing of it survives a reboot
    fleet.node.start_gateway()
    fleet.node.start_agent()
    ended = desk.ended(renter, guest.id)

    assert ended["end_reason"] in {"released", "node_lost"}
    fleet.wait("its devices to be free", lambda: fleet.devices_in_database(guest.id) == [])
    assert truth.nothing_left(fleet.node, guest.id)
    assert rent().run("echo again").stdout == "again\n"

"""Engine, agent, broker, portal and database, each taken away and given back while leases run, start and stop."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.faults import times, truth
from tests.faults.conftest import A100, H100

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk
    from tests.faults.conftest import Rent
    from tests.rig.services import Postgres
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig


def test_an_engine_killed_and_started_again_ends_no_lease(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case C09
    guest, beside = rent(), rent(gpu_model=A100)
    fleet.engine.kill_dockerd()
    waiting = desk.order(renter)  # while it is away
    assert beside.run("true").returncode == 0
    fleet.engine.start_dockerd()
    fleet.wait("a login", lambda: guest.run("true").returncode == 0)
    assert renter.call("GET", f"leases/{guest.id}")["state"] == "running"
    # The order is carried out late, or fails free of charge; then the next one is served.
    if _settled(fleet, renter, waiting["id"]) != "running":
        desk.assert_costs_nothing(renter, waiting["id"])
        fleet.wait("the node to sell", lambda: fleet.free(H100) == 1)
        assert rent().run("true").returncode == 0


def _settled(fleet: Stack, renter: Renter, lease_id: str) -> str:
    """What became of an order: running, or the reason it ended for."""
    path = f"leases/{lease_id}"
    fleet.wait("an end of the start", lambda: renter.call("GET", path)["state"] in {"running", "ended"}, seconds=90)
    lease = renter.call("GET", path)
    return str(lease["end_reason"] or lease["state"])


@pytest.mark.long
def test_an_engine_that_takes_its_containers_with_it_ends_their_lease_and_charges_no_longer(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case C09
    guest = rent(gpu_model=A100)
    fleet.nodes[1].engine.kill_dockerd()
    fleet.nodes[1].engine.start_dockerd()
    ended = desk.ended(renter, guest.id)
    assert ended["end_reason"] == "released"
    truth.assert_receipt_is_whole(renter, guest.id)
    fleet.wait("the cards", lambda: fleet.free(A100) == 2)
    assert rent(gpu_model=A100).run("true").returncode == 0


def test_an_engine_that_hangs_keeps_no_other_node_waiting_and_nothing_is_done_twice(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case C09
    guest = rent()
    fleet.engine.pause()
    try:
        renter.call("POST", f"leases/{guest.id}/stop")
        elsewhere = rent(gpu_model=A100)
        assert elsewhere.run("echo meanwhile").stdout == "meanwhile\n"
        assert renter.call("GET", f"leases/{guest.id}")["state"] == "stopping"
        assert fleet.devices_in_database(guest.id) != []
    finally:
        fleet.engine.resume()
    assert desk.ended(renter, guest.id)["end_reason"] == "released"
    desk.assert_gone(guest.id)


@pytest.mark.long
def test_a_broker_that_comes_back_empty_loses_no_order_and_no_stop(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case I05
    guest = rent()
    with fleet.node.agent_frozen():  # so that its messages are still queued when the broker goes
        ordered = desk.order(renter)
        renter.call("POST", f"leases/{guest.id}/stop")
        fleet.portal.kill_redis()
        fleet.portal.start_redis()
    renter.follow(ordered["id"], "ready_at", since=time.monotonic(), seconds=90)
    assert desk.ended(renter, guest.id)["end_reason"] == "released"
    fleet.wait("the nodes' users of the broker", lambda: _broker_users(fleet) == 2, seconds=90)


def _broker_users(fleet: Stack) -> int:
    return sum(str(name).startswith("node.") for name in fleet.redis().acl_users())


@pytest.mark.long
def test_orders_and_stops_are_done_while_the_broker_is_down(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case I05
    guest = rent()
    fleet.portal.kill_redis()
    try:
        renter.call("POST", f"leases/{guest.id}/stop")
        ordered = desk.order(renter, gpu_model=A100)
        fleet.wait("the stop", lambda: fleet.devices_in_database(guest.id) == [], seconds=60)
        fleet.wait("the order", lambda: (ordered["id"], "running") in fleet.nodes[1].containers(), seconds=60)
    finally:
        fleet.portal.start_redis()
    renter.follow(ordered["id"], "ready_at", since=time.monotonic(), seconds=60)


@pytest.mark.long
def test_a_portal_that_is_killed_and_comes_back_disturbs_nobody_and_charges_to_the_second(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:
    guest = rent()
    with guest.terminal(rows=24, cols=80) as terminal:
        fleet.portal.kill()
        time.sleep(times.PORTAL_AWAY_S)
        terminal.type("echo mean''while\n")
        terminal.read_until("meanwhile")
        fleet.portal.start()
        terminal.type("echo af''ter\n")
        terminal.read_until("after")
    fleet.wait("the nodes to sell", lambda: fleet.free_count() == 3)
    assert renter.call("GET", f"leases/{guest.id}")["state"] == "running"
    desk.stop(renter, guest.id)
    receipt = truth.assert_receipt_is_whole(renter, guest.id)
    assert "node_silent" not in truth.reasons(receipt)


@pytest.mark.long
def test_a_database_that_restarts_costs_nothing_but_time(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter, database: Postgres | None
) -> None:
    if database is None:
        pytest.skip("SQLite is a file")
    guest = rent()
    database.stop(signal.SIGQUIT)
    answer = renter.api.get(f"{fleet.portal.url}/api/v1/leases/{guest.id}", timeout=30)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    database.start()
    fleet.wait("the portal", lambda: renter.api.get(f"{fleet.portal.url}/healthz", timeout=20).ok)
    answers = [renter.api.get(f"{fleet.portal.url}/api/v1/leases/{guest.id}", timeout=30) for _ in range(20)]
    assert [answer.status_code for answer in answers] == [200] * 20
    ordered = desk.order(renter)
    renter.follow(ordered["id"], "ready_at", since=time.monotonic(), seconds=60)
    assert guest.run("true").returncode == 0


@pytest.mark.long
def test_an_agent_killed_while_leases_start_and_stop_finishes_both(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case G01
    for pause in (0.0, 0.1, 0.25, 0.5):
        guest = rent()
        renter.call("POST", f"leases/{guest.id}/stop")
        ordered = desk.order(renter)
        time.sleep(pause)
        fleet.node.kill_agent()
        fleet.node.start_agent()
        assert desk.ended(renter, guest.id)["end_reason"] == "released"
        renter.follow(ordered["id"], "ready_at", since=time.monotonic(), seconds=60)
        desk.stop(renter, ordered["id"])
        truth.assert_whole(fleet)


@pytest.mark.long
def test_one_message_twice_two_beats_and_two_workers_do_everything_once(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case I02
    fleet.portal.start_second()
    try:
        guest = rent()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: fleet.wake(fleet.node, guest.id), range(16)))
            list(pool.map(lambda _: renter.call("POST", f"leases/{guest.id}/stop"), range(4)))
            list(pool.map(lambda _: fleet.wake(fleet.node, guest.id), range(16)))
        assert desk.ended(renter, guest.id)["end_reason"] == "released"
    finally:
        fleet.portal.stop_second()
    codes = desk.codes(renter, guest.id)
    assert {code: codes.count(code) for code in ("started", "ready", "released", "cleaned")} == {
        "started": 1, "ready": 1, "released": 1, "cleaned": 1,
    }  # fmt: skip
    assert fleet.query("select count(*) from rental_usagesegment where lease_id = ?", guest.id) == [(1,)]


@pytest.mark.long
def test_a_gateway_that_is_killed_comes_back_with_its_host_key_and_the_lease_goes_on(fleet: Stack, rent: Rent) -> None:
    guest = rent()
    with guest.terminal(rows=24, cols=80) as terminal:
        terminal.type("echo be''fore\n")
        terminal.read_until("before")
        fleet.node.kill_gateway()
        assert terminal.client.wait(60) == 255
    fleet.node.start_gateway()
    fleet.wait("a login with the known host key", lambda: guest.run("true").returncode == 0)


@pytest.mark.long
def test_while_nobody_can_log_in_nothing_is_charged_and_the_receipt_says_why(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:
    guest = rent()
    asked = "select count(*) from rental_usagegap where lease_id = ? and reason = 'ssh_down' and \"end\" is "
    fleet.node.kill_gateway()
    fleet.wait("the gap", lambda: fleet.query(f"{asked} null", guest.id) == [(1,)], seconds=90)
    assert renter.call("GET", f"leases/{guest.id}")["state"] == "running"
    fleet.node.start_gateway()
    fleet.wait("the gap's end", lambda: fleet.query(f"{asked} not null", guest.id) == [(1,)], seconds=90)
    assert guest.run("true").returncode == 0
    desk.stop(renter, guest.id)
    receipt = truth.assert_receipt_is_whole(renter, guest.id)
    assert "ssh_down" in truth.reasons(receipt)
    assert len(receipt["lines"]) == 2  # before and after it

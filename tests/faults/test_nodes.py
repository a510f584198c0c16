"""Operators and nodes: draining under leases, a stolen credential, the same name again, an upgrade, a wrong clock."""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import redis
import requests

from scripts.demolib.processes import DemoError
from tests.faults import truth
from tests.faults.conftest import A100, H100

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk
    from tests.faults.conftest import Rent
    from tests.rig.stack import Stack
    from tests.rig.stack_node import StackNode

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module")
def operator(fleet: Stack) -> Renter:
    """Who runs the fleet."""
    return fleet.operator()


def press(operator: Renter, node: StackNode, button: str) -> None:
    """A button of the node's admin page, with its confirmation."""
    operator.form(f"/admin/nodes/node/{node.node_id}/{button}/", {})


@pytest.fixture
def undrained(fleet: Stack, operator: Renter, rent: Rent) -> Iterator[None]:  # ends before `rent` does
    """Whatever the test does, the node sells again afterwards."""
    yield
    if fleet.query("select 1 from nodes_node where id = ? and draining_since is not null", fleet.node.node_id):
        press(operator, fleet.node, "undrain")


@pytest.mark.usefixtures("undrained")
def test_a_drain_takes_no_new_lease_and_leaves_the_running_one_alone_also_over_an_agents_restart(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter, operator: Renter
) -> None:  # case G06
    guest = rent()
    press(operator, fleet.node, "drain")
    with pytest.raises(DemoError, match="no_capacity"):
        desk.order(renter)
    fleet.node.stop_agent()
    fleet.node.start_agent()
    fleet.wait("a login", lambda: guest.run("true").returncode == 0)
    with pytest.raises(DemoError, match="no_capacity"):
        desk.order(renter)
    press(operator, fleet.node, "undrain")
    assert fleet.free(H100) == 1  # the card of the running lease stays taken
    assert rent().run("true").returncode == 0
    with pytest.raises(DemoError, match="no_capacity"):
        desk.order(renter)


@pytest.mark.usefixtures("undrained")
def test_no_lease_appears_on_a_node_after_its_drain_was_answered(
    fleet: Stack, desk: Desk, renter: Renter, operator: Renter, rent: Rent
) -> None:  # case G06
    def order(_: int) -> str | None:
        try:
            return str(desk.order(renter)["id"])
        except DemoError:
            return None

    with ThreadPoolExecutor(8) as pool:
        orders = [pool.submit(order, number) for number in range(6)]
        press(operator, fleet.node, "drain")
        late = [pool.submit(order, number) for number in range(6)]
    made = [order.result() for order in orders if order.result()]
    assert [order.result() for order in late if order.result()] == []
    since = fleet.query("select draining_since from nodes_node where id = ?", fleet.node.node_id)
    for lease_id in made:
        assert fleet.query("select requested_at from rental_lease where id = ?", str(lease_id)) < since
    truth.assert_capacity(fleet)


def test_two_machines_with_one_host_name_and_machine_id_are_two_nodes(fleet: Stack) -> None:  # case G02
    machines = fleet.query("select name, machine_id, machine from nodes_node where revoked_at is null order by name")
    assert [row[0] for row in machines] == ["rig-1", "rig-2"]
    assert len({row[1] for row in machines}) == 1
    assert len({fleet.node.node_id, fleet.nodes[1].node_id}) == 2


@pytest.mark.long
def test_a_stolen_credential_is_worth_nothing_within_seconds_and_the_name_begins_anew(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter, operator: Renter
) -> None:
    node = fleet.nodes[1]
    guest = rent(gpu_model=A100)
    secrets = json.loads((node.state / "agent.json").read_text())["identity"]
    old_id, containers = node.node_id, node.containers()
    press(operator, node, "revoke")

    headers = {"Authorization": f"Bearer {secrets['node_token']}"}
    answer = requests.get(f"{fleet.portal.url}/api/node/v1/desired", headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (401, "node_revoked")
    with pytest.raises(redis.exceptions.AuthenticationError):
        redis.Redis.from_url(secrets["broker_url"]).ping()
    assert not [user for user in fleet.redis().client_list() if user["user"] == f"node.{old_id}"]

    # The machine comes back under its old name: a new node, which inherits nothing.
    node.stop_agent()
    node.enrol("rig-2")
    node.start_agent()
    assert node.node_id != old_id
    ended = _ended_as_lost(fleet, renter, guest.id)
    assert ended["end_reason"] == "node_lost"
    assert containers != []
    fleet.wait("nothing of the old lease on the machine", lambda: node.containers() == [], seconds=90)
    fleet.wait("its cards for sale", lambda: fleet.free(A100) == 2, seconds=120)
    assert [lease for lease in _leases_of(fleet, node) if lease == guest.id] == []
    assert rent(gpu_model=A100).run("true").returncode == 0


def _ended_as_lost(fleet: Stack, renter: Renter, lease_id: str) -> dict[str, Any]:
    path = f"leases/{lease_id}"
    fleet.wait("the end of the lease", lambda: renter.call("GET", path)["state"] == "ended", seconds=150)
    return renter.call("GET", path)


def _leases_of(fleet: Stack, node: StackNode) -> list[str]:
    return [row[0] for row in fleet.query("select id from rental_lease where node_id = ?", node.node_id)]


@pytest.mark.long
@pytest.mark.parametrize("year", ["1970", "2100"])
def test_a_node_with_a_wrong_clock_sells_runs_and_is_charged_like_any_other(
    fleet: Stack, desk: Desk, rent: Rent, renter: Renter, year: str
) -> None:  # case B07
    fleet.node.stop_agent()
    fleet.node.start_agent(year=year)
    try:
        fleet.wait("the node to sell", lambda: fleet.free(H100) == 2)
        guest = rent()
        assert guest.run("/.lease/bin/busybox sleep 1.2").returncode == 0
        ended = desk.stop(renter, guest.id)
        assert ended["end_reason"] == "released"
        receipt = truth.assert_receipt_is_whole(renter, guest.id)
        assert 0 < receipt["seconds"] < 120  # not the years by which the clock is wrong
    finally:
        fleet.node.stop_agent()
        fleet.node.start_agent()


def test_a_second_agent_on_a_node_refuses_to_start(fleet: Stack) -> None:
    done = subprocess.run(
        fleet.node.agent_command(),
        env={**os.environ, **fleet.node.environment()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "Another agent" in done.stdout + done.stderr

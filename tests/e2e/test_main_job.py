"""The main job: a renter rents two of four GPUs, works on them over SSH, and pays for the seconds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from scripts.demolib.facts import hostconfig_deviations
from tests.e2e.conftest import H100
from tests.rig.images import WORKSPACE

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

pytestmark = [pytest.mark.rig, pytest.mark.smoke_sqlite]


def test_two_of_four_gpus_are_leased_used_and_paid_to_the_second(
    stack: Stack, desk: Desk, renter: Renter, rent: Rent
) -> None:  # case H07
    rules = stack.node.iptables()
    before = renter.call("GET", "balance")

    guest = rent(renter, gpu_count=2, image=WORKSPACE)

    assert stack.free(H100) == 2
    devices = stack.devices_in_database(guest.id)
    assert len(devices) == 2
    assert guest.probe() | {"driver": ""} == {"source": "nvml", "devices": devices, "driver": ""}
    assert sorted(guest.lease["devices"]) == devices
    assert hostconfig_deviations(stack.engine.socket, guest.lease["container_id"]) == []
    assert guest.run("echo from inside; exit 7").returncode == 7
    stack.wait("a second to pay for", lambda: renter.call("GET", f"leases/{guest.id}")["seconds_charged"] > 0)

    over = desk.stop(renter, guest.id)

    assert over["end_reason"] == "released"
    receipt = renter.call("GET", f"leases/{guest.id}/receipt")
    assert receipt["provisional"] is False
    seconds = sum(line["seconds"] for line in receipt["lines"])
    assert seconds == receipt["seconds"] > 0
    assert receipt["total_ticks"] == sum(line["ticks"] for line in receipt["lines"]) == seconds * 2 * 2_490_000
    assert receipt["ledger_ticks"] == receipt["total_ticks"]
    after = renter.call("GET", "balance")
    assert before["balance_ticks"] - after["balance_ticks"] == receipt["total_ticks"]
    assert after["held_ticks"] == before["held_ticks"]
    assert stack.free(H100) == 4
    desk.assert_gone(guest.id)
    assert stack.node.iptables() == rules
    assert desk.codes(renter, guest.id) == [
        "requested", "assigned", "starting", "started", "ready", "released", "stopped", "cleaned",
    ]  # fmt: skip


def test_the_portal_waits_for_the_proofs_before_it_charges(desk: Desk, renter: Renter, rent: Rent) -> None:
    guest = rent(renter)

    evidence = desk.stack.query("select evidence from rental_lease where id = ?", guest.id)[0][0]
    assert "devices_seen" in str(evidence)
    assert "nvml" in str(evidence)
    line = renter.call("GET", f"leases/{guest.id}/receipt")["lines"][0]
    assert line["start"] == guest.lease["ready_at"]


def test_two_renters_on_one_node_share_no_device_and_no_network(
    stack: Stack, renter: Renter, neighbour: Renter, rent: Rent
) -> None:  # case H09
    mine, theirs = rent(renter, image=WORKSPACE), rent(neighbour, image=WORKSPACE)

    assert not set(mine.probe()["devices"]) & set(theirs.probe()["devices"])
    assert mine.run("/.lease/bin/busybox httpd -p 8000 -h /etc").returncode == 0
    address = mine.run("/.lease/bin/busybox hostname -i").stdout.strip()
    page = f"http://{address}:8000/hostname"
    assert mine.run(f"curl -sS -m 10 {page}").stdout.strip() == mine.id
    assert theirs.run(f"curl -sS -m 2 {page}").returncode != 0
    closed = [
        f"{host}/{port}"
        for host in (stack.engine.ip, stack.engine.host_ip)
        for port in (2222, stack.portal.port, stack.portal.redis_port)
    ]
    knock = "(timeout 2 bash -c '</dev/tcp/{0}' && echo {0}) 2>/dev/null &"
    assert theirs.run(" ".join(knock.format(place) for place in closed) + " wait").stdout == ""
    refused = neighbour.api.get(f"{stack.portal.url}/api/v1/leases/{mine.id}", timeout=20)
    assert refused.status_code == 404
    stolen = type(mine)(neighbour, mine.lease, theirs.key)
    assert stolen.run("true").returncode == 255


def test_a_second_stop_changes_nothing(desk: Desk, renter: Renter, rent: Rent) -> None:
    guest = rent(renter)
    since = time.monotonic()
    first = renter.call("POST", f"leases/{guest.id}/stop")
    renter.follow(guest.id, "ended_at", since=since)
    again = renter.call("POST", f"leases/{guest.id}/stop")

    assert again["stop_requested_at"] == first["stop_requested_at"]
    assert again["ticks"] == renter.call("GET", f"leases/{guest.id}/receipt")["total_ticks"]
    desk.assert_gone(guest.id)

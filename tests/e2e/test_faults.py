"""What must not disturb a lease, and what must take effect at once: broker, agent, keys, races, bad fields."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import H100
from tests.e2e.guest import Guest
from tests.rig.images import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    import requests

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig

LAST_GPU = {"gpu_model": H100, "gpu_count": 1, "image": SCRATCH, "max_duration_s": 3600}


@pytest.fixture
def frozen_redis(stack: Stack) -> Iterator[None]:
    """Redis accepts connections and answers nothing: cache, Celery's broker and the nodes' broker in one."""
    os.kill(stack.portal.redis.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stack.portal.redis.pid, signal.SIGCONT)


@pytest.mark.usefixtures("frozen_redis")
def test_orders_and_stops_are_done_while_no_broker_answers(desk: Desk, rent: Rent, renter: Renter) -> None:  # case I05
    guest = rent(renter)
    assert guest.run("echo up").stdout == "up\n"
    assert desk.stop(renter, guest.id)["end_reason"] == "released"
    desk.assert_gone(guest.id)


def test_an_agent_that_restarts_leaves_lease_and_session_alone(
    stack: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:
    guest = rent(renter)
    with guest.terminal(rows=24, cols=80) as terminal:
        terminal.type("echo be''fore\n")
        terminal.read_until("before")
        stack.node.stop_agent()
        terminal.type("echo mean''while\n")
        terminal.read_until("meanwhile")
        stack.node.start_agent()
        stack.wait("a login by the new agent", lambda: guest.run("true").returncode == 0)
        terminal.type("echo af''ter\n")
        terminal.read_until("after")
    lease = renter.call("GET", f"leases/{guest.id}")
    assert (lease["state"], lease["container_id"]) == ("running", guest.lease["container_id"])
    assert desk.codes(renter, guest.id).count("started") == 1


def test_a_removed_key_opens_nothing_any_more_and_its_session_ends(stack: Stack, rent: Rent, neighbour: Renter) -> None:
    # case A04
    key = neighbour.add_key("second")
    guest = rent(neighbour)
    second = Guest(neighbour, guest.lease, key)
    assert second.run("true").returncode == 0
    listed = neighbour.call("GET", "ssh-keys")["results"]
    [key_id] = [entry["id"] for entry in listed if entry["name"] == "second"]
    with second.terminal(rows=24, cols=80) as terminal:
        terminal.type("echo be''fore\n")
        terminal.read_until("before")
        neighbour.form(f"/access/keys/{key_id}/remove/", {})
        assert terminal.client.wait(60) == 255

    refused = second.run("true")
    assert refused.returncode == 255
    assert "Permission denied" in refused.stderr
    assert guest.run("true").returncode == 0


def test_many_orders_for_the_last_gpu_make_one_lease(
    stack: Stack, desk: Desk, rent: Rent, renter: Renter, neighbour: Renter
) -> None:  # case B01
    rent(renter, gpu_count=3)
    people = [renter, neighbour] * 4
    quotes = [person.call("POST", "quotes", LAST_GPU)["quote"] for person in people]
    with ThreadPoolExecutor(16) as pool:  # every quote twice: a double click each
        answers = list(pool.map(_order, [*people, *people], [*quotes, *quotes]))

    made = [answer.json()["id"] for answer in answers if answer.status_code in {200, 201}]
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len(set(made)) == 1
    others = [answer for answer in answers if answer.status_code not in {200, 201}]
    assert {(answer.status_code, answer.json()["code"]) for answer in others} == {(409, "no_capacity")}
    assert stack.query("select count(*) from billing_hold where lease_id = ?", made[0]) == [(1,)]
    owner = people[next(index for index, answer in enumerate(answers) if answer.status_code == 201) % len(people)]
    stack.wait("the lease", lambda: owner.call("GET", f"leases/{made[0]}")["state"] == "running")
    label = f"label=lessor.lease={made[0]}"
    assert len(stack.engine.docker("ps", "-q", "--filter", label).stdout.split()) == 1
    desk.stop(owner, made[0])


def _order(person: Renter, quote: str) -> requests.Response:
    return person.api.post(f"{person.base}/api/v1/leases", json={"quote": quote}, timeout=60)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privileged", True), ("cap_add", ["SYS_ADMIN"]), ("devices", ["/dev/mem"]), ("pid_mode", "host"),
        ("network_mode", "host"), ("security_opt", ["seccomp=unconfined"]), ("sysctls", {"kernel.domainname": "x"}),
        ("mounts", ["/"]), ("binds", ["/var/run/docker.sock:/s"]), ("runtime", "runc"), ("HostConfig", {}),
    ],
)  # fmt: skip
def test_a_container_setting_in_an_order_is_refused_and_written_down(
    stack: Stack, renter: Renter, field: str, value: Any
) -> None:  # case H07
    answer = renter.api.post(f"{renter.base}/api/v1/quotes", json=LAST_GPU | {field: value}, timeout=20)

    assert (answer.status_code, list(answer.json()["errors"])) == (400, [field])
    data, token = stack.query(
        "select data, token_id from portal_auditevent where action = ? order by id desc limit 1",
        "lease.setting_refused",
    )[0]
    assert field in str(data)
    assert token is not None

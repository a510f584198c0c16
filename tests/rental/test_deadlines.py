"""Deadlines under load and while the portal was away; which devices a heartbeat may free."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from nodes import broker
from nodes.models import GpuSlot, Node
from portal.actor import Actor
from portal.models import Tenant, User
from rental import receipts, services, tasks
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.clients import ApiClient
from tests.rental.factories import report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


def test_ending_a_due_lease_costs_the_same_few_queries_however_many_are_due(
    renter: User, tenant: Tenant, node: Node
) -> None:
    counts = []
    for number in (1, 4):
        for _ in range(number):
            running(renter, tenant, max_duration_s=60)
        Lease.objects.filter(state="running").update(deadline_at=timezone.now())
        with CaptureQueriesContext(connection) as queries:
            tasks.sweep_deadlines()
        assert not Lease.objects.filter(state="running").exists()
        counts.append(len(queries) / number)
        for lease in Lease.objects.filter(state="stopping"):
            report(lease, "cleaned")
    assert max(counts) <= 34  # what a lease costs decides how late the last of 500 is (docs/lease-lifecycle.md)


def test_two_sweeps_share_what_is_due_and_the_nodes_are_woken_once(
    renter: User, tenant: Tenant, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        running(renter, tenant, max_duration_s=60)
    woken: list[str] = []
    monkeypatch.setattr(broker, "wake", lambda *, node_id, lease_id="": woken.append(lease_id))
    Lease.objects.update(deadline_at=timezone.now())
    tasks.sweep_deadlines()
    tasks.sweep_deadlines()
    assert sorted(woken) == sorted(Lease.objects.values_list("pk", flat=True))


def test_a_deadline_that_passed_while_the_portal_was_away_is_charged_to_the_deadline(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    by_node, by_sweep = (running(renter, tenant, max_duration_s=600) for _ in range(2))
    clock.shift(400)
    Lease.objects.update(confirmed_at=timezone.now())
    clock.shift(300)  # away for five minutes; the agent's own clock has ended it at 600
    report(by_node, "deadline")
    tasks.sweep_deadlines()
    for lease in (by_node, by_sweep):
        lease.refresh_from_db()
        assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.MAX_DURATION)
        report(lease, "cleaned")
        assert receipts.receipt(Lease.objects.get(pk=lease.pk)).seconds <= 600


def test_late_sweeps_charge_no_second_after_the_deadline_and_say_that_it_was_the_stop(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=60)
    clock.shift(65)
    tasks.sweep_deadlines()
    clock.shift(5)
    report(lease, "cleaned")
    lines = receipts.receipt(Lease.objects.get(pk=lease.pk)).lines
    assert [(line.gap, line.seconds) for line in lines] == [("", 60), ("stopping", 10)]


def test_a_beat_that_was_on_its_way_while_a_lease_ended_frees_nothing(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    """Its list was made before: what came of the order meanwhile is not in it."""
    agent = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})
    body = {"boot_id": "b", "agent_run": "r", "clock": "", "gpus": [], "leases": []}

    def beat() -> int:
        assert agent.post("/api/node/v1/heartbeat", body, content_type="application/json").status_code == 200
        return GpuSlot.objects.filter(used_milli=1000).count()

    beat()
    lease = running(renter, tenant)
    clock.shift(10)
    services.lose_lease(lease_id=lease.pk, actor=Actor.system("test"))
    assert beat() == 1
    clock.shift(10)
    assert beat() == 1  # the one before may have come on the heels of the end
    clock.shift(10)
    assert beat() == 0


# --- the offer changes between quote and order (case B03) -------------------------------------------------------------


@pytest.fixture
def program(renter: User) -> ApiClient:
    """A program of the renter."""
    return ApiClient(make.make_token(renter)[1])


def quoted(program: ApiClient, **values: Any) -> str:
    token: str = program.post("quotes", {"gpu_model": make.H100, **values}).json()["quote"]
    return token


def assert_nothing_left(tenant: Tenant) -> None:
    assert not Lease.objects.exists()
    assert tenant.accounts.get().held_ticks == 0
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"last_seen_at": START - timedelta(days=1)},
        {"draining_since": START},
        {"preflight_ok": False},
    ],
)
def test_a_node_that_goes_between_offer_and_order_leaves_no_lease_and_no_hold(
    program: ApiClient, tenant: Tenant, node: Node, change: dict[str, Any]
) -> None:  # case B03
    token = quoted(program)
    Node.objects.update(**change)
    answer = program.post("leases", {"quote": token})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_capacity")
    assert answer.json()["reasons"]
    assert_nothing_left(tenant)


def test_gpus_that_go_between_offer_and_order_leave_no_lease_and_no_hold(
    program: ApiClient, tenant: Tenant, node: Node
) -> None:  # case B03
    token = quoted(program, gpu_count=8)
    node.gpus.filter(index__gte=6).update(health="lost")
    answer = program.post("leases", {"quote": token})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_capacity")
    assert_nothing_left(tenant)


def test_a_price_that_is_raised_costs_what_was_shown_or_is_refused_with_the_new_one(
    program: ApiClient, tenant: Tenant, node: Node
) -> None:  # case B03
    with time_machine.travel(timezone.now(), tick=False) as clock:
        token, late = quoted(program), quoted(program)
        make.make_price(on_demand=9_000_000)
        assert program.post("leases", {"quote": token}).json()["price_micros_per_hour"] == 2_490_000
        clock.shift(302)
        Node.objects.update(last_seen_at=timezone.now())
        answer = program.post("leases", {"quote": late})
        assert (answer.status_code, answer.json()["code"]) == (409, "offer_changed")
        assert answer.json()["price_micros_per_hour"] == 9_000_000
    assert Lease.objects.count() == 1

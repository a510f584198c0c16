"""Leases that end because their GPU failed or their tenant was suspended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing.models import Hold
from nodes.models import Gpu, Node
from portal.actor import Actor
from portal.errors import NotAllowed
from portal.models import Tenant, User
from portal.signals import tenant_suspended
from rental import desired, notices, receipts, services, tasks
from rental.models import Lease, LeaseNotice, device_uuids
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import a_quote, order, report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RATE = 2_490_000


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


class Agent:
    """What a node says, over HTTP."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})

    def beat(self, *, faults: dict[str, str] | None = None) -> None:
        """A heartbeat with everything that runs, and which GPUs are faulty."""
        leases = [
            {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
            for lease in Lease.objects.filter(node=self.node, state="running")
        ]
        gpus = [
            {"uuid": gpu.uuid, "healthy": gpu.uuid not in (faults or {}), "fault": (faults or {}).get(gpu.uuid, "")}
            for gpu in self.node.gpus.all()
        ]
        body = {"boot_id": "b", "agent_run": "r", "clock": "", "leases": leases, "gpus": gpus}
        answer = self.client.post("/api/node/v1/heartbeat", body, content_type="application/json")
        assert answer.status_code == 200


def uuid_of(lease: Lease) -> str:
    return device_uuids([lease])[lease.pk][0]


def state(lease: Lease) -> tuple[str, str]:
    lease.refresh_from_db()
    return lease.state, lease.end_reason


@pytest.fixture
def agent(node: Node) -> Agent:
    return Agent(node)


@pytest.mark.django_db(transaction=True)
def test_a_gpu_that_fails_ends_its_lease_alone_and_what_came_after_it_was_well_is_free(
    renter: User, tenant: Tenant, agent: Agent, clock: Any, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # case G04
    monkeypatch.setattr(notices, "enqueue", lambda *_: None)  # no broker here, and a clock that stands still
    lost, other, starting = running(renter, tenant), running(renter, tenant), order(renter, tenant)
    for _ in range(6):
        clock.shift(10)
        agent.beat()
    clock.shift(9)
    agent.beat(faults={uuid_of(lost): "Xid 79: it has fallen off the bus", uuid_of(starting): "Xid 79"})
    assert state(lost) == state(starting) == (State.STOPPING, EndReason.FAILED_GPU)
    assert state(other) == (State.RUNNING, "")
    assert "Xid 79: it has fallen off the bus" in lost.end_detail
    clock.shift(5)
    report(lost, "cleaned")
    report(starting, "cleaned")
    bill = receipts.receipt(Lease.objects.get(pk=lost.pk))
    assert [(line.gap, line.seconds) for line in bill.lines] == [("", 60), ("gpu_lost", 9), ("stopping", 5)]
    assert bill.ticks == bill.ledger_ticks == 60 * RATE
    assert receipts.receipt(Lease.objects.get(pk=starting.pk)).ticks == 0
    assert Hold.objects.open().get().lease_id == other.pk
    for notice in LeaseNotice.objects.all():
        notices.mail(notice_id=str(notice.pk))
    assert [mail.subject for mail in mailoutbox] == [f"{lost.pk} ended: a GPU has failed"]
    clock.shift(1)
    agent.beat()
    assert state(other) == (State.RUNNING, "")
    call_command("check_ledger")


def test_a_gpu_whose_signal_was_missed_is_found_by_the_sweep(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease, other = running(renter, tenant), running(renter, tenant)
    clock.shift(30)
    Lease.objects.update(confirmed_at=timezone.now())
    Gpu.objects.filter(uuid=uuid_of(lease)).update(health="lost", health_at=timezone.now())
    clock.shift(20)
    Lease.objects.update(confirmed_at=timezone.now())
    for _ in range(2):
        tasks.sweep_barred()
    assert state(lease) == (State.STOPPING, EndReason.FAILED_GPU)
    assert lease.segments.get().seconds == 30
    assert state(other) == (State.RUNNING, "")


def test_a_gpu_that_is_quarantined_while_its_lease_is_cleaned_changes_nothing(
    renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    report(lease, "cleaning_failed", evidence={"quarantine": [uuid_of(lease)], "steps": []})
    tasks.sweep_barred()
    assert state(lease) == (State.ENDED, EndReason.RELEASED)


def test_a_suspended_tenant_loses_its_leases_keys_and_orders_and_is_charged_until_the_stop(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease, starting = running(renter, tenant), order(renter, tenant)
    quote = a_quote(renter, tenant)
    clock.shift(30)
    Lease.objects.update(confirmed_at=timezone.now())
    Tenant.objects.update(suspended_at=timezone.now())
    tenant.refresh_from_db()
    for _ in range(2):
        tenant_suspended.send(sender=None, tenant_id=tenant.pk)
    assert state(lease) == state(starting) == (State.STOPPING, EndReason.TENANT_SUSPENDED)
    assert [(word["want"], word["authorized_keys"]) for word in desired.desired_leases(node)] == [("stop", [])] * 2
    assert lease.segments.get().seconds == 30
    assert lease.events.filter(code="tenant_suspended").count() == 1
    for act in (
        lambda: a_quote(renter, tenant),
        lambda: services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=quote),
    ):
        with pytest.raises(NotAllowed) as refused:
            act()
        assert refused.value.code == "tenant_suspended"
    report(lease, "cleaned")
    report(starting, "cleaned")
    assert -sum(entry.ticks for entry in tenant.accounts.get().entries.filter(kind="usage")) == 30 * RATE
    Tenant.objects.update(suspended_at=None)
    tenant.refresh_from_db()
    Node.objects.update(last_seen_at=timezone.now())
    assert order(renter, tenant).state == State.ASSIGNED
    assert state(lease) == (State.ENDED, EndReason.TENANT_SUSPENDED)


def test_a_suspension_whose_signal_was_missed_is_found_by_the_sweep(
    renter: User, tenant: Tenant, node: Node, stranger: User
) -> None:
    lease = running(renter, tenant)
    make.make_key(stranger)
    make.make_balance(make.tenant_of(stranger))
    other = running(stranger, make.tenant_of(stranger))
    Tenant.objects.filter(pk=tenant.pk).update(suspended_at=timezone.now())
    tasks.sweep_barred()
    assert state(lease) == (State.STOPPING, EndReason.TENANT_SUSPENDED)
    assert state(other) == (State.RUNNING, "")


def test_the_keys_of_a_suspended_tenant_open_nothing_before_its_leases_have_ended(
    renter: User, tenant: Tenant, node: Node
) -> None:
    running(renter, tenant)
    Tenant.objects.update(suspended_at=timezone.now())
    assert desired.desired_leases(node)[0]["authorized_keys"] == []

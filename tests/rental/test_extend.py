"""Other limits for a lease: longer, shorter, another spend cap; by service, API and page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing.models import Hold
from billing.services import set_month_cap
from nodes import broker
from nodes.models import Node
from portal.actor import Actor
from portal.errors import DomainError, IllegalTransition, InsufficientFunds, InvalidInput, NotAllowed
from portal.models import AuditEvent, Membership, Tenant, User
from rental import desired, extend, services, tasks
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.clients import ApiClient
from tests.rental.factories import heartbeat, order, report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RATE = 2_490_000


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


def change(lease: Lease, user: User, **wanted: Any) -> Lease:
    return extend.extend_lease(lease=lease, actor=Actor.of_user(user), wanted=wanted)


def test_an_extension_moves_the_deadline_keeps_the_price_and_tells_the_node(
    renter: User, tenant: Tenant, node: Node, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = running(renter, tenant, max_duration_s=1800)
    woken: list[str] = []
    monkeypatch.setattr(broker, "wake", lambda *, node_id, lease_id="": woken.append(lease_id))
    clock.shift(600)
    heartbeat(lease)
    after = change(lease, renter, max_duration_s=7200)
    assert after.deadline_at == START + timedelta(seconds=7200)
    assert after.price_micros_per_hour == RATE
    assert Hold.objects.open().get().ticks == (600 + 3600) * RATE
    assert woken == [lease.pk]
    assert desired.desired_leases(node)[0]["deadline_s"] == 6600
    event = lease.events.get(code="extended")
    assert event.data["max_duration_s"] == [1800, 7200]
    assert AuditEvent.objects.get(action="lease.extended").data["after"]["max_duration_s"] == 7200
    clock.shift(1300)
    heartbeat(lease)
    tasks.sweep_deadlines()
    lease.refresh_from_db()
    assert lease.state == State.RUNNING


def test_shortened_it_ends_no_sooner_than_a_minute_from_now(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=7200)
    clock.shift(600)
    heartbeat(lease)
    with pytest.raises(InvalidInput) as refused:
        change(lease, renter, max_duration_s=659)
    assert list(refused.value.errors) == ["max_duration_s"]
    assert "660 or more" in refused.value.detail
    after = change(lease, renter, max_duration_s=660)
    assert after.deadline_at == timezone.now() + timedelta(seconds=60)
    assert Hold.objects.open().get().ticks == 660 * RATE
    assert lease.events.filter(code="limited").count() == 1
    clock.shift(61)
    heartbeat(lease)
    tasks.sweep_deadlines()
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.MAX_DURATION)
    assert lease.segments.get().seconds == 660
    call_command("check_ledger")


def test_the_spend_cap_is_raised_lowered_and_lifted_but_not_below_what_is_used(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, spend_cap_micros=830_000, max_duration_s=7200)  # twenty minutes
    assert lease.deadline_at == START + timedelta(seconds=1200)
    clock.shift(600)
    heartbeat(lease)
    assert change(lease, renter, spend_cap_micros=1_245_000).deadline_at == START + timedelta(seconds=1800)
    with pytest.raises(InvalidInput) as refused:
        change(lease, renter, spend_cap_micros=415_000)
    assert list(refused.value.errors) == ["spend_cap_micros"]
    assert "415000 are used" in refused.value.detail
    assert change(lease, renter, spend_cap_micros=456_500).deadline_at == START + timedelta(seconds=660)
    assert change(lease, renter, spend_cap_micros=None).deadline_at == START + timedelta(seconds=7200)


def test_before_it_is_ready_the_limits_count_from_ready(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = order(renter, tenant, max_duration_s=600)
    after = change(lease, renter, max_duration_s=7200, spend_cap_micros=5_000_000)
    assert after.deadline_at is None
    assert Hold.objects.open().get().ticks == 3600 * RATE
    clock.shift(30)
    report(lease, "ready")
    lease.refresh_from_db()
    assert lease.deadline_at == timezone.now() + timedelta(seconds=7200)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({}, "max_duration_s"),
        ({"max_duration_s": 59}, "max_duration_s"),
        ({"max_duration_s": 86_401}, "max_duration_s"),
        ({"max_duration_s": "7200"}, "max_duration_s"),
        ({"max_duration_s": True}, "max_duration_s"),
        ({"max_duration_s": None}, "max_duration_s"),
        ({"spend_cap_micros": 0}, "spend_cap_micros"),
        ({"spend_cap_micros": 1}, "spend_cap_micros"),
        ({"price_micros_per_hour": 1}, "price_micros_per_hour"),
        ({"by_s": 60}, "by_s"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    renter: User, tenant: Tenant, node: Node, wanted: dict[str, Any], field: str
) -> None:
    lease = running(renter, tenant)
    api = ApiClient(make.make_token(renter)[1])
    answer = api.post(f"leases/{lease.pk}/extend", wanted)
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]


def test_only_what_is_not_over_and_not_at_its_end_is_extended(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=600)
    clock.shift(600)
    with pytest.raises(IllegalTransition):
        change(lease, renter, max_duration_s=7200)
    services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))
    with pytest.raises(IllegalTransition):
        change(lease, renter, max_duration_s=7200)
    lease.refresh_from_db()
    assert lease.max_duration_s == 600


def test_a_sweep_that_saw_the_old_deadline_leaves_an_extended_lease_alone(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=600)
    clock.shift(599)
    change(lease, renter, max_duration_s=7200)
    clock.shift(2)
    assert services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines")).state == State.RUNNING


def test_money_that_is_not_there_refuses_and_changes_nothing(user: User, tenant: Tenant, node: Node) -> None:
    make.make_key(user)
    make.make_balance(tenant, 1_300_000)
    lease = running(user, tenant, max_duration_s=1800)
    with pytest.raises(InsufficientFunds) as refused:
        change(lease, user, max_duration_s=7200)
    assert refused.value.extra["needed_micros"] >= 2_490_000
    lease.refresh_from_db()
    assert lease.max_duration_s == 1800
    assert not lease.events.filter(code="extended").exists()
    change(lease, user, max_duration_s=600)  # less is never refused for money
    assert Hold.objects.open().get().ticks <= 600 * RATE + 3 * RATE


def test_the_months_cap_bounds_an_extension(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant, max_duration_s=1800)
    set_month_cap(tenant=tenant, micros=1_300_000, actor=Actor.of_user(renter))
    with pytest.raises(DomainError) as refused:
        change(lease, renter, max_duration_s=7200)
    assert refused.value.code == "month_cap_reached"
    assert refused.value.extra["cap_micros"] == 1_300_000


def test_a_viewer_and_a_suspended_tenant_extend_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    Tenant.objects.update(suspended_at=timezone.now())
    with pytest.raises(NotAllowed) as refused:
        change(lease, renter, max_duration_s=7200)
    assert refused.value.code == "tenant_suspended"
    Membership.objects.update(role=Membership.Role.VIEWER)
    with pytest.raises(NotAllowed):
        change(lease, renter, max_duration_s=7200)


def test_asking_for_what_it_has_changes_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant, max_duration_s=7200)
    before = lease.events.count()
    change(lease, renter, max_duration_s=7200)
    assert lease.events.count() == before


def test_the_api_answers_with_the_lease(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant, max_duration_s=1800)
    api = ApiClient(make.make_token(renter)[1])
    answer = api.post(f"leases/{lease.pk}/extend", {"max_duration_s": 7200, "spend_cap_micros": 4_000_000})
    assert answer.status_code == 200
    assert (answer.json()["max_duration_s"], answer.json()["spend_cap_micros"]) == (7200, 4_000_000)


def test_the_page_extends_and_shows_what_it_refuses_at_the_field(
    page: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant, max_duration_s=3600)
    assert f"/leases/{lease.pk}/extend" in page.get(f"/leases/{lease.pk}/").content.decode()
    assert page.get(f"/leases/{lease.pk}/extend").status_code == 200
    wrong = page.post(f"/leases/{lease.pk}/extend", {"max_hours": "2000", "spend_cap": "1,5"})
    assert wrong.status_code == 400
    assert wrong.content.decode().count('class="error"') == 2
    low = page.post(f"/leases/{lease.pk}/extend", {"max_hours": "2", "spend_cap": "0.01"})
    assert low.status_code == 400
    done = page.post(f"/leases/{lease.pk}/extend", {"max_hours": "2.5", "spend_cap": "20"})
    assert done.status_code == 302
    lease.refresh_from_db()
    assert (lease.max_duration_s, lease.spend_cap_micros) == (9000, 20_000_000)
    assert "It ends after 2 h 30 min 00 s, before 1 h 00 min 00 s." in page.get(f"/leases/{lease.pk}/").content.decode()

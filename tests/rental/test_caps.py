"""Spend caps: of a lease, and of a tenant per calendar month; at order and while running."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from billing.models import Account, Hold
from billing.services import MonthCapReached, set_month_cap
from nodes.models import Node
from portal.actor import Actor
from portal.errors import InvalidInput, NotAllowed
from portal.models import AuditEvent, Membership, Tenant, User
from rental import reports, services, tasks
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.clients import ApiClient
from tests.rental.factories import order, report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 30, 12, 0, 0, tzinfo=UTC)
RATE = 2_490_000


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


def cap(user: User, tenant: Tenant, micros: int | None) -> Account:
    return set_month_cap(tenant=tenant, micros=micros, actor=Actor.of_user(user))


def run_for(node: Node, clock: Any, seconds: int) -> None:
    """Time passes with a heartbeat and the sweep every ten minutes, at the end each minute."""
    while seconds >= 60:
        step = 600 if seconds > 600 else 60
        seconds -= step
        clock.shift(step)
        said = [
            {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
            for lease in Lease.objects.filter(state="running")
        ]
        Node.objects.update(last_seen_at=timezone.now())
        reports.confirm(node=node, leases=said, now=timezone.now())
        tasks.sweep_holds()


def test_an_order_beyond_the_months_cap_is_refused_with_the_numbers(renter: User, tenant: Tenant, node: Node) -> None:
    cap(renter, tenant, 4_000_000)
    order(renter, tenant)
    with pytest.raises(MonthCapReached) as refused:
        order(renter, tenant)
    facts = refused.value.extra
    assert refused.value.status == 409
    assert facts["cap_micros"] == 4_000_000
    assert facts["held_micros"] == facts["needed_micros"] == 2_490_000
    assert (facts["room_micros"], facts["used_micros"]) == (1_510_000, 0)
    assert facts["month"] == f"{timezone.now():%Y-%m}"
    assert Lease.objects.count() == Hold.objects.count() == 1
    order(renter, tenant, max_duration_s=1800)  # half an hour fits
    call_command("check_ledger")


def test_a_lease_runs_until_the_months_cap_and_not_beyond(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    cap(renter, tenant, 2_490_000 + 415_000)  # an hour and ten minutes
    lease = running(renter, tenant)
    run_for(node, clock, 4200 - 120)
    lease.refresh_from_db()
    assert lease.state == State.RUNNING
    run_for(node, clock, 300)
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.FUNDS)
    assert "cap of the month" in lease.end_detail
    used = -sum(entry.ticks for entry in tenant.accounts.get().entries.filter(kind="usage"))
    assert 0 <= (2_490_000 + 415_000) * 3600 - used <= 60 * RATE
    call_command("check_ledger")


def test_a_new_month_is_a_new_cap_and_counts_what_is_booked_in_it(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    cap(renter, tenant, 2_490_000 + 415_000)
    lease = running(renter, tenant)
    run_for(node, clock, 600)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    report(lease, "cleaned")
    running(renter, tenant, max_duration_s=3600)
    with pytest.raises(MonthCapReached):
        order(renter, tenant, max_duration_s=120)
    clock.move_to(datetime(2026, 3, 31, 23, 59, 0, tzinfo=UTC))
    Node.objects.update(last_seen_at=timezone.now())
    Lease.objects.filter(state="running").update(deadline_at=timezone.now())
    tasks.sweep_deadlines()
    clock.move_to(datetime(2026, 4, 1, 0, 0, 0, tzinfo=UTC))
    Node.objects.update(last_seen_at=timezone.now())
    assert order(renter, tenant).state == State.ASSIGNED


def test_a_cap_lowered_below_what_is_held_ends_what_it_no_longer_covers(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    first = running(renter, tenant)
    running(renter, tenant)
    run_for(node, clock, 600)
    cap(renter, tenant, 2 * 415_000 + 300_000)  # both used ten minutes; seven more of one are left
    run_for(node, clock, 60)
    assert tenant.accounts.get().held_ticks <= (2 * 415_000 + 300_000) * 3600
    run_for(node, clock, 600)
    assert {lease.end_reason for lease in Lease.objects.all()} == {EndReason.FUNDS}
    first.refresh_from_db()
    used = -sum(entry.ticks for entry in tenant.accounts.get().entries.filter(kind="usage"))
    assert used <= (2 * 415_000 + 300_000) * 3600
    call_command("check_ledger")


def test_a_cap_in_the_middle_of_a_lease_can_be_lifted_again(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant)
    cap(renter, tenant, 1_000_000)
    run_for(node, clock, 300)
    cap(renter, tenant, None)
    run_for(node, clock, 3600)
    lease.refresh_from_db()
    assert lease.state == State.RUNNING
    assert Hold.objects.open().get().ticks == (3900 + 3600) * RATE


@pytest.mark.parametrize("micros", [0, -1, 2_000_000_000_000_001])
def test_an_impossible_cap_is_refused_by_name(renter: User, tenant: Tenant, micros: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        cap(renter, tenant, micros)
    assert list(refused.value.errors) == ["month_cap_micros"]


@pytest.mark.parametrize(("role", "may"), [("owner", True), ("admin", True), ("billing", True), ("member", False), ("viewer", False)])  # fmt: skip  # noqa: E501
def test_those_who_pay_set_the_cap_over_the_api_and_it_is_audited(
    user: User, tenant: Tenant, role: str, *, may: bool
) -> None:
    Membership.objects.filter(user=user).update(role=role)
    api = ApiClient(make.make_token(user, tenant=tenant)[1])
    answer = api.send("PATCH", "balance", {"month_cap_micros": 5_000_000})
    assert answer.status_code == (200 if may else 403)
    if not may:
        return
    assert answer.json()["month_cap_micros"] == 5_000_000
    assert api.get("balance").json()["month_used_micros"] == 0
    assert AuditEvent.objects.filter(action="month_cap.set").get().data["cap_micros"] == 5_000_000
    assert api.send("PATCH", "balance", {"month_cap_micros": None}).json()["month_cap_micros"] is None
    assert api.send("PATCH", "balance", {}).status_code == 400


def test_a_token_that_only_reads_sets_nothing(user: User) -> None:
    api = ApiClient(make.make_token(user, scopes=["billing:read"])[1])
    answer = api.send("PATCH", "balance", {"month_cap_micros": 5_000_000})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


def test_the_page_sets_shows_and_lifts_the_cap(page: Client, renter: User, tenant: Tenant) -> None:
    assert page.post("/billing/cap", {"cap": "250.00"}).status_code == 302
    assert tenant.accounts.get().month_cap_micros == 250_000_000
    shown = page.get("/billing/").content.decode()
    assert "of $250.00" in shown
    wrong = page.post("/billing/cap", {"cap": "1,5"})
    assert wrong.status_code == 400
    assert "no comma" in wrong.content.decode()
    assert page.post("/billing/cap", {"cap": ""}).status_code == 302
    assert tenant.accounts.get().month_cap_micros is None


def test_a_member_sees_no_form_and_cannot_send_it(page: Client, user: User, tenant: Tenant) -> None:
    Membership.objects.filter(user=user).update(role=Membership.Role.MEMBER)
    with pytest.raises(NotAllowed):
        cap(user, tenant, 1)
    make.make_tenant("Others", members={user: "member"})
    assert tenant.accounts.filter(month_cap_micros__isnull=False).count() == 0

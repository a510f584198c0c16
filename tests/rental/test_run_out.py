"""Warnings before a lease runs out: of time, of its cap, of the tenant's balance or month; then a graceful end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from billing.services import set_month_cap
from nodes.models import Node
from portal.actor import Actor
from portal.models import Tenant, User
from rental import desired, extend, notices, reports, run_out, services, tasks
from rental.models import Lease, LeaseNotice
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
HOUR = 2_490_000


@pytest.fixture(autouse=True)
def _no_mail_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are mailed by hand here: no broker, and a clock that stands still."""
    monkeypatch.setattr(notices, "enqueue", lambda *_: None)


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


def run_for(node: Node, clock: Any, minutes: int) -> None:
    """Time passes with a heartbeat and the sweeps every ten minutes, at the end each minute."""
    while minutes:
        step = 10 if minutes > 10 else 1
        minutes -= step
        clock.shift(step * 60)
        said = [
            {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
            for lease in Lease.objects.filter(state="running")
        ]
        Node.objects.update(last_seen_at=timezone.now())
        reports.confirm(node=node, leases=said, now=timezone.now())
        tasks.sweep_holds()
        tasks.sweep_run_out()
        tasks.sweep_deadlines()


def told(lease: Lease, *, standing: bool = False) -> list[tuple[str, int]]:
    """``(kind, threshold)`` in order."""
    rows = LeaseNotice.objects.filter(lease=lease, kind__startswith="run_out")
    rows = rows.filter(void_at=None) if standing else rows
    return [(row.kind.removeprefix("run_out_"), row.data["minutes"]) for row in rows]


def test_the_end_of_its_time_is_warned_of_three_times_once_each(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:  # case F08
    lease = running(renter, tenant, max_duration_s=7200)
    run_for(node, clock, 59)
    assert told(lease) == []
    run_for(node, clock, 1)
    assert told(lease) == [("deadline", 60)]
    run_for(node, clock, 44)
    assert told(lease) == [("deadline", 60)]
    run_for(node, clock, 13)
    assert told(lease) == [("deadline", 60), ("deadline", 15), ("deadline", 5)]
    assert told(lease, standing=True) == [("deadline", 5)]
    assert lease.events.filter(code="run_out_deadline").count() == 3
    run_for(node, clock, 5)
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.MAX_DURATION)


@pytest.mark.parametrize(("seconds", "warned"), [(240, []), (600, [5]), (1800, [15, 5]), (3600, [15, 5]), (3660, [60, 15, 5])])  # fmt: skip  # noqa: E501
def test_a_lease_that_is_shorter_than_a_threshold_is_not_warned_of_it(
    renter: User, tenant: Tenant, node: Node, clock: Any, seconds: int, warned: list[int]
) -> None:
    lease = running(renter, tenant, max_duration_s=seconds)
    tasks.sweep_run_out()
    run_for(node, clock, seconds // 60)
    assert told(lease) == [("deadline", minutes) for minutes in warned]


def test_the_end_of_its_spend_cap_is_warned_of_by_its_name(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, spend_cap_micros=HOUR // 2, max_duration_s=7200)
    run_for(node, clock, 26)
    assert told(lease) == [("cap", 15), ("cap", 5)]
    run_for(node, clock, 5)
    lease.refresh_from_db()
    assert lease.end_reason == EndReason.FUNDS


def test_the_end_of_the_balance_is_warned_of_and_a_top_up_takes_it_back(
    user: User, tenant: Tenant, node: Node, clock: Any
) -> None:  # case F08
    make.make_key(user)
    make.make_balance(tenant, HOUR * 3 // 2)
    lease = running(user, tenant)
    run_for(node, clock, 80)
    assert told(lease) == [("balance", 60), ("balance", 15)]
    make.make_balance(tenant, HOUR)
    run_for(node, clock, 1)
    assert told(lease, standing=True) == []
    assert desired.desired_leases(node)[0]["notices"] == []
    run_for(node, clock, 62)
    assert told(lease)[2:] == [("balance", 60), ("balance", 15)]
    run_for(node, clock, 10)
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.FUNDS)
    assert told(lease)[4:] == [("balance", 5)]
    assert 0 <= tenant.accounts.get().balance_ticks <= 60 * HOUR


def test_leases_on_one_balance_are_warned_by_what_they_use_together(
    user: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    make.make_key(user)
    make.make_balance(tenant, HOUR * 4)
    leases = [running(user, tenant), running(user, tenant)]  # two hours for both
    run_for(node, clock, 58)
    assert told(leases[0]) == told(leases[1]) == []
    run_for(node, clock, 2)
    assert told(leases[0]) == told(leases[1]) == [("balance", 60)]
    services.stop_lease(lease=leases[1], actor=Actor.of_user(user))
    report(leases[1], "cleaned")
    run_for(node, clock, 1)
    assert told(leases[0], standing=True) == []  # two hours for one


def test_the_cap_of_the_month_is_warned_of(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    set_month_cap(tenant=tenant, micros=HOUR * 3 // 2, actor=Actor.of_user(renter))
    lease = running(renter, tenant)
    run_for(node, clock, 85)
    assert told(lease) == [("month", 60), ("month", 15), ("month", 5)]
    run_for(node, clock, 5)
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.FUNDS)


def test_a_lease_that_is_paid_to_its_end_is_not_warned_of_the_balance(
    user: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    make.make_key(user)
    make.make_balance(tenant, HOUR // 2)
    lease = running(user, tenant, max_duration_s=1800)
    run_for(node, clock, 29)
    assert told(lease) == [("deadline", 15), ("deadline", 5)]


def test_an_extension_takes_the_warning_back_and_it_comes_again_before_the_new_end(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=3600)
    run_for(node, clock, 50)
    assert told(lease, standing=True) == [("deadline", 15)]
    extend.extend_lease(lease=lease, actor=Actor.of_user(renter), wanted={"max_duration_s": 7200})
    assert told(lease, standing=True) == []
    run_for(node, clock, 56)
    assert told(lease)[-1] == ("deadline", 15)


def test_a_shortened_lease_is_warned_at_once(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = running(renter, tenant, max_duration_s=7200)
    run_for(node, clock, 10)
    extend.extend_lease(lease=lease, actor=Actor.of_user(renter), wanted={"max_duration_s": 700})
    assert told(lease) == [("deadline", 5)]


def test_time_that_is_not_charged_does_not_use_up_the_balance(
    user: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    make.make_key(user)
    make.make_balance(tenant, HOUR)
    lease = running(user, tenant)
    run_for(node, clock, 30)
    report(lease, "ssh_down", evidence={"since_s": 0})
    run_for(node, clock, 120)
    lease.refresh_from_db()
    assert lease.state == State.RUNNING
    report(lease, "ssh_up")
    run_for(node, clock, 31)
    lease.refresh_from_db()
    assert lease.end_reason == EndReason.FUNDS


def test_the_words_name_the_lease_the_time_and_what_to_do(
    renter: User, tenant: Tenant, node: Node, clock: Any, mailoutbox: list[Any], page: Client
) -> None:
    lease = running(renter, tenant, max_duration_s=7200)
    run_for(node, clock, 60)
    (notice,) = LeaseNotice.objects.all()
    notices.mail(notice_id=str(notice.pk))
    (mail,) = mailoutbox
    assert mail.subject == f"{lease.pk} ends in 60 minutes"
    assert f"/leases/{lease.pk}/extend" in mail.body
    (word,) = desired.desired_leases(node)
    assert word["notices"][0]["text"] == (
        "This lease ends in 60 minutes, at 14:00 UTC. Its time is over then: extend it to go on."
    )
    clock.shift(600)
    assert "This lease ends in 50 minutes, at 14:00 UTC." in page.get(f"/leases/{lease.pk}/").content.decode()


def test_looking_costs_the_same_queries_for_any_number_of_leases(
    renter: User, tenant: Tenant, node: Node, clock: Any, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    make.make_balance(tenant, 1_000_000_000)
    set_month_cap(tenant=tenant, micros=900_000_000, actor=Actor.of_user(renter))
    for _ in range(8):
        running(renter, tenant)
    with django_assert_max_num_queries(9):
        assert run_out.look(timezone.now()) == []
    Lease.objects.update(deadline_at=timezone.now() + timedelta(minutes=59))
    with django_assert_max_num_queries(9):
        assert len(run_out.look(timezone.now())) == 0  # shorter than the threshold as a whole

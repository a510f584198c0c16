"""Stretches of a running lease that are not charged: SSH down, silence, a lost GPU; exact to the second."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from billing.models import Hold, LedgerEntry
from nodes.models import Node
from portal.actor import Actor
from portal.models import Tenant, User
from rental import receipts, services
from rental.models import Lease, UsageGap, UsageSegment
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import heartbeat, report, running, vouch

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RATE = 2_490_000


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


def ssh_down(lease: Lease, since_s: float = 15) -> None:
    report(lease, "ssh_down", evidence={"since_s": since_s, "why": "no banner"})


def stop(lease: Lease, user: User) -> None:
    services.stop_lease(lease=lease, actor=Actor.of_user(user))
    report(lease, "cleaned")


def lines(lease: Lease) -> list[tuple[str, int]]:
    """The receipt as (reason or "", seconds), checked: no hole, no overlap, the sum is the ledger's."""
    lease.refresh_from_db()
    bill = receipts.receipt(lease)
    assert all(line.end == after.start for line, after in pairwise(bill.lines))
    assert bill.lines[0].start == lease.requested_at
    assert not lease.ended_at or bill.lines[-1].end == lease.ended_at
    posted = -sum(entry.ticks for entry in LedgerEntry.objects.filter(lease_id=lease.pk, kind="usage"))
    assert posted == bill.ledger_ticks == sum(segment.ticks or 0 for segment in lease.segments.all())
    assert bill.ticks == bill.seconds * lease.units * lease.price_micros_per_hour
    if not bill.provisional:
        assert bill.ticks == posted
    return [(line.gap, line.seconds) for line in bill.lines]


def test_ssh_down_is_not_charged_from_the_first_failed_look_until_it_works(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 300)
    ssh_down(lease, 15.0)
    assert lines(lease) == [("", 285), ("ssh_down", 15)]
    assert receipts.receipt(lease).provisional
    vouch(lease, clock, 120)
    ssh_down(lease, 135)  # reported again: known
    report(lease, "ssh_up")
    report(lease, "ssh_up")
    vouch(lease, clock, 60)
    assert lines(lease) == [("", 285), ("ssh_down", 135), ("", 60)]
    stop(lease, renter)
    assert lines(lease) == [("", 285), ("ssh_down", 135), ("", 60)]
    assert list(lease.events.filter(code__startswith="ssh").values_list("code", flat=True)) == ["ssh_down", "ssh_up"]
    call_command("check_ledger")


@pytest.mark.parametrize(("since_s", "gap_s"), [(0, 0), (15.7, 15), (70, 70), (10_000, 70)])
def test_a_gap_begins_at_most_a_minute_before_what_was_confirmed(
    renter: User, tenant: Tenant, clock: Any, node: Node, since_s: float, gap_s: int
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 300)
    clock.shift(10)
    ssh_down(lease, since_s)
    assert UsageGap.objects.get().start >= timezone.now() - timedelta(seconds=gap_s + 1)
    stop(lease, renter)
    assert dict(lines(lease)).get("ssh_down", 0) == gap_s


def test_a_gap_never_begins_before_the_lease_was_charged(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    clock.shift(5)
    ssh_down(lease, 60)
    clock.shift(5)
    report(lease, "ssh_up")
    clock.shift(5)
    stop(lease, renter)
    assert lines(lease) == [("ssh_down", 10), ("", 5)]


def test_a_stop_ends_the_gap_and_what_follows_is_the_stop(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    ssh_down(lease, 20)
    clock.shift(40)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    clock.shift(7)
    report(lease, "ssh_up")  # too late to matter
    report(lease, "cleaned")
    assert lines(lease) == [("", 40), ("ssh_down", 60), ("stopping", 7)]
    assert not UsageGap.objects.filter(end=None).exists()


def test_silence_takes_over_from_ssh_down_and_nothing_is_counted_twice(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    ssh_down(lease, 20)
    vouch(lease, clock, 100)
    clock.shift(3600)
    heartbeat(lease)
    vouch(lease, clock, 30)
    assert lines(lease) == [("", 40), ("ssh_down", 120), ("node_silent", 3600), ("ssh_down", 30)]
    rows = list(lease.gaps.values_list("reason", "end"))
    assert [reason for reason, _ in rows] == ["ssh_down", "node_silent", "ssh_down"]
    assert [end is None for _, end in rows] == [False, False, True]
    report(lease, "ssh_up")
    vouch(lease, clock, 60)
    clock.shift(600)
    services.lose_lease(lease_id=lease.pk, actor=Actor.system("test"))
    assert lines(lease)[3:] == [("ssh_down", 30), ("", 60), ("node_silent", 600)]
    call_command("check_ledger")


def test_a_node_that_reports_after_a_silence_is_not_paid_for_the_silence(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    clock.shift(400)
    ssh_down(lease, 30)
    clock.shift(10)
    stop(lease, renter)
    assert lines(lease) == [("", 60), ("node_silent", 370), ("ssh_down", 40)]


def test_a_spend_cap_is_not_used_up_while_nothing_is_charged(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant, spend_cap_micros=415_000, max_duration_s=7200)  # ten minutes
    assert lease.deadline_at == START + timedelta(seconds=600)
    vouch(lease, clock, 300)
    ssh_down(lease, 0)
    lease.refresh_from_db()
    assert lease.deadline_at == START + timedelta(seconds=7200)
    vouch(lease, clock, 900)
    report(lease, "ssh_up")
    lease.refresh_from_db()
    assert lease.deadline_at == START + timedelta(seconds=300 + 900 + 300)
    vouch(lease, clock, 400)
    services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))
    report(lease, "cleaned")
    assert lines(lease)[:3] == [("", 300), ("ssh_down", 900), ("", 300)]
    assert receipts.receipt(lease).ticks <= 415_000 * 3600
    assert lease.end_reason == EndReason.FUNDS


def test_what_was_booked_in_a_gap_is_no_longer_set_aside(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    account = tenant.accounts.get()
    available = account.available_ticks
    vouch(lease, clock, 300)
    ssh_down(lease, 0)
    account.refresh_from_db()
    assert account.available_ticks == available  # booked, and out of the hold
    assert Hold.objects.open().get().ticks == (3600 - 300) * RATE


def test_nothing_but_a_running_lease_can_have_ssh_down(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant, max_duration_s=60)
    clock.shift(61)
    ssh_down(lease)  # past its deadline: the stop is on its way
    services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))
    ssh_down(lease)
    report(lease, "cleaned")
    ssh_down(lease)
    assert lines(lease) == [("", 60), ("stopping", 1)]


@pytest.mark.parametrize("since", [-1, "15", True, 1e9, None])
def test_a_since_that_is_no_number_of_seconds_is_refused_by_name(
    renter: User, tenant: Tenant, node: Node, since: Any
) -> None:
    lease = running(renter, tenant)
    agent = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})
    body = {"generation": 1, "event": "ssh_down", "evidence": {"since_s": since}}
    answer = agent.post(f"/api/node/v1/leases/{lease.pk}/report", body, content_type="application/json")
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == ["evidence.since_s"]


# --- any sequence -----------------------------------------------------------------------------------------------------

STEPS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, 100, allow_nan=False)),
    st.tuples(st.just("wait"), st.floats(0, 2000, allow_nan=False)),
    st.tuples(st.just("back"), st.floats(0, 300, allow_nan=False)),
    st.tuples(st.just("heard"), st.just(0.0)),
    st.tuples(st.just("ssh_down"), st.floats(0, 200, allow_nan=False)),
    st.tuples(st.just("ssh_up"), st.just(0.0)),
)


class AnySequence(TestCase):
    """Whatever happens in whatever order, receipt, segments, gaps, ledger and holds agree."""

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(steps=st.lists(STEPS, max_size=14), lost=st.booleans(), cap=st.booleans(), forward=st.booleans())
    def test_it_tiles_the_time_and_sums_to_the_ledger(
        self, steps: list[tuple[str, float]], *, lost: bool, cap: bool, forward: bool
    ) -> None:
        with time_machine.travel(START, tick=False) as clock:
            user = make.make_user()
            tenant = make.tenant_of(user)
            make.make_key(user)
            make.make_balance(tenant, 1_000_000_000)
            make.make_price()
            make.make_node(gpus=1)
            limits = {"spend_cap_micros": 1_245_000} if cap else {}
            lease = running(user, tenant, **limits)
            for step, seconds in steps:
                _take(lease, clock, step, seconds, forward=forward)
            if lost:
                services.lose_lease(lease_id=lease.pk, actor=Actor.system("test"))
            else:
                services.stop_lease(lease=lease, actor=Actor.system("test"), reason=EndReason.OPERATOR)
                report(lease, "cleaned")
            _assert_whole(lease, capped=cap, forward=forward or not any(step == "back" for step, _ in steps))


def _take(lease: Lease, clock: Any, step: str, seconds: float, *, forward: bool) -> None:
    if step == "wait":
        clock.shift(seconds)
    elif step == "back" and not forward:
        clock.shift(-seconds)
    elif step == "heard":
        heartbeat(lease)
    elif step == "ssh_down":
        ssh_down(lease, seconds)
    elif step == "ssh_up":
        report(lease, "ssh_up")
    lease.refresh_from_db()
    open_parts = lease.segments.filter(end=None).count() + lease.gaps.filter(end=None).count()
    assert open_parts == (1 if lease.state == State.RUNNING else 0)


def _assert_whole(lease: Lease, *, capped: bool, forward: bool) -> None:
    lease.refresh_from_db()
    parts: list[UsageSegment | UsageGap] = sorted(
        [*lease.segments.all(), *lease.gaps.all()], key=lambda part: (part.start, part.end or part.start)
    )
    assert all(part.end is not None for part in parts)
    bill = receipts.receipt(lease)
    assert not bill.provisional
    assert bill.ticks == bill.ledger_ticks == sum(segment.ticks or 0 for segment in lease.segments.all())
    assert all(line.seconds >= 0 and line.end >= line.start for line in bill.lines)
    assert all(before.end == after.start for before, after in pairwise(bill.lines))
    assert not Hold.objects.open().filter(lease_id=lease.pk).exists()
    if capped:
        assert bill.ticks <= 1_245_000 * 3600
    if forward:  # on a clock that goes back an end may lie before its start; the sums above still hold
        assert all(before.end == after.start for before, after in pairwise(parts))
        assert lease.ended_at is not None
        assert lease.ready_at is not None
        assert bill.seconds <= (lease.ended_at - lease.ready_at).total_seconds()
    call_command("check_ledger")

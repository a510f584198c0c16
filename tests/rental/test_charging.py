"""Money and time: what is charged, by whose clock, and that receipt and ledger agree to the tick."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.models import LedgerEntry
from nodes.models import Node
from portal.actor import Actor
from portal.models import Tenant, User
from rental import metering, receipts, services
from rental.models import Lease, UsageSegment
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import heartbeat, order, report, running, vouch

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RATE = 2_490_000


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


@pytest.fixture(autouse=True)
def _books_balance(db: None) -> Any:
    yield
    call_command("check_ledger")


def stop(lease: Lease, user: User) -> Lease:
    return services.stop_lease(lease=lease, actor=Actor.of_user(user))


def charged(lease: Lease) -> int:
    """Seconds; checks on the way that segments, ledger and receipt say the same."""
    lease.refresh_from_db()
    bill = receipts.receipt(lease)
    posted = LedgerEntry.objects.filter(lease_id=lease.pk, kind="usage")
    assert bill.ticks == bill.ledger_ticks == -sum(entry.ticks for entry in posted)
    assert bill.ticks == sum(segment.ticks or 0 for segment in lease.segments.all())
    assert bill.ticks == bill.seconds * lease.units * lease.price_micros_per_hour
    assert not bill.provisional
    assert_gap_free(bill, lease)
    return bill.seconds


def assert_gap_free(bill: receipts.Receipt, lease: Lease) -> None:
    """The lines follow each other from the order to the end."""
    if not bill.lines:
        return
    assert bill.lines[0].start == lease.requested_at
    for line, after in zip(bill.lines, bill.lines[1:], strict=False):
        assert line.end == after.start
    if lease.ended_at:
        assert bill.lines[-1].end == lease.ended_at


def test_charged_is_what_ran_in_whole_seconds(renter: User, tenant: Tenant, clock: Any) -> None:
    make.make_price()
    make.make_node(gpus=4)
    lease = order(renter, tenant, gpu_count=2)
    clock.shift(40)
    report(lease, "started")
    clock.shift(2)
    report(lease, "ready")
    vouch(lease, clock, 600)
    clock.shift(0.9)
    stop(lease, renter)
    clock.shift(35)
    report(lease, "cleaned")
    assert charged(lease) == 600
    assert tenant.accounts.get().balance_ticks == 100_000_000 * 3600 - 600 * 2 * RATE
    bill = receipts.receipt(lease)
    assert [(line.gap, line.seconds, line.ticks) for line in bill.lines] == [
        ("starting", 42, 0),
        ("", 600, 600 * 2 * RATE),
        ("stopping", 35, 0),
    ]
    assert bill.micros == "830000.000000"


def test_a_running_lease_has_a_provisional_receipt(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 61)
    bill = receipts.receipt(lease)
    assert (bill.provisional, bill.seconds, bill.ticks, bill.ledger_ticks) == (True, 61, 61 * RATE, 0)
    assert metering.accrued_ticks(lease, timezone.now()) == 61 * RATE


def test_the_time_a_node_tells_is_never_used(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:  # case B07
    secret = make.make_node_secret(node)
    lease = running(renter, tenant)
    agent = Client(headers={"Authorization": f"Bearer {secret}"})
    for said in ("1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z", "2026-03-01T11:50:00Z", "nonsense", ""):
        clock.shift(10)
        body: dict[str, Any] = {"boot_id": "b", "agent_run": "r", "clock": said, "gpus": [], "leases": []}
        body["leases"] = [{"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}]
        answer = agent.post("/api/node/v1/heartbeat", body, content_type="application/json")
        assert answer.status_code == 200
        lease.refresh_from_db()
        assert lease.confirmed_at == timezone.now()
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 50


def test_a_quiet_node_is_charged_to_its_last_word(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 300)
    clock.shift(91)
    assert metering.accrued_ticks(Lease.objects.get(), timezone.now()) == 300 * RATE
    stop(lease, renter)
    clock.shift(5)
    report(lease, "cleaned")
    assert charged(lease) == 300
    assert [line.gap for line in receipts.receipt(lease).lines] == ["", "node_silent", "stopping"]


def test_a_short_pause_between_heartbeats_is_charged(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 300)
    clock.shift(89)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 389


def test_silence_that_ends_in_time_is_charged_afterwards(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    clock.shift(14 * 60)
    heartbeat(lease)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 15 * 60
    assert lease.segments.count() == 1


def test_more_silence_than_can_be_confirmed_is_a_gap(renter: User, tenant: Tenant, clock: Any, node: Node) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    clock.shift(3 * 3600)  # the portal was away; or its clock jumped ahead (case F09)
    heartbeat(lease)
    vouch(lease, clock, 60)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 120
    assert lease.segments.count() == 2
    assert [line.gap for line in receipts.receipt(lease).lines] == ["", "node_silent", ""]
    assert lease.events.filter(code="node_heard", data__silent_s=3 * 3600).count() == 1


def test_a_clock_set_back_takes_nothing_back_and_gives_nothing_negative(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:  # case F09
    lease = running(renter, tenant)
    vouch(lease, clock, 300)
    clock.shift(-2 * 3600)
    heartbeat(lease)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged_set_back(lease) == 300
    straight = running(renter, tenant)
    clock.shift(-10)
    stop(straight, renter)
    report(straight, "cleaned")
    assert charged_set_back(straight) == 0


def charged_set_back(lease: Lease) -> int:
    """As charged(), without the look at the lines: on a clock that went back an end can lie before its start."""
    lease.refresh_from_db()
    bill = receipts.receipt(lease)
    assert bill.ticks == bill.ledger_ticks
    assert all(line.seconds >= 0 and line.end >= line.start for line in bill.lines)
    return bill.seconds


@pytest.mark.parametrize(
    "start",
    [
        datetime(2026, 12, 31, 23, 50, tzinfo=UTC), datetime(2028, 2, 28, 23, 50, tzinfo=UTC),
        datetime(2026, 3, 29, 0, 50, tzinfo=UTC), datetime(2026, 10, 25, 0, 50, tzinfo=UTC),
    ],
)  # fmt: skip
def test_calendars_change_nothing(renter: User, tenant: Tenant, clock: Any, node: Node, start: datetime) -> None:
    # case F09: New Year, leap day, both changes of summer time in Europe
    clock.move_to(start)
    Node.objects.update(last_seen_at=start)
    lease = running(renter, tenant)
    vouch(lease, clock, 1200)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 1200


def test_a_lost_node_is_charged_to_the_last_confirmed_moment(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 120)
    clock.shift(30)
    services.lose_lease(lease_id=lease.pk, actor=Actor.system("test"))
    assert charged(lease) == 120
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.ENDED, EndReason.NODE_LOST)
    assert [line.gap for line in receipts.receipt(lease).lines] == ["", "node_silent"]


def test_a_spend_cap_is_never_exceeded_however_late_the_stop(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant, spend_cap_micros=100_000)
    assert lease.deadline_at == START + timedelta(seconds=144)  # floor(100000 * 3600 / 2490000)
    vouch(lease, clock, 500)
    ended = services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))
    assert ended.end_reason == EndReason.FUNDS
    report(lease, "cleaned")
    assert charged(lease) == 144
    assert receipts.receipt(lease).ticks <= 100_000 * 3600


def test_seconds_after_the_maximum_duration_are_never_charged_however_late_the_stop(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant, max_duration_s=300)
    vouch(lease, clock, 500)
    assert metering.used([lease], timezone.now())[lease.pk][0] == 300
    ended = services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))
    assert ended.end_reason == EndReason.MAX_DURATION
    report(lease, "cleaned")
    assert charged(lease) == 300


def test_a_lease_that_was_never_ready_has_a_receipt_of_nothing(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:  # case F01
    lease = order(renter, tenant)
    clock.shift(100)
    report(lease, "failed", failure="failed_image")
    clock.shift(5)
    report(lease, "cleaned")
    assert charged(lease) == 0
    assert [(line.gap, line.seconds) for line in receipts.receipt(lease).lines] == [("starting", 105)]


def test_less_than_a_second_costs_nothing_and_makes_no_ledger_line(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    clock.shift(0.5)
    stop(lease, renter)
    report(lease, "cleaned")
    assert charged(lease) == 0
    assert not LedgerEntry.objects.filter(kind="usage").exists()


@given(st.integers(0, 10**15))
def test_micros_are_written_with_six_decimals_rounded_half_up(ticks: int) -> None:
    whole, _, decimals = receipts.micros_text(ticks).partition(".")
    assert len(decimals) == 6
    assert abs(int(whole + decimals) * 3600 - ticks * 10**6) * 2 <= 3600


moments = st.integers(0, 4000)


@settings(max_examples=300)
@given(ready=moments, confirmed=moments, now=moments, lost=st.booleans())
def test_the_end_of_charging_is_never_beyond_now_nor_unconfirmed_time_nor_before_what_was_confirmed(
    ready: int, confirmed: int, now: int, *, lost: bool
) -> None:
    lease = Lease(confirmed_at=START + timedelta(seconds=max(ready, confirmed)))
    assert lease.confirmed_at is not None
    moment = START + timedelta(seconds=now)
    end = metering.charged_until(lease, moment, lost=lost)
    assert lease.confirmed_at <= end <= max(moment, lease.confirmed_at)
    assert end - lease.confirmed_at <= timedelta(seconds=90)
    if lost:
        assert end == lease.confirmed_at


def test_a_segment_is_posted_once_however_often_it_is_closed(
    renter: User, tenant: Tenant, clock: Any, node: Node
) -> None:
    lease = running(renter, tenant)
    vouch(lease, clock, 60)
    stop(lease, renter)
    assert metering.close_segment(lease, timezone.now()) is None
    assert UsageSegment.objects.count() == LedgerEntry.objects.filter(kind="usage").count() == 1

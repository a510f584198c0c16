"""What a lease is charged for: segments opened and closed, ticks counted, ledger lines posted.

Only rental/lifecycle.py calls the writing functions here, inside the transaction of a step and under the lease's lock.
Time is our own clock at receipt; what a node says about time never enters (case B07).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db.models import F, Sum

from billing import money
from billing.models import LedgerEntry
from billing.services import account_for, lower_hold, post
from portal.ready import Ready
from rental.models import Lease, UsageSegment, whole_seconds
from rental.states import EndReason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from django.db.models import QuerySet

    from billing.money import Ticks


def quiet(lease: Lease, now: datetime) -> bool:
    """Has the node not vouched for this lease for so long that what happens there is not known?"""
    return lease.confirmed_at is not None and now - lease.confirmed_at > timedelta(seconds=settings.QUIET_AFTER_S)


def vouched_until(lease: Lease, now: datetime, *, lost: bool = False) -> datetime:
    """Until when it is known to have run. While the node vouches: now; quiet or ``lost``: the last confirmed moment.

    A clock that was set back takes back nothing that was confirmed, and never gives negative time (case F09).
    """
    if lease.confirmed_at is None:
        return now
    return lease.confirmed_at if lost or quiet(lease, now) else max(now, lease.confirmed_at)


def charged_until(lease: Lease, now: datetime, *, lost: bool = False) -> datetime:
    """Where a segment that is closed at ``now`` ends: never after the deadline, whatever was late to enforce it."""
    until = vouched_until(lease, now, lost=lost)
    return until if lease.deadline_at is None else min(until, lease.deadline_at)


def deadline(lease: Lease) -> datetime:
    """When a lease that was ready ends at the latest: its maximum duration, or the moment its spend cap is used up.

    A cap is used up only while it is charged: in a gap the maximum duration alone counts.
    """
    if lease.ready_at is None:
        raise TypeError(f"{lease.pk} was never ready")
    last = lease.ready_at + timedelta(seconds=lease.max_duration_s)
    charged = None if lease.spend_cap_micros is None else opened(lease)
    if lease.spend_cap_micros is None or charged is None:
        return last
    left_s = max(0, money.from_micros(lease.spend_cap_micros) - closed_ticks(lease)) // rate(lease)
    if left_s >= (last - charged.start).total_seconds():
        return last
    return charged.start + timedelta(seconds=left_s)


def deadline_reason(lease: Lease) -> EndReason:
    """What ends a lease at its deadline: its duration, or its money."""
    if lease.spend_cap_micros is None or lease.ready_at is None or lease.deadline_at is None:
        return EndReason.MAX_DURATION
    last = lease.ready_at + timedelta(seconds=lease.max_duration_s)
    return EndReason.FUNDS if lease.deadline_at < last else EndReason.MAX_DURATION


def rate(lease: Lease) -> Ticks:
    """Ticks per second of the whole lease."""
    return money.ticks(1, lease.units, lease.price_micros_per_hour)


def closed_ticks(lease: Lease) -> int:
    """What the closed segments cost."""
    return sum(ticks or 0 for (ticks,) in _CLOSED.rows(lease=lease.pk))


def opened(lease: Lease) -> UsageSegment | None:
    """The segment that is being charged; None in a gap."""
    found: list[UsageSegment] = _OPENED.rows(lease=lease.pk)
    return found[0] if found else None


def _closed(lease: str) -> QuerySet[UsageSegment, tuple[int]]:
    segments = UsageSegment.objects.filter(lease=lease).order_by().values("lease")
    return segments.annotate(total=Sum("ticks")).values_list("total")


_CLOSED: Final = Ready(_closed, lease="?lease")
_OPENED: Final = Ready(lambda lease: UsageSegment.objects.filter(lease=lease, end__isnull=True), lease="?lease")


def unposted_ticks(lease: Lease, now: datetime) -> int:
    """What the open segment costs so far: used, and not in the ledger yet."""
    segment = opened(lease)
    return 0 if segment is None else cost(lease, segment, charged_until(lease, now), closed_ticks(lease))[1]


def accrued_ticks(lease: Lease, now: datetime) -> int:
    """What the lease has cost so far, the open segment included; provisional while that is open."""
    return closed_ticks(lease) + unposted_ticks(lease, now)


def used(leases: Iterable[Lease], now: datetime) -> dict[str, tuple[int, int]]:
    """``{lease id: (seconds, ticks)}`` charged so far, open segments included; one query for any number of leases."""
    by_id = {lease.pk: lease for lease in leases}
    totals: dict[str, tuple[int, int]] = {}
    for segment in _OF_ONE.rows(lease=next(iter(by_id))) if len(by_id) == 1 else _segments(by_id):
        lease, (seconds, ticks) = by_id[segment.lease_id], totals.get(segment.lease_id, (0, 0))
        if segment.end is None:
            more = cost(lease, segment, charged_until(lease, now), ticks)
        else:
            more = segment.seconds or 0, segment.ticks or 0
        totals[lease.pk] = seconds + more[0], ticks + more[1]
    return totals


def _segments(leases: Collection[str]) -> QuerySet[UsageSegment]:
    """Closed ones first: the spend cap leaves an open one what they have not used."""
    return UsageSegment.objects.filter(lease__in=leases).order_by(F("end").asc(nulls_last=True), "pk")


_OF_ONE: Final = Ready(lambda lease: _segments([lease]), lease="?lease")


def unposted(leases: Iterable[Lease], now: datetime) -> dict[str, int]:
    """``{lease id: ticks}`` used and not in the ledger yet; two queries for any number of leases."""
    total = used(leases, now)
    closed = UsageSegment.objects.filter(lease__in=list(total), end__isnull=False)
    posted = dict(closed.order_by().values("lease").annotate(sum=Sum("ticks")).values_list("lease", "sum"))
    return {lease_id: ticks - posted.get(lease_id, 0) for lease_id, (_, ticks) in total.items()}


def open_segment(lease: Lease, start: datetime) -> UsageSegment:
    """Charging begins."""
    return UsageSegment.objects.create(
        lease=lease, start=start, units=lease.units, price_micros_per_hour=lease.price_micros_per_hour
    )


def pause_segment(lease: Lease, end: datetime) -> None:
    """As close_segment, for a lease that goes on: what was posted is no longer set aside, an empty segment was none."""
    segment = opened(lease)
    if segment is not None and end <= segment.start:
        segment.delete()
    elif segment is not None:
        closed = close_segment(lease, end)
        lower_hold(lease_id=lease.pk, ticks=closed.ticks or 0 if closed else 0)


def close_segment(lease: Lease, end: datetime) -> UsageSegment | None:
    """Charging ends at ``end``: count whole seconds, post them to the ledger. None when no segment is open."""
    segment = opened(lease)
    if segment is None:
        return None
    segment.seconds, segment.ticks = cost(lease, segment, end, closed_ticks(lease))
    segment.end = max(segment.start, end)
    segment.save(update_fields=["end", "seconds", "ticks"])
    if segment.ticks:
        post(
            account=account_for(lease.tenant, lease.currency),
            kind=LedgerEntry.Kind.USAGE,
            ticks=-segment.ticks,
            source=f"segment:{segment.pk}",
            lease_id=lease.pk,
            memo=f"{lease.units} x {lease.gpu_model}, {segment.seconds} s"[:200],
        )
    return segment


def cost(lease: Lease, segment: UsageSegment, end: datetime, before: int) -> tuple[int, int]:
    """Seconds and ticks of ``[segment.start, end)``; ``before`` is what the lease cost already.

    A spend cap is a promise: the seconds by which a stop came late after it are not charged.
    """
    seconds = whole_seconds(segment.start, end)
    per_second = money.ticks(1, segment.units, segment.price_micros_per_hour)
    if lease.spend_cap_micros is not None:
        left = money.from_micros(lease.spend_cap_micros) - before
        seconds = min(seconds, max(0, left // per_second))
    return seconds, seconds * per_second

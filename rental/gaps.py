"""Stretches of a running lease that are not charged, as rows with their reason.

Only rental/lifecycle.py calls the writing functions, under the lease's lock: where a gap begins a segment ends, and the
other way round, at the very same moment. Times are our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from portal.ready import Ready
from rental.models import Lease, UsageGap

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


def opened(lease: Lease) -> UsageGap | None:
    """The gap a running lease is in now."""
    found: list[UsageGap] = _OPENED.rows(lease=lease.pk)
    return found[0] if found else None


_OPENED: Final = Ready(lambda lease: UsageGap.objects.filter(lease=lease, end__isnull=True), lease="?lease")


def reasons(leases: Iterable[Lease]) -> dict[str, str]:
    """``{lease id: reason}`` of those that are in a gap now; one query for any number of leases."""
    rows = UsageGap.objects.filter(lease__in=[lease.pk for lease in leases], end__isnull=True)
    return dict(rows.values_list("lease_id", "reason"))


def begin(lease: Lease, reason: str, start: datetime, detail: str = "") -> UsageGap:
    """From ``start`` on it is not charged."""
    return UsageGap.objects.create(lease=lease, reason=reason, start=start, detail=detail[:500])


def end(gap: UsageGap, at: datetime) -> None:
    """The gap is over; one that lasted no time was none."""
    if at <= gap.start:
        gap.delete()
        return
    gap.end = at
    gap.save(update_fields=["end"])


def record(lease: Lease, reason: str, start: datetime, until: datetime) -> None:
    """A gap that is known only afterwards."""
    if until > start:
        UsageGap.objects.create(lease=lease, reason=reason, start=start, end=until)

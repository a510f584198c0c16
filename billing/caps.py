"""What a tenant has spent in the month, and what its own cap leaves. Questions only; a month is one of UTC.

Spent is what was booked in the month: a lease counts in the month in which its seconds are booked. What is held counts
too, so that nothing ordered at the same time, and no lease that goes on running, can pass the cap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.db.models import Sum
from django.utils import timezone

from billing import money
from billing.models import Account, LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class MonthUse:
    """``month`` is ``2026-11``; amounts are ticks, ``cap_ticks`` None without a cap."""

    month: str
    booked_ticks: int
    held_ticks: int
    cap_ticks: int | None

    @property
    def room_ticks(self) -> int | None:
        """What may still be set aside, below zero beyond the cap; None without one."""
        return None if self.cap_ticks is None else self.cap_ticks - self.booked_ticks - self.held_ticks


def month_use(account: Account, now: datetime | None = None) -> MonthUse:
    """How the month stands. One query."""
    first = month_start(now or timezone.now())
    booked = booked_ticks([account], first).get(account.pk, 0) if account.pk else 0
    cap = account.month_cap_micros
    return MonthUse(f"{first:%Y-%m}", booked, account.held_ticks, None if cap is None else money.from_micros(cap))


def room_ticks(account: Account, now: datetime | None = None) -> int | None:
    """What the cap leaves to be set aside; None without one, and then no query."""
    return None if account.month_cap_micros is None else month_use(account, now).room_ticks


def booked_ticks(accounts: Iterable[Account], since: datetime) -> dict[int, int]:
    """``{account id: ticks used}`` booked since then; one query for any number of accounts."""
    rows = LedgerEntry.objects.filter(
        account__in=[account.pk for account in accounts], kind=LedgerEntry.Kind.USAGE, at__gte=since
    )
    sums = rows.order_by().values("account").annotate(total=Sum("ticks")).values_list("account", "total")
    return {account_id: -total for account_id, total in sums}


def month_start(now: datetime) -> datetime:
    """The first moment of the month, UTC."""
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)

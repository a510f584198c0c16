"""What a tenant is told about its money: balance, holds, spend by day. Questions only; nothing is made by asking."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db.models import Sum
from django.db.models.functions import TruncDate
from django.utils import timezone

from billing.models import Account, Hold, LedgerEntry

if TYPE_CHECKING:
    from datetime import date

    from portal.models import Tenant


@dataclass(frozen=True, slots=True)
class Overview:
    """An account as it stands, and what its open holds are for. ``account`` is unsaved and empty for a new tenant."""

    account: Account
    holds: list[Hold]


def overview(tenant: Tenant, currency: str | None = None) -> Overview:
    """Balance and open holds of a tenant, the oldest hold first. At most two queries."""
    code = currency or settings.CURRENCY
    account = Account.objects.filter(tenant=tenant, currency=code).first()
    if account is None:
        return Overview(Account(tenant=tenant, currency=code), [])
    return Overview(account, list(account.holds.filter(released_at__isnull=True).order_by("pk")))


def daily_spend(account: Account, *, days: int, today: date) -> list[tuple[date, int]]:
    """``[(day, ticks used)]`` of the last ``days`` days up to ``today``, in the active time zone. One query."""
    first = today - timedelta(days=days - 1)
    start = datetime.combine(first, time.min, tzinfo=timezone.get_current_timezone())
    rows = (
        LedgerEntry.objects.filter(account_id=account.pk, kind=LedgerEntry.Kind.USAGE, at__gte=start)
        .order_by()
        .values(day=TruncDate("at"))
        .annotate(total=Sum("ticks"))
        .values_list("day", "total")
    )
    used = dict(rows)
    return [(day, -int(used.get(day, 0))) for day in (first + timedelta(days=n) for n in range(days))]

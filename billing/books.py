"""Are the books right? Sums that must agree, and the triggers that keep lines from being changed. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.db import connection
from django.db.models import BigIntegerField, OuterRef, Subquery, Sum
from django.db.models.functions import Coalesce

from billing.models import Account, Hold, LedgerEntry

if TYPE_CHECKING:
    from django.db.models import QuerySet

# The tables of LedgerEntry, PriceVersion, PlanPrice and TopUp.
APPEND_ONLY: Final = ("billing_ledgerentry", "billing_priceversion", "billing_planprice", "billing_topup")
_TRIGGERS: Final = {
    "sqlite": (
        ("update", "delete"),
        "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    ),
    "postgresql": (
        ("change", "truncate"),
        "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled IN ('O', 'A')",
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """An account whose sums do not agree, in ticks."""

    account: Account
    entries_ticks: int
    open_holds_ticks: int

    def __str__(self) -> str:
        parts = []
        if self.entries_ticks != self.account.balance_ticks:
            parts.append(f"lines sum to {self.entries_ticks}, balance says {self.account.balance_ticks}")
        if self.open_holds_ticks != self.account.held_ticks:
            parts.append(f"open holds sum to {self.open_holds_ticks}, held says {self.account.held_ticks}")
        return f"{self.account}: {'; '.join(parts)}"


def faults() -> list[Fault]:
    """The accounts whose lines do not sum to the balance, or whose open holds do not sum to what is held. One query."""
    checked = Account.objects.annotate(
        entries_ticks=_sum(LedgerEntry.objects.filter(account=OuterRef("pk"))),
        open_holds_ticks=_sum(Hold.objects.open().filter(account=OuterRef("pk"))),
    ).order_by("tenant_id", "currency")
    return [
        Fault(account, account.entries_ticks, account.open_holds_ticks)
        for account in checked.iterator()
        if (account.entries_ticks, account.open_holds_ticks) != (account.balance_ticks, account.held_ticks)
    ]


def missing_triggers() -> list[str]:
    """The names of the append-only triggers this database should have and has not."""
    endings, query = _TRIGGERS[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(query)
        there = {row[0] for row in cursor.fetchall()}
    wanted = [f"{table}_no_{ending}" for table in APPEND_ONLY for ending in endings]
    return [name for name in wanted if name not in there]


def _sum(rows: QuerySet[LedgerEntry] | QuerySet[Hold]) -> Coalesce:
    total = rows.order_by().values("account").annotate(total=Sum("ticks")).values("total")
    return Coalesce(Subquery(total, output_field=BigIntegerField()), 0)

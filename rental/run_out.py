"""When does a lease run out: of time, of its spend cap, of the tenant's balance or cap of the month. Warns before.

A warning is given 60, 15 and 5 minutes before, by the earliest end only, once per end and threshold, and taken back
when it is no longer true. A lease that lasts no longer than a threshold as a whole is not warned of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction
from django.utils import timezone

from billing import money
from billing.models import Account, Hold
from billing.services import booked_ticks, month_start
from portal.actor import Actor
from rental import gaps, metering, notices
from rental.funds import SWEEP_S
from rental.models import Lease, LeaseNotice, whole_seconds
from rental.states import EndReason, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

DEADLINE: Final = "run_out_deadline"
CAP: Final = "run_out_cap"
BALANCE: Final = "run_out_balance"
MONTH: Final = "run_out_month"
KINDS: Final = (DEADLINE, CAP, BALANCE, MONTH)
THRESHOLDS_MIN: Final = (5, 15, 60)
SLACK_MILLI: Final = 1200  # a warning is taken back when a fifth more than its threshold is left, and a minute
ACTOR: Final = "run-out"


@dataclass(frozen=True)
class End:
    """What ends a lease, and in how many seconds if nothing changes."""

    kind: str
    left_s: int


@dataclass(frozen=True)
class Change:
    """A warning to give (``kind``, ``minutes``, ``left_s``; none when ``kind`` is empty), and keys to take back."""

    lease_id: str
    kind: str = ""
    minutes: int = 0
    left_s: int = 0
    key: str = ""
    void: tuple[str, ...] = ()


def look(now: datetime, leases: Sequence[Lease] | None = None) -> list[Change]:
    """What has to be said about running leases (all, or these); a constant number of queries."""
    running = list(Lease.objects.filter(state=State.RUNNING).order_by("pk"))
    meant = running if leases is None else [lease for lease in running if lease in leases]
    if not meant:
        return []
    ending = ends(running, now)
    said: dict[str, list[LeaseNotice]] = {}
    ids = [lease.pk for lease in meant]
    for notice in LeaseNotice.objects.filter(lease__in=ids, kind__in=KINDS):
        said.setdefault(notice.lease_id, []).append(notice)
    changes = [_change(lease, ending[lease.pk], said.get(lease.pk, []), now) for lease in meant]
    return [change for change in changes if change.kind or change.void]


@transaction.atomic
def settle(*, change: Change, actor: Actor, now: datetime | None = None) -> None:
    """Say it, unless the lease has ended since."""
    lease = Lease.objects.select_for_update(of=("self",)).select_related("node").get(pk=change.lease_id)
    if lease.state != State.RUNNING:
        return
    for key in change.void:
        notices.take_back(lease=lease, prefix=key)
    if change.kind:
        at = (now or timezone.now()) + timedelta(seconds=change.left_s)
        data = {"minutes": change.minutes, "ends_at": at.isoformat()}
        notices.tell(lease=lease, kind=change.kind, key=change.key, actor=actor, data=data)


def reconsider(*, lease: Lease, now: datetime) -> None:
    """The limits of a lease have changed: what was said of its end may be untrue, or have to be said."""
    for change in look(now, [lease]):
        settle(change=change, actor=Actor.system(ACTOR), now=now)


def ends(leases: Sequence[Lease], now: datetime) -> dict[str, list[End]]:
    """``{lease id: ends}``, the earliest first. ``leases`` are all running ones of their tenants, or estimates err."""
    purses = _purses(leases, now)
    found: dict[str, list[End]] = {}
    for lease in leases:
        last_s = whole_seconds(now, lease.deadline_at) if lease.deadline_at else lease.max_duration_s
        kind = CAP if metering.deadline_reason(lease) == EndReason.FUNDS else DEADLINE
        money_ends = purses[lease.tenant_id, lease.currency].ends(lease, last_s)
        found[lease.pk] = sorted([End(kind, last_s), *money_ends], key=lambda end: end.left_s)
    return found


@dataclass
class _Purse:
    """Balance and month's cap of a tenant in one currency, and the running leases that use them up. All in ticks."""

    balance: int
    month_left: int | None
    held: int
    using: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # lease id: rate, held, unposted

    def ends(self, lease: Lease, last_s: int) -> list[End]:
        """When money ends this lease, if that is before ``last_s`` seconds; empty in a gap, which uses nothing up."""
        if lease.pk not in self.using:
            return []
        found = [End(BALANCE, self._left_s(lease, self.balance))]
        if self.month_left is not None:
            found.append(End(MONTH, self._left_s(lease, self.month_left)))
        # It is ended when the next minute is not covered any more.
        return [End(end.kind, max(0, end.left_s - SWEEP_S)) for end in found if end.left_s < last_s]

    def _left_s(self, lease: Lease, pot: int) -> int:
        """Seconds until ``pot`` is used up by all, or what is held for this lease and not for another."""
        rate, held, unposted = self.using[lease.pk]
        others = self.held - sum(own for _, own, _ in self.using.values())
        together = (pot - others - sum(used for _, _, used in self.using.values())) // sum(
            rate for rate, _, _ in self.using.values()
        )
        return max(0, min(together, (held - unposted + max(0, pot - self.held)) // rate))


def _purses(leases: Sequence[Lease], now: datetime) -> dict[tuple[str, str], _Purse]:
    accounts = {
        (account.tenant_id, account.currency): account
        for account in Account.objects.filter(tenant__in={lease.tenant_id for lease in leases})
    }
    capped = [account for account in accounts.values() if account.month_cap_micros is not None]
    booked = booked_ticks(capped, month_start(now)) if capped else {}
    held = dict(
        Hold.objects.open().filter(lease_id__in=[lease.pk for lease in leases]).values_list("lease_id", "ticks")
    )
    resting, unposted = gaps.reasons(leases), metering.unposted(leases, now)
    purses: dict[tuple[str, str], _Purse] = {}
    for lease in leases:
        where = lease.tenant_id, lease.currency
        if where not in purses:
            purses[where] = _purse(accounts.get(where), booked)
        if lease.pk not in resting:
            purses[where].using[lease.pk] = metering.rate(lease), held.get(lease.pk, 0), unposted.get(lease.pk, 0)
    return purses


def _purse(account: Account | None, booked: dict[int, int]) -> _Purse:
    if account is None:
        return _Purse(0, None, 0)
    cap = account.month_cap_micros
    left = None if cap is None else money.from_micros(cap) - booked.get(account.pk, 0)
    return _Purse(account.balance_ticks, left, account.held_ticks)


def _change(lease: Lease, ending: Sequence[End], said: Iterable[LeaseNotice], now: datetime) -> Change:
    left = {end.kind: end.left_s for end in ending}
    standing = [notice for notice in said if notice.void_at is None]
    void = [notice for notice in standing if left.get(notice.kind, 1 << 60) > _slack_s(notice.data["minutes"])]
    first, facts = ending[0], _due(lease, ending[0], now)
    holds = {notice.data["minutes"] for notice in standing if notice.kind == first.kind and notice not in void}
    if facts and not any(minutes <= facts for minutes in holds):
        again = sum(notice.kind == first.kind and notice.data["minutes"] == facts for notice in said)
        # What was said of more time is replaced.
        void += [notice for notice in standing if notice.kind == first.kind and notice not in void]
        new: dict[str, Any] = {"kind": first.kind, "minutes": facts, "left_s": first.left_s}
        return Change(lease.pk, **new, key=f"{first.kind}:{facts}:{again}", void=_keys(void))
    return Change(lease.pk, void=_keys(void))


def _due(lease: Lease, end: End, now: datetime) -> int:
    """The threshold, min, that this end has passed; 0 for none, or for a lease that is shorter than it altogether."""
    lasts_s = (whole_seconds(lease.ready_at, now) if lease.ready_at else 0) + end.left_s
    passed = [minutes for minutes in THRESHOLDS_MIN if end.left_s <= minutes * 60]
    return passed[0] if passed and lasts_s > passed[0] * 60 else 0


def _slack_s(minutes: int) -> int:
    return minutes * 60 * SLACK_MILLI // 1000 + 60


def _keys(said: Iterable[LeaseNotice]) -> tuple[str, ...]:
    return tuple(notice.key for notice in said)

"""What the pages of leases show, gathered in a fixed number of queries. Streams render the same facts again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from billing import money
from portal import formatting
from portal.models import ROLES_THAT_LEASE, Membership
from portal.templatetags.lessor import ticks_cost
from rental import activity, catalog, connect, idle_shown, metering, notices, receipts, run_out, ssh_activity, words
from rental.extend_form import ExtendForm
from rental.models import Lease, device_uuids
from rental.notice_words import WORDS
from rental.states import BEFORE_READY, OPEN, Gap, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from portal.models import Tenant, User
    from rental.models import LeaseQuerySet
    from rental.receipts import Line, Receipt

PER_PAGE = 25


@dataclass(frozen=True)
class Meter:
    """A running cost as ``{% ticker %}`` takes it: from ``since_unix`` on at ``rate_micros``, added to ``base_ticks``.

    ``since_unix`` None: nothing counts. ``ticks`` is the cost of now, ``parts`` the same as sign, number and the last
    two digits, for a cost inside a line of text that app.js counts on.
    """

    rate_micros: int
    since_unix: int | None
    base_ticks: int
    ticks: int
    currency: str

    @property
    def digits(self) -> int:
        """Decimals of a cost."""
        return formatting.minor_digits(self.currency) + 2

    @property
    def parts(self) -> tuple[str, str, str]:
        """``("$", "18.45", "09")``."""
        text = ticks_cost(self.ticks, self.currency)
        number = next(index for index, letter in enumerate(text) if letter.isdecimal())
        return text[:number], text[number:-2], text[-2:]


@dataclass(frozen=True)
class Row:
    """A lease in the list, with what it cost so far."""

    lease: Lease
    gpu: str
    seconds: int
    ticks: int
    meter: Meter
    deadline_unix: int | None


def visible(user: User) -> LeaseQuerySet:
    """The leases a person may look at, with what every page of them reads."""
    return Lease.objects.visible_to(user).select_related("tenant", "node", "activity")


def rows(leases: Sequence[Lease], now: datetime) -> list[Row]:
    """Rows of a list: one query for any number of leases."""
    used = metering.used(leases, now)
    return [_row(lease, *used.get(lease.pk, (0, 0)), now) for lease in leases]


def _row(lease: Lease, seconds: int, ticks: int, now: datetime) -> Row:
    counts = lease.state == State.RUNNING and not metering.quiet(lease, now)
    since = int(now.timestamp()) if counts else None
    meter = Meter(lease.total_micros_per_hour, since, ticks, ticks, lease.currency)
    return Row(lease, gpu_name(lease), seconds, ticks, meter, _unix(lease.deadline_at))


def open_leases(tenant: Tenant) -> QuerySet[Lease]:
    """What is not over, newest first."""
    return Lease.objects.open().filter(tenant=tenant).select_related("node")


def past_leases(tenant: Tenant) -> QuerySet[Lease]:
    """What is over, the latest first."""
    return Lease.objects.filter(tenant=tenant).exclude(state__in=OPEN).select_related("node")


def gpu_name(lease: Lease) -> str:
    """``2 × H100 SXM``."""
    return f"{lease.gpu_count} × {catalog.model_facts(lease.gpu_model).short_name}"


def facts(lease: Lease, user: User) -> dict[str, Any]:
    """The context of the lease page. Nine queries, and those of its activity."""
    now = timezone.now()
    bill = receipts.receipt(lease, now)
    running = lease.state == State.RUNNING
    return {
        "lease": lease,
        "gpu": gpu_name(lease),
        "starting": lease.state in BEFORE_READY,
        "phase": "starting" if lease.state in BEFORE_READY else lease.state,
        "running": running,
        "over": lease.state in {State.ENDED, State.INTERRUPTED},
        "quiet": running and metering.quiet(lease, now),
        "may_lease": may_lease(user, lease.tenant_id),
        "door": connect.door(lease),
        "devices": device_uuids([lease]).get(lease.pk, []),
        "history": words.history(lease, lease.events.all()),
        "end_words": words.end_reason(lease),
        "end_detail": words.end_detail(lease),
        "ssh_seen": ssh_activity.recent(lease),
        "bill": bill,
        "free_s": sum(line.seconds for line in bill.lines if line.gap),
        "meter": _meter(lease, bill, now),
        "stretches": _stretches(lease, bill, now),
        "deadline_unix": _unix(lease.deadline_at),
        "requested_unix": _unix(lease.requested_at),
        **idle_shown.facts(lease, now),
        "used_percent": _used_percent(lease, now),
        "cap_percent": _cap_percent(lease, bill),
        **_limits(lease, bill),
    }


def _limits(lease: Lease, bill: Receipt) -> dict[str, Any]:
    """Warnings that stand, whether SSH is down, and the form that gives other limits. One query."""
    told = notices.standing([lease]).get(lease.pk, []) if lease.state == State.RUNNING else []
    last = bill.lines[-1] if bill.lines else None
    return {
        "warnings": [
            (said.kind, WORDS[said.kind].line(lease, said.data)) for said in told if said.kind in run_out.KINDS
        ],
        "ssh_is_down": last is not None and last.provisional and last.gap == Gap.SSH_DOWN,
        "form": ExtendForm(lease=lease),
        "most_s": settings.MAX_DURATION_S,
    }


def is_quiet(lease: Lease) -> bool:
    """Does the node of a running lease not answer at the moment?"""
    return lease.state == State.RUNNING and metering.quiet(lease, timezone.now())


def sampled_at(lease: Lease) -> datetime | None:
    """When its node last told what it does."""
    row = activity.of(lease)
    return row.sampled_at if row else None


def may_lease(user: User, tenant_id: str) -> bool:
    """May this person stop what the tenant rents?"""
    return Membership.objects.filter(user=user, tenant_id=tenant_id, role__in=ROLES_THAT_LEASE).exists()


def _meter(lease: Lease, bill: Receipt, now: datetime) -> Meter:
    """Counts only while the node vouches: a quiet node's meter stands still at the last confirmed second."""
    rate, last = lease.total_micros_per_hour, bill.lines[-1] if bill.lines else None
    if lease.state != State.RUNNING or last is None or not _counts(last) or metering.quiet(lease, now):
        return Meter(rate, None, bill.ticks, bill.ticks, lease.currency)
    since = math.ceil(last.start.timestamp())  # a second that is not whole yet is not shown as charged
    return Meter(rate, since, bill.ticks - last.ticks, bill.ticks, lease.currency)


def _counts(line: Line) -> bool:
    return line.provisional and not line.gap


def _stretches(lease: Lease, bill: Receipt, now: datetime) -> list[dict[str, Any]]:
    """The ribbon: what was charged, what was free, what is left at most."""
    drawn = [{"kind": "free" if line.gap else "charged", "seconds": line.seconds} for line in bill.lines]
    if lease.state == State.RUNNING and lease.deadline_at is not None:
        drawn.append({"kind": "left", "seconds": max(0, int((lease.deadline_at - now).total_seconds()))})
    return drawn


def _used_percent(lease: Lease, now: datetime) -> int:
    if lease.ready_at is None or lease.deadline_at is None:
        return 0
    whole = (lease.deadline_at - lease.ready_at).total_seconds()
    return min(100, max(0, int((now - lease.ready_at).total_seconds() * 100 / whole))) if whole > 0 else 100


def _cap_percent(lease: Lease, bill: Receipt) -> int:
    if not lease.spend_cap_micros:
        return 0
    return min(100, bill.ticks * 100 // (lease.spend_cap_micros * money.TICKS_PER_MICRO))


def _unix(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())

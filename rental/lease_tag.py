"""The ETag of a lease as the API shows it: who asks again and again is told cheaply that nothing has happened.

Weak: the counters (seconds_charged, ticks, cost_micros) grow by themselves, and no other tag follows from that. Whether
they grow is in it: a step, a gap and its end are events, a node that falls silent is looked for.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db.models import OuterRef, Subquery

from rental import idle_shown, metering
from rental.models import Lease, LeaseEvent
from rental.states import OPEN

if TYPE_CHECKING:
    from datetime import datetime

    from rental.models import LeaseQuerySet

# Moves with every heartbeat and shows in nothing but the counters.
UNSEEN: Final = frozenset({"confirmed_at"})


def with_last_event(leases: LeaseQuerySet) -> LeaseQuerySet:
    """The same leases, each with what ``of`` needs; no further query."""
    newest = LeaseEvent.objects.filter(lease=OuterRef("pk")).order_by("-id").values("id")[:1]
    return leases.annotate(last_event=Subquery(newest))


def of(lease: Lease, now: datetime) -> str | None:
    """The tag of a lease from ``with_last_event`` with ``node`` and ``activity`` selected.

    None once it is over: nobody waits for it any more, and its devices come free without a step.
    """
    if lease.state not in OPEN:
        return None
    node = lease.node
    facts = (
        settings.VERSION,
        lease.last_event,  # type: ignore[attr-defined]  # annotated
        [getattr(lease, field.attname) for field in Lease._meta.concrete_fields if field.name not in UNSEEN],
        node and (node.name, node.simulated, node.ssh_host, node.ssh_port, node.ssh_host_key),
        metering.quiet(lease, now),
        idle_shown.shown(lease, now),
    )
    return f'W/"{hashlib.sha256(repr(facts).encode()).hexdigest()[:32]}"'

"""Holds of running leases, rolled forward: what is used and not booked yet, and up to one hour more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from billing import money
from billing.models import Hold
from billing.services import account_for, room_ticks, set_hold
from rental import lifecycle, metering
from rental.models import Lease, whole_seconds
from rental.services import stop_lease
from rental.states import EndReason, State

if TYPE_CHECKING:
    from datetime import datetime

    from portal.actor import Actor

SWEEP_S: Final = 60  # as often as beat sweeps: what must be covered until the next look
BALANCE_USED: Final = "The balance does not pay for more."
MONTH_USED: Final = "The spend cap of the month is reached."


@transaction.atomic
def roll_hold(*, lease_id: str, actor: Actor) -> Lease:
    """Set aside what the next hour costs, or as much as there is; end the lease when the next minute is not covered.

    A lease that ends sooner, by its deadline or spend cap, needs no more than that. In a gap nothing is used up.
    """
    lease = lifecycle.lock(lease_id=lease_id)
    if lease.state != State.RUNNING or lease.deadline_at is None:
        return lease
    now = timezone.now()
    used = metering.unposted_ticks(lease, now)
    if set_hold(lease_id=lease_id, ticks=used + ahead(lease, now, settings.HOLD_SECONDS)):
        return lease
    held, why = _hold_what_is_left(lease, used)
    if held >= used + ahead(lease, now, SWEEP_S) or metering.opened(lease) is None:
        return lease
    return stop_lease(lease=lease, actor=actor, reason=EndReason.FUNDS, detail=why)


def ahead(lease: Lease, now: datetime, seconds: int) -> int:
    """Ticks of the next ``seconds``, fewer if the lease ends sooner by its duration or its own spend cap."""
    last = whole_seconds(now, lease.deadline_at) if lease.deadline_at else lease.max_duration_s
    ticks = metering.rate(lease) * min(seconds, last)
    if lease.spend_cap_micros is None:
        return ticks
    return max(0, min(ticks, money.from_micros(lease.spend_cap_micros) - metering.accrued_ticks(lease, now)))


def _hold_what_is_left(lease: Lease, used: int) -> tuple[int, str]:
    """Hold the rest of balance and month's cap; the ticks now held, and which of the two is short.

    An order that comes between takes it, once. A cap that was lowered below what is held takes some of it back.
    """
    held = Hold.objects.open().get(lease_id=lease.pk).ticks
    account = account_for(lease.tenant, lease.currency)
    room = room_ticks(account)
    short = room is not None and room < account.available_ticks
    left = account.available_ticks if room is None else min(room, account.available_ticks)
    wanted = max(used, held + left) if left < 0 else held + left
    if wanted != held and set_hold(lease_id=lease.pk, ticks=wanted):
        held = wanted
    return held, MONTH_USED if short else BALANCE_USED

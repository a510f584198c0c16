"""Holds of running leases, rolled forward: what it cost so far, and up to one hour more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from billing.models import Hold
from billing.services import account_for, set_hold
from rental import metering
from rental.models import Lease, whole_seconds
from rental.services import stop_lease
from rental.states import EndReason, State

if TYPE_CHECKING:
    from portal.actor import Actor

SWEEP_S: Final = 60  # as often as beat sweeps: what must be covered until the next look


@transaction.atomic
def roll_hold(*, lease_id: str, actor: Actor) -> Lease:
    """Set aside what the next hour costs, or as much as there is; end the lease when the next minute is not covered.

    A lease that ends sooner, by its deadline or spend cap, needs no more than that.
    """
    lease = Lease.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=lease_id)
    if lease.state != State.RUNNING or lease.deadline_at is None:
        return lease
    now = timezone.now()
    accrued, rate = metering.accrued_ticks(lease, now), metering.rate(lease)
    rest_s = whole_seconds(now, lease.deadline_at)
    if set_hold(lease_id=lease_id, ticks=accrued + rate * min(settings.HOLD_SECONDS, rest_s)):
        return lease
    if _hold_what_is_left(lease) >= accrued + rate * min(SWEEP_S, rest_s):
        return lease
    return stop_lease(lease=lease, actor=actor, reason=EndReason.FUNDS, detail="The balance does not pay for more.")


def _hold_what_is_left(lease: Lease) -> int:
    """Raise the hold by the rest of the balance; the ticks now held. An order that comes between takes it, once."""
    held = Hold.objects.open().get(lease_id=lease.pk).ticks
    left = account_for(lease.tenant, lease.currency).available_ticks
    if left > 0 and set_hold(lease_id=lease.pk, ticks=held + left):
        return held + left
    return held

"""Other limits for a lease that is not over: longer, shorter, another spend cap. The price stays what was ordered.

A deadline that has passed stands: the node enforces it by its own clock, so whoever comes later is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing import money
from billing.services import account_for, month_use, set_hold
from nodes import broker
from portal.errors import DomainError, IllegalTransition, InsufficientFunds, InvalidInput, NotAllowed
from portal.models import ROLES_THAT_LEASE
from portal.services import audit, require_role
from rental import funds, lifecycle, metering, run_out
from rental.models import Lease
from rental.requests import LEAST_DURATION_S, MAX_MICROS
from rental.states import BEFORE_READY, State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from portal.actor import Actor

LEAST_LEFT_S: Final = 60  # shortened, it ends no sooner than this from now


@dataclass(frozen=True)
class Limits:
    """``max_duration_s`` counts from ready, the cap is µ of the lease's currency, None for none."""

    max_duration_s: int
    spend_cap_micros: int | None


def parse(lease: Lease, data: Mapping[str, Any]) -> Limits:
    """What is asked for: fields that are missing stay. InvalidInput names every wrong or unknown field."""
    errors: dict[str, list[str]] = {}
    for name in data:
        if name not in {"max_duration_s", "spend_cap_micros"}:
            errors[str(name)[:64]] = ["unknown field; max_duration_s and spend_cap_micros can be changed."]
    if not data:
        errors["max_duration_s"] = ["give max_duration_s or spend_cap_micros."]
    duration = data.get("max_duration_s", lease.max_duration_s)
    # What was ordered under another ceiling may stay; only a new wish is judged by the one of now.
    if "max_duration_s" in data and not _whole(duration, LEAST_DURATION_S, settings.MAX_DURATION_S):
        errors["max_duration_s"] = [
            f"a whole number from {LEAST_DURATION_S} to {settings.MAX_DURATION_S} is accepted, counted from ready."
        ]
    cap = data.get("spend_cap_micros", lease.spend_cap_micros)
    if cap is not None and not _whole(cap, 1, MAX_MICROS):
        errors["spend_cap_micros"] = [f"a whole number from 1 to {MAX_MICROS} is accepted, or null for no cap."]
    if errors:
        name, sentences = next(iter(errors.items()))
        raise InvalidInput(f"{name}: {sentences[0]}", errors=errors)
    return Limits(duration, cap)


@transaction.atomic
def extend_lease(*, lease: Lease, actor: Actor, wanted: Mapping[str, Any]) -> Lease:
    """Give a lease other limits (see parse) and return it; asking for what it has changes nothing.

    Raises InvalidInput naming the field, ``illegal_state`` when it is over or at its end, InsufficientFunds or
    ``month_cap_reached`` when what it may cost in the next hour cannot be set aside, NotAllowed.
    """
    if actor.user is not None:
        require_role(user=actor.user, tenant=lease.tenant, roles=ROLES_THAT_LEASE)
    current = Lease.objects.select_for_update(of=("self",)).select_related("tenant", "node").get(pk=lease.pk)
    limits = parse(current, wanted)
    now = timezone.now()
    _check_state(current, now)
    if limits == Limits(current.max_duration_s, current.spend_cap_micros):
        return current
    _check_what_is_left(current, limits, now)
    before, longer = Limits(current.max_duration_s, current.spend_cap_micros), _longer(current, limits)
    changed = lifecycle.limit(
        lease_id=current.pk,
        actor=actor,
        code="extended" if longer else "limited",
        max_duration_s=limits.max_duration_s,
        spend_cap_micros=limits.spend_cap_micros,
    )
    _roll_hold(changed, now, longer=longer)
    data = {"before": before.__dict__, "after": limits.__dict__}
    audit(actor=actor, action="lease.extended", obj=changed, tenant=changed.tenant, data=data)
    run_out.reconsider(lease=changed, now=now)
    if changed.node_id:
        broker.wake(node_id=changed.node_id, lease_id=changed.pk)
    return changed


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _check_state(lease: Lease, now: datetime) -> None:
    if lease.tenant.suspended_at is not None:
        raise NotAllowed(_("This account is suspended; ask the operator."), code="tenant_suspended")
    if lease.state not in {*BEFORE_READY, State.RUNNING}:
        raise IllegalTransition(_("The lease is over, or being stopped."), extra={"state": lease.state})
    if lease.deadline_at is not None and lease.deadline_at <= now:
        raise IllegalTransition(_("The lease has reached its end and is being stopped."), extra={"state": lease.state})


def _check_what_is_left(lease: Lease, limits: Limits, now: datetime) -> None:
    """A minute from now at least, by time and by money, so that nobody stops a lease by a slip of the hand."""
    errors: dict[str, list[str]] = {}
    if lease.ready_at is not None and limits.max_duration_s != lease.max_duration_s:
        ran_s = -((lease.ready_at - now) // timedelta(seconds=1))
        if limits.max_duration_s < ran_s + LEAST_LEFT_S:
            errors["max_duration_s"] = [
                f"it has run for {ran_s} s; {ran_s + LEAST_LEFT_S} or more is accepted, or stop it."
            ]
    if limits.spend_cap_micros is not None and limits.spend_cap_micros != lease.spend_cap_micros:
        used = metering.accrued_ticks(lease, now) if lease.ready_at else 0
        least = money.micros_ceil(used + LEAST_LEFT_S * metering.rate(lease))
        if limits.spend_cap_micros < least:
            errors["spend_cap_micros"] = [
                f"{money.micros_ceil(used)} are used and a minute more is needed; {least} or more is accepted."
            ]
    if errors:
        name, sentences = next(iter(errors.items()))
        raise InvalidInput(f"{name}: {sentences[0]}", errors=errors)


def _longer(lease: Lease, limits: Limits) -> bool:
    """Neither limit is lower than before."""
    cap, old = limits.spend_cap_micros, lease.spend_cap_micros
    return limits.max_duration_s >= lease.max_duration_s and (cap is None or (old is not None and cap >= old))


def _roll_hold(lease: Lease, now: datetime, *, longer: bool) -> None:
    """As an order: the next hour, or all that is left of it, is set aside now. Less time is never refused for money."""
    used = metering.unposted_ticks(lease, now) if lease.ready_at else 0
    needed = used + funds.ahead(lease, now, settings.HOLD_SECONDS)
    if set_hold(lease_id=lease.pk, ticks=needed) or not longer:
        return
    account = account_for(lease.tenant, lease.currency)
    use = month_use(account, now)
    facts = {"needed_micros": money.micros_ceil(needed), "currency": lease.currency}
    if use.room_ticks is not None and use.room_ticks < account.available_ticks:
        raise DomainError(
            _("The spend cap of %(month)s (UTC) does not leave enough for its next hour.") % {"month": use.month},
            code="month_cap_reached",
            extra={**facts, "room_micros": money.micros_floor(use.room_ticks), "cap_micros": account.month_cap_micros},
        )
    raise InsufficientFunds(
        _("The balance does not pay for its next hour. Top up first, or extend it by less."),
        extra={**facts, "available_micros": money.micros_floor(account.available_ticks)},
    )

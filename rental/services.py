"""What can be done with leases: quote, order, stop, keep, and what the sweeps do when time, money or a node is over.

Every verb is keyword-only and atomic, returns the lease, and refuses with an error of portal.errors.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from billing.services import place_hold
from nodes import broker
from portal.actor import Actor
from portal.errors import DomainError, IllegalTransition, InvalidInput, NotAllowed
from portal.models import ROLES_THAT_LEASE, Membership, Tenant, User
from portal.ready import Ready
from portal.services import audit, require_role
from rental import access, capacity, lifecycle, metering, notices, quotes
from rental.models import Lease
from rental.states import LIVE, EndReason, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from rental.models import LeaseQuerySet
    from rental.quotes import Quote
    from rental.requests import LeaseRequest

MAX_NAME: Final = 80
IDLE_WARNING: Final = "idle:"  # the keys of these warnings go on with the start of the idle stretch


def build_quote(*, tenant: Tenant, user: User, request: LeaseRequest) -> Quote:
    """A price for this request that holds for five minutes. Writes nothing.

    Raises InvalidInput naming the field, ``price_above_limit``, NotAllowed for a role that may not lease.
    """
    require_role(user=user, tenant=tenant, roles=ROLES_THAT_LEASE)
    _check_standing(tenant)
    _check_keys(tenant, request.ssh_key_ids)
    return quotes.make(tenant=tenant, request=request)


def request_lease(*, tenant: Tenant, actor: Actor, quote_token: str, name: str = "") -> tuple[Lease, bool]:
    """Order what was quoted: ``(lease, True)``; the same quote again returns its lease with False, also under a race.

    Raises InvalidInput (``invalid_quote``, keys), OfferChanged, NoCapacity with reasons, InsufficientFunds, NotAllowed.
    A refusal leaves nothing behind: lease, capacity and money come together or not at all.
    """
    quote = quotes.read(quote_token, tenant=tenant)
    now = timezone.now()
    try:
        quotes.check_fresh(quote, now)
        return _order(tenant=tenant, actor=actor, quote=quote, name=_name(name or quote.request.name), now=now), True
    except (IntegrityError, DomainError):
        # Most quotes are used once, so the key of the INSERT is asked and not the table before. What was ordered with
        # this quote is returned whatever has changed since; a key that is broken otherwise is a fault of ours.
        ordered = _ordered(quote)
        if ordered is None:
            raise
        return ordered, False


def note_refused_settings(*, tenant: Tenant, actor: Actor, names: Sequence[str]) -> None:
    """Somebody tried to set up the container itself. The order is refused by whoever reads it; the try is kept."""
    audit(actor=actor, action="lease.setting_refused", obj=tenant, tenant=tenant, data={"fields": list(names)[:20]})


@transaction.atomic
def stop_lease(
    *,
    lease: Lease,
    actor: Actor,
    reason: str | None = None,
    detail: str = "",
    data: dict[str, Any] | None = None,
    locked: Lease | None = None,
) -> Lease:
    """End a lease: before it is ready it is cancelled, free of charge, later released. One that stops already stays so.

    ``reason`` is given by operators and sweeps; without it the actor's role must allow leasing. ``data`` are facts for
    the line of history, ``locked`` is the lease where this transaction holds its row (see lifecycle.lock).
    """
    if reason is None and actor.user is not None:
        require_role(user=actor.user, tenant=lease.tenant, roles=ROLES_THAT_LEASE)
    current = locked or lifecycle.lock(lease_id=lease.pk)
    if current.state in {State.STOPPING, State.ENDED}:
        return current
    why = reason or (EndReason.RELEASED if current.state == State.RUNNING else EndReason.CANCELLED)
    # Without a node there is nothing to stop.
    to = State.ENDED if current.state in {State.REQUESTED, State.INTERRUPTED} else State.STOPPING
    stopped = lifecycle.move(
        lease_id=current.pk,
        to=to,
        code=why,
        actor=actor,
        detail=detail,
        data=data,
        locked=current,
        end_reason=why,
        end_detail=detail[:500],
    )
    if actor.user is not None:
        audit(actor=actor, action="lease.stopped", obj=stopped, tenant=stopped.tenant, data={"reason": why})
    if stopped.node_id:
        broker.wake(node_id=stopped.node_id, lease_id=stopped.pk)
    return stopped


@transaction.atomic
def keep_lease(*, lease: Lease, actor: Actor) -> Lease:
    """The renter is there: the idle clock starts again, its warning is gone. 409 ``illegal_state`` unless it runs."""
    if actor.user is not None:
        require_role(user=actor.user, tenant=lease.tenant, roles=ROLES_THAT_LEASE)
    current = lifecycle.lock(lease_id=lease.pk)
    if current.state != State.RUNNING:
        raise IllegalTransition(_("Only a running lease can be kept."), extra={"state": current.state})
    kept = lifecycle.note(lease_id=lease.pk, code="kept", actor=actor, locked=current, kept_at=timezone.now())
    notices.take_back(lease=kept, prefix=IDLE_WARNING)
    return kept


def take_due(*, lease_ids: Collection[str]) -> list[Lease]:
    """Those of these leases that run and that nobody has in hand now, locked, for end_at_deadline().

    Sweeps beside each other share the work so; who is left out is looked at by the next. In a transaction.
    """
    running = Lease.objects.filter(pk__in=lease_ids, state=State.RUNNING).select_related("tenant").order_by("pk")
    return list(running.select_for_update(of=("self",), skip_locked=True))


@transaction.atomic
def end_at_deadline(*, lease_id: str, actor: Actor, locked: Lease | None = None) -> Lease:
    """The maximum duration, or what the spend cap pays for, is over; not if it was extended a moment ago."""
    lease = locked or lifecycle.lock(lease_id=lease_id)
    if lease.deadline_at is None or lease.deadline_at > timezone.now():
        return lease
    return stop_lease(lease=lease, actor=actor, reason=metering.deadline_reason(lease), locked=lease)


def overdue_to_start(now: datetime) -> LeaseQuerySet:
    """Leases whose node has neither made them ready in time nor come further with their image."""
    return Lease.objects.overdue_to_start(
        now - timedelta(seconds=settings.START_TIMEOUT_S), now - timedelta(seconds=settings.PULL_TIMEOUT_S)
    )


@transaction.atomic
def end_unanswered(*, lease_id: str, actor: Actor) -> Lease:
    """The node did not make it ready in time: failed, free of charge. A lease that became ready meanwhile goes on."""
    lease = lifecycle.lock(lease_id=lease_id)
    if not overdue_to_start(timezone.now()).filter(pk=lease_id).exists():
        return lease
    return stop_lease(
        lease=lease,
        actor=actor,
        reason=EndReason.FAILED_LAUNCH,
        detail=f"It was not ready within {settings.START_TIMEOUT_S // 60} minutes.",
    )


@transaction.atomic
def lose_lease(*, lease_id: str, actor: Actor, unheard_since: datetime | None = None, detail: str = "") -> Lease:
    """The node is lost: charged to the last confirmed moment, ended; its slots stay taken until the node reports.

    With ``unheard_since`` only if the node has not vouched since then: it may have come back a moment ago.
    """
    lease = Lease.objects.select_for_update(of=("self",)).select_related("node").get(pk=lease_id)
    if lease.state not in LIVE or (unheard_since is not None and _heard(lease) > unheard_since):
        return lease
    if lease.state == State.STOPPING:
        # Already uncharged; why it was stopped stands. Only for a node that will never report again.
        return lifecycle.move(
            lease_id=lease_id, to=State.ENDED, code="node_lost", actor=actor, detail=detail, keep_capacity=True
        )
    why = EndReason.NODE_LOST
    lifecycle.move(
        lease_id=lease_id, to=State.INTERRUPTED, code=why, actor=actor, detail=detail, end_reason=why, end_detail=detail
    )
    return lifecycle.move(lease_id=lease_id, to=State.ENDED, code="ended", actor=actor, keep_capacity=True)


def _heard(lease: Lease) -> datetime:
    """When the node last vouched for a running lease; before that, when it was last heard at all."""
    if lease.state == State.RUNNING and lease.confirmed_at is not None:
        return lease.confirmed_at
    last_seen = lease.node.last_seen_at if lease.node else None
    return max(last_seen or lease.requested_at, lease.assigned_at or lease.requested_at)


@transaction.atomic
def _order(*, tenant: Tenant, actor: Actor, quote: Quote, name: str, now: datetime) -> Lease:
    user = _renter(tenant, actor)
    request = quote.request
    _check_keys(tenant, request.ssh_key_ids)
    # The row comes first: its unique quote_id makes a double click wait here instead of competing for capacity.
    lease = lifecycle.begin(tenant=tenant, created_by=user, name=name, requested_at=now, **_ordered_facts(quote))
    node = capacity.take(lease=lease, request=request, gpu_memory_gb=quote.gpu_memory_gb, now=now)
    place_hold(tenant=tenant, currency=quote.currency, lease_id=lease.pk, ticks=quote.hold_ticks)
    broker.wake(node_id=node.pk, lease_id=lease.pk)  # the first thing after the commit
    generation, share = lease.generation + 1, capacity.share(node, request.gpu_count)
    lifecycle.assign(lease=lease, actor=actor, node=node, generation=generation, **share)
    audit(actor=actor, action="lease.requested", obj=lease, tenant=tenant, data={"node": node.name, "quote": quote.id})
    return lease


def _ordered_facts(quote: Quote) -> dict[str, Any]:
    request = quote.request
    return {
        "quote_id": quote.id,
        "plan": request.plan,
        "priority": request.priority,
        "gpu_model": request.gpu_model,
        "gpu_count": request.gpu_count,
        "gpu_memory_gb": quote.gpu_memory_gb,
        "image": request.image,
        "ssh_key_ids": None if request.ssh_key_ids is None else list(request.ssh_key_ids),
        "max_duration_s": request.max_duration_s,
        "inactive_timeout_s": request.inactive_timeout_s,
        "spend_cap_micros": request.spend_cap_micros,
        "price_version_id": quote.price_version_id,
        "currency": quote.currency,
        "price_micros_per_hour": quote.price_micros_per_hour,
        "units": quote.units,
    }


def _ordered(quote: Quote) -> Lease | None:
    return Lease.objects.select_related("tenant", "node").filter(quote_id=quote.id, tenant_id=quote.tenant_id).first()


def _renter(tenant: Tenant, actor: Actor) -> User:
    """The member who orders. Their role and the tenant's standing are read again, inside the order's transaction."""
    if actor.user is None:
        raise NotAllowed(_("A lease is ordered by a member of the tenant."))
    members: list[Membership] = _MEMBER.rows(user=actor.user.pk, tenant=tenant.pk)
    if not members or members[0].role not in ROLES_THAT_LEASE or not actor.user.is_active:
        raise NotAllowed(_("Your role in this tenant does not allow this."))
    _check_standing(members[0].tenant)
    return actor.user


def _member(user: str, tenant: str) -> QuerySet[Membership]:
    return Membership.objects.select_related("tenant").filter(user=user, tenant=tenant)


_MEMBER: Final = Ready(_member, user="?user", tenant="?tenant")


def _check_standing(tenant: Tenant) -> None:
    if tenant.suspended_at is not None:
        raise NotAllowed(_("This account is suspended; ask the operator."), code="tenant_suspended")


def _check_keys(tenant: Tenant, wanted: tuple[str, ...] | None) -> None:
    """Somebody must be able to log in: the tenant has a key, and those named are its members'."""
    known = {key.id for key in access.keys_of_tenants([tenant.pk]).get(tenant.pk, [])}
    if not known:
        raise InvalidInput.field("ssh_key_ids", _("add an SSH key first; nobody could log in."), code="no_ssh_key")
    unknown = sorted(set(wanted or ()) - known)
    if unknown:
        raise InvalidInput.field("ssh_key_ids", f"no keys of this tenant's members: {', '.join(unknown)[:200]}.")


def _name(text: str) -> str:
    name = text.strip()
    if len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput.field("name", _("at most 80 printable characters are accepted."))
    return name


def silence_limit(now: datetime) -> datetime:
    """Who was last heard before this moment is lost."""
    return now - timedelta(seconds=settings.SILENCE_S)

"""What happens to leases when a person's account is closed or deleted. Connected in rental/apps.py.

A lease whose tenant has no active member left is stopped: nobody could use it, look at it or end it. In a tenant with
others the leases go on, and only the person's keys stop opening them (rental/signals.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.dispatch import receiver

from portal.actor import Actor
from portal.models import Membership
from portal.signals import access_changed, account_closed, account_erased
from rental import lifecycle, live
from rental.models import Lease, LeaseEvent
from rental.services import stop_lease
from rental.states import BEFORE_READY, OPEN, EndReason, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.models import QuerySet

    from portal.models import User

STILL_GOING = [state for state in OPEN if state != State.STOPPING]


def abandoned() -> QuerySet[Lease]:
    """Leases that go on though their tenant has no active member."""
    members = Membership.objects.filter(tenant=OuterRef("tenant_id"), user__is_active=True)
    return Lease.objects.filter(~Exists(members), state__in=STILL_GOING)


@receiver(account_closed, dispatch_uid="rental.stop_of_closed_account")
def stop_of_closed_account(*, user: User, actor: Actor, deleted: bool, **_: Any) -> None:
    """Stop what runs for nobody any more, charged to this second; in the transaction that closes the account."""
    mine = Membership.objects.filter(user=user).values("tenant_id")
    # All locks before the first step: a step also locks the account of money, which comes last (docs/concurrency.md).
    locked = list(abandoned().filter(tenant_id__in=mine).select_for_update(of=("self",)).order_by("pk"))
    why = f"The account was closed by {'its owner' if deleted else 'an operator'}."
    for lease in locked:
        stop_lease(lease=lease, actor=actor, reason=_reason(lease, deleted=deleted), detail=why)


@transaction.atomic
def stop_abandoned(*, lease_id: str, actor: Actor) -> Lease:
    """Stop one that was ordered while the account was being closed; one that found a member again goes on."""
    lease = lifecycle.lock(lease_id=lease_id)
    if not abandoned().filter(pk=lease_id).exists():
        return lease
    return stop_lease(lease=lease, actor=actor, reason=EndReason.OPERATOR, detail="The account is closed.")


@receiver(access_changed, dispatch_uid="rental.judge_watchers_of_tenants")
def judge_watchers(*, tenant_ids: Sequence[str], **_: Any) -> None:
    """Streams of these tenants judge again who may look, now rather than within 15 s."""
    for tenant_id in tenant_ids:
        live.publish_tenant(tenant_id)


@receiver(account_erased, dispatch_uid="rental.forget_address")
def forget_address(*, addresses: Iterable[str], label: str, **_: Any) -> None:
    """Histories of leases say who did something by address: a deleted account's goes."""
    LeaseEvent.objects.filter(actor_label__in=list(addresses)).update(actor_label=label)


def _reason(lease: Lease, *, deleted: bool) -> EndReason:
    if not deleted:
        return EndReason.OPERATOR
    return EndReason.CANCELLED if lease.state in BEFORE_READY else EndReason.RELEASED

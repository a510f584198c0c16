"""Deleting an organisation for good, by one of its owners.

Nobody is left in it and nothing opens it; ledger, leases and audit stay under its name. Rental knows what speaks
against it (what still runs, a balance nobody has given up) and says so by the signal ``tenant_closing``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal import members, tenant_mails
from portal.errors import InvalidInput
from portal.models import ApiToken, Invitation, Tenant
from portal.owed_mails import owe_to
from portal.roles import Act
from portal.services import audit
from portal.signals import tenant_closing

if TYPE_CHECKING:
    from portal.actor import Actor


@transaction.atomic
def delete_organisation(*, tenant: Tenant, name: str, actor: Actor, give_up_balance: bool = False) -> None:
    """Delete it; ``name`` is its name, typed by the owner.

    NotAllowed for who is no owner, 409 ``personal_tenant``, ``leases_running``; InvalidInput names ``name`` or, while
    there is money and ``give_up_balance`` is not said, ``give_up_balance``.
    """
    row = Tenant.objects.select_for_update().get(pk=tenant.pk)  # nobody joins or leaves meanwhile
    members.require(actor=actor, tenant=row, act=Act.DELETE)
    members.must_be_organisation(row)
    if " ".join(name.split()) != row.name:
        raise InvalidInput.field("name", _("This is not the name of this organisation."))
    tenant_closing.send(sender=Tenant, tenant=row, give_up_balance=give_up_balance)
    _shut(row)
    _let_go(row, actor)


def _shut(tenant: Tenant) -> None:
    """Nothing opens it from now on, and nobody comes in."""
    now = timezone.now()
    tenant.deleted_at = now
    tenant.save(update_fields=["deleted_at"])
    ApiToken.objects.filter(tenant=tenant, revoked_at__isnull=True).update(revoked_at=now)
    offers = tenant.invitations.filter(state=Invitation.State.OPEN)
    offers.update(state=Invitation.State.WITHDRAWN, closed_at=now)


def _let_go(tenant: Tenant, actor: Actor) -> None:
    """Everybody leaves; the others are told."""
    people = [row.user for row in members.members_of(tenant)]
    data = {"name": tenant.name, "members": len(people)}
    audit(actor=actor, action="tenant.deleted", obj=tenant, tenant=tenant, data=data)
    tenant.memberships.all().delete()
    for user in people:
        members.tell_change(user=user, tenant_id=tenant.pk)
        if user.is_active and user != actor.user:
            owe_to(user, lambda: tenant_mails.deleted(tenant))

"""Suspending a tenant: an operator's act, with a reason its members read; and taking that back.

The signal lets rental end what runs. Orders are refused by rental for as long as ``suspended_at`` stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal import mail_tasks
from portal.errors import InvalidInput
from portal.models import Tenant
from portal.queue import enqueue
from portal.services import audit
from portal.signals import tenant_restored, tenant_suspended

if TYPE_CHECKING:
    from portal.actor import Actor

MAX_REASON: Final = 300


@transaction.atomic
def suspend(*, tenant: Tenant, reason: str, actor: Actor) -> Tenant:
    """From now on it orders nothing and its leases end. InvalidInput names ``reason``; twice changes nothing."""
    reason = " ".join(reason.split())
    if not reason or len(reason) > MAX_REASON:
        raise InvalidInput.field("reason", _("Give a reason of 1 to %d letters; the members read it.") % MAX_REASON)
    row = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if row.suspended_at is None:
        row.suspended_at, row.suspension_reason = timezone.now(), reason
        row.standing_mail_due_at = row.suspended_at
        row.save(update_fields=["suspended_at", "suspension_reason", "standing_mail_due_at"])
        audit(actor=actor, action="tenant.suspended", obj=row, tenant=row, data={"reason": reason})
        transaction.on_commit(lambda: tenant_suspended.send(sender=Tenant, tenant_id=row.pk))
        enqueue(mail_tasks.mail_standing, row.pk)
    return row


@transaction.atomic
def restore(*, tenant: Tenant, actor: Actor) -> Tenant:
    """The tenant may order again; what was ended stays ended. Twice changes nothing."""
    row = Tenant.objects.select_for_update().get(pk=tenant.pk)
    if row.suspended_at is not None:
        row.suspended_at, row.suspension_reason = None, ""
        row.standing_mail_due_at = timezone.now()
        row.save(update_fields=["suspended_at", "suspension_reason", "standing_mail_due_at"])
        audit(actor=actor, action="tenant.restored", obj=row, tenant=row)
        transaction.on_commit(lambda: tenant_restored.send(sender=Tenant, tenant_id=row.pk))
        enqueue(mail_tasks.mail_standing, row.pk)
    return row

"""Mails about tenants and tokens, sent by the worker. Arguments are ids; links are made here and appear in no message.

A mail is marked before it is sent, where a row can be marked: two workers with one message send one mail. A server that
refuses takes the mark back, and the sweep tries again.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from smtplib import SMTPException
from typing import Final

from celery import shared_task
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone, translation

from portal import invitation_links, mails, tenant_mails
from portal.models import ROLES_THAT_PAY, ApiToken, Invitation, Tenant, User
from portal.owed_mails import owe_to
from portal.queue import enqueue

logger = logging.getLogger(__name__)

MAIL_ERRORS: Final = (OSError, SMTPException)
MAIL_AGAIN_FOR: Final = timedelta(hours=6)
TELL_BEFORE: Final = timedelta(days=7)


@shared_task
def send_invitation(invitation_id: str) -> None:
    """Mail the link of an invitation. Before: open, its round not mailed. After: mailed once for that round."""
    row = Invitation.objects.waiting().select_related("tenant", "invited_by").filter(pk=invitation_id).first()
    if row is None:
        return
    before = row.mailed_round
    claim = Invitation.objects.filter(pk=row.pk, round=row.round, mailed_round__lt=row.round)
    if not claim.update(mailed_round=row.round):
        return
    reader = User.objects.filter(email__iexact=row.email, is_active=True).first()
    try:
        with translation.override((reader.language if reader else "") or row.language or settings.LANGUAGE_CODE):
            mails.send(row.email, tenant_mails.invitation(row, invitation_links.link(row)))
    except MAIL_ERRORS as error:
        Invitation.objects.filter(pk=row.pk, mailed_round=row.round).update(mailed_round=before)
        logger.warning("invitation %s not mailed (%s)", row.pk, type(error).__name__)


@shared_task
def sweep_invitations() -> None:
    """Open invitations whose mail is late (a lost message, a server that refused) are queued again."""
    young = Invitation.objects.waiting().filter(expires_at__gt=timezone.now() + timedelta(days=7) - MAIL_AGAIN_FOR)
    for pk in young.filter(mailed_round__lt=F("round")).order_by("pk").values_list("pk", flat=True):
        enqueue(send_invitation, pk)


@shared_task
@transaction.atomic
def mail_standing(tenant_id: str) -> None:
    """Tell owners, admins and billing that their tenant is suspended, or is not any more. Before: that is due.

    After: owed to each of them, once.
    """
    due = Tenant.objects.values_list("standing_mail_due_at", flat=True).get(pk=tenant_id)
    rows = Tenant.objects.filter(pk=tenant_id, standing_mail_due_at=due)
    if due is None or not rows.update(standing_mail_due_at=None):
        return
    tenant = Tenant.objects.get(pk=tenant_id)
    write = tenant_mails.suspended if tenant.suspended_at else tenant_mails.restored
    readers = User.objects.filter(
        is_active=True, memberships__tenant=tenant, memberships__role__in=ROLES_THAT_PAY
    ).order_by("pk")
    for reader in readers:
        owe_to(reader, lambda: write(tenant))


@shared_task
def sweep_standing() -> None:
    """Mails about a suspension whose message was lost are queued again."""
    late = Tenant.objects.filter(standing_mail_due_at__gt=timezone.now() - MAIL_AGAIN_FOR)
    for pk in late.order_by("pk").values_list("pk", flat=True):
        enqueue(mail_standing, pk)


@shared_task
def sweep_token_ends() -> None:
    """Tokens that end within a week and live longer than that are queued for their mail."""
    now = timezone.now()
    ending = ApiToken.objects.usable().filter(
        expires_at__lte=now + TELL_BEFORE, expires_at__gt=F("created_at") + TELL_BEFORE, expiry_told_at__isnull=True
    )
    for pk in ending.order_by("pk").values_list("pk", flat=True):
        enqueue(mail_token_end, pk)


@shared_task
def mail_token_end(token_id: str) -> None:
    """Tell a token's owner that it ends soon. Before: not told. After: told, once."""
    rows = ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True, expiry_told_at__isnull=True)
    if not rows.update(expiry_told_at=timezone.now()):
        return
    token = ApiToken.objects.select_related("user").get(pk=token_id)
    try:
        mails.send_to(token.user, lambda: tenant_mails.ends_soon(token))
    except MAIL_ERRORS as error:
        ApiToken.objects.filter(pk=token_id).update(expiry_told_at=None)
        logger.warning("end of token %s not mailed (%s)", token_id, type(error).__name__)

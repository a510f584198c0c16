"""Mails that must arrive although no other row remembers that they are due: kept as they will be read, until sent.

Whoever has something to tell calls owe() in the transaction of what happened. A mail whose link opens something is
never kept here: whoever waits for it asks for another.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from smtplib import SMTPException
from typing import TYPE_CHECKING, Final

from celery import shared_task
from django.core.mail import EmailMultiAlternatives
from django.db import transaction
from django.utils import timezone

from portal import mails
from portal.models import OwedMail
from portal.queue import enqueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.core.mail import EmailMessage

    from portal.mails import Mail
    from portal.models import User

logger = logging.getLogger(__name__)

AGAIN_AFTER: Final = timedelta(seconds=30)
AGAIN_FOR: Final = timedelta(hours=6)  # an older one would only confuse


def owe_to(user: User, write: Callable[[], Mail]) -> None:
    """Owe ``write()`` to a person, in their language."""
    owe(mails.written(user.email, mails.language_of(user), write))


@transaction.atomic
def owe(message: EmailMessage) -> None:
    """Keep a mail to one address; it is sent after commit, again and again for six hours while no server takes it."""
    html = next((str(part) for part, kind in getattr(message, "alternatives", []) if kind == "text/html"), "")
    row = OwedMail.objects.create(
        address=message.to[0], subject=str(message.subject), text=str(message.body), html=html
    )
    enqueue(send_owed, str(row.pk))


@shared_task
def send_owed(mail_id: str) -> None:
    """Send a mail that is owed. Before: nobody has it in hand. After: sent and forgotten, or owed as before.

    It is taken in hand before it is sent: one lost with its worker is better than one that comes twice.
    """
    if not OwedMail.objects.filter(pk=mail_id, in_hand_at__isnull=True).update(in_hand_at=timezone.now()):
        return
    row = OwedMail.objects.get(pk=mail_id)
    message = EmailMultiAlternatives(row.subject, row.text, to=[row.address])
    if row.html:
        message.attach_alternative(row.html, "text/html")
    try:
        message.send()
    except (OSError, SMTPException) as error:
        OwedMail.objects.filter(pk=mail_id).update(in_hand_at=None)
        logger.warning("mail %s not sent (%s)", mail_id, type(error).__name__)
        return
    row.delete()


@shared_task
def sweep_owed() -> None:
    """Mails that are late (a lost message, a server that refused) are queued again; those too old are given up."""
    now = timezone.now()
    given_up, _ = OwedMail.objects.filter(at__lte=now - AGAIN_FOR).delete()
    if given_up:
        logger.error("%d mails given up, %s after they were written", given_up, AGAIN_FOR)
    late = OwedMail.objects.filter(in_hand_at__isnull=True, at__lt=now - AGAIN_AFTER)
    for pk in late.order_by("pk").values_list("pk", flat=True):
        enqueue(send_owed, str(pk))

"""Warnings about a lease, each given once: by mail, on its open terminals, on its page.

Whoever has something to warn of calls tell() in its transaction; the words of each kind are in rental/notice_words.py.
Nothing here decides when to warn.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from smtplib import SMTPException
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone, translation

from nodes import broker
from portal import mails
from portal.models import ROLES_THAT_LEASE, Membership, User
from portal.queue import enqueue
from portal.ready import Ready
from rental import lifecycle, live
from rental.models import Lease, LeaseNotice
from rental.notice_words import WORDS
from rental.states import LIVE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from datetime import datetime

    from django.db.models import QuerySet

    from portal.actor import Actor

logger = logging.getLogger(__name__)

ON_TERMINALS: Final = 5  # the newest ones travel to the node
MAIL_AGAIN_AFTER: Final = timedelta(seconds=30)
MAIL_AT_MOST_AFTER: Final = timedelta(hours=1)  # an older warning would only confuse


@transaction.atomic
def tell(*, lease: Lease, kind: str, key: str, actor: Actor, data: dict[str, Any] | None = None) -> LeaseNotice | None:
    """Give a warning of ``kind`` (a key of WORDS), once per ``key`` and lease; None when it was given before.

    Its line of history has the kind as code. Mail, terminals and page follow after commit.
    """
    if kind not in WORDS:
        raise TypeError(f"no words for a notice of kind {kind}")
    notice, new = LeaseNotice.objects.get_or_create(lease=lease, key=key, defaults={"kind": kind, "data": data or {}})
    if not new:
        return None
    lifecycle.note(lease_id=lease.pk, code=kind, actor=actor, data=data or {})
    from rental.tasks import mail_notice  # here, since tasks call the services that give notices

    enqueue(mail_notice, str(notice.pk))
    _wake(lease)
    return notice


@transaction.atomic
def take_back(*, lease: Lease, prefix: str) -> int:
    """Warnings whose key begins with ``prefix`` are no longer true: page and terminals forget them. How many."""
    gone = LeaseNotice.objects.filter(lease=lease, key__startswith=prefix, void_at__isnull=True)
    number = gone.update(void_at=timezone.now())
    if number:
        live.publish(lease)  # no line of history here, which would tell open pages
        _wake(lease)
    return number


def standing(leases: Iterable[Lease]) -> dict[str, list[LeaseNotice]]:
    """``{lease id: warnings that hold, oldest first}``; one query for any number of leases."""
    ids = [lease.pk for lease in leases]
    found: dict[str, list[LeaseNotice]] = {}
    for notice in _OF_ONE.rows(lease=ids[0]) if len(ids) == 1 else _valid(ids):
        found.setdefault(notice.lease_id, []).append(notice)
    return found


def _valid(leases: Collection[str]) -> QuerySet[LeaseNotice]:
    return LeaseNotice.objects.filter(lease__in=leases, void_at__isnull=True)


_OF_ONE: Final = Ready(lambda lease: _valid([lease]), lease="?lease")


def lines(lease: Lease, notices: Iterable[LeaseNotice]) -> list[dict[str, str]]:
    """What terminals show: ``[{"id", "text"}]``, the newest few, in the language of who ordered the lease."""
    newest = list(notices)[-ON_TERMINALS:]
    with translation.override(mails.language_of(lease.created_by)):
        return [{"id": str(notice.pk), "text": WORDS[notice.kind].line(lease, notice.data)} for notice in newest]


def readers(lease: Lease) -> list[User]:
    """Who is warned by mail: who ordered it while they may lease there, else the tenant's owners."""
    members = Membership.objects.filter(tenant_id=lease.tenant_id, user__is_active=True).select_related("user")
    ordered_by = members.filter(user=lease.created_by_id, role__in=ROLES_THAT_LEASE).first()
    if ordered_by is not None:
        return [ordered_by.user]
    return [member.user for member in members.filter(role=Membership.Role.OWNER).order_by("pk")]


def mail(*, notice_id: str) -> bool:
    """Mail a warning that was not mailed yet; True when it was. Two workers with one message send one mail.

    It is marked before it is sent: a warning lost with its worker is better than one that comes twice. A server that
    refuses takes the mark back, and the sweep tries again.
    """
    now = timezone.now()
    if not LeaseNotice.objects.filter(pk=notice_id, mailed_at__isnull=True, void_at__isnull=True).update(mailed_at=now):
        return False
    notice = LeaseNotice.objects.select_related("lease__tenant", "lease__node").get(pk=notice_id)
    try:
        for reader in readers(notice.lease):
            mails.send_to(reader, lambda: WORDS[notice.kind].mail(notice.lease, notice.data))
    except (OSError, SMTPException) as error:
        LeaseNotice.objects.filter(pk=notice_id).update(mailed_at=None)
        logger.warning("notice %s not mailed (%s)", notice_id, type(error).__name__)
        return False
    return True


def unmailed(now: datetime) -> list[str]:
    """Ids of warnings whose mail is late."""
    late = LeaseNotice.objects.filter(
        mailed_at__isnull=True, void_at__isnull=True, at__lt=now - MAIL_AGAIN_AFTER, at__gt=now - MAIL_AT_MOST_AFTER
    )
    return [str(pk) for pk in late.order_by("pk").values_list("pk", flat=True)]


def page_url(name: str, lease: Lease) -> str:
    """The absolute address of a page of this lease, for mails."""
    return f"{settings.PORTAL_URL}{reverse(name, args=[lease.pk])}"


def _wake(lease: Lease) -> None:
    if lease.state in LIVE and lease.node_id:
        broker.wake(node_id=lease.node_id, lease_id=lease.pk)

"""When and where a token is used: the last use, at most once a minute, and the networks it was used from.

A place is the /24 (IPv4) or /48 (IPv6) of the client. Only keyed digests of places are kept; the first use from a new
one is told to the owner by mail, at most five times a day.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.crypto import salted_hmac

from portal import rate_limits, tenant_mails
from portal.errors import TooManyRequests
from portal.models import ApiToken, TokenPlace
from portal.owed_mails import owe_to

PLACE_V4: Final = 24  # leading bits that make a place of an address
PLACE_V6: Final = 48
NOTE_EVERY: Final = timedelta(minutes=1)
MOST_PLACES: Final = 500  # of one token; a program on ever new networks is not told of each


def note(token: ApiToken, ip: str | None) -> None:
    """Remember this use: time and address at most once a minute; a place that is new at once."""
    if place(ip) != place(token.last_used_ip) and know(token, ip):
        _write(token, ip, Q())
        _tell(token, place(ip))
        return
    due = timezone.now() - NOTE_EVERY
    if token.last_used_at is None or token.last_used_at < due:
        _write(token, ip, Q(last_used_at__isnull=True) | Q(last_used_at__lt=due))


def know(token: ApiToken, ip: str | None) -> bool:
    """Note the place of this address for the token; True when it was not known before."""
    where = place(ip)
    if not where:
        return False
    digest = salted_hmac("portal.token-place", f"{token.pk} {where}").hexdigest()
    if TokenPlace.objects.filter(token=token, digest=digest).exists():
        return False
    if TokenPlace.objects.filter(token=token).count() >= MOST_PLACES:
        return False
    try:
        with transaction.atomic():
            TokenPlace.objects.create(token=token, digest=digest)
    except IntegrityError:  # another request of this moment was first
        return False
    return True


def place(ip: str | None) -> str:
    """The network that counts as one place, for example ``203.0.113.0/24``; empty for no address."""
    return rate_limits.network(ip, ipv4=PLACE_V4, ipv6=PLACE_V6)


def _write(token: ApiToken, ip: str | None, stale: Q) -> None:
    now = timezone.now()
    ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now, last_used_ip=ip)
    token.last_used_at, token.last_used_ip = now, ip


def _tell(token: ApiToken, where: str) -> None:
    try:
        rate_limits.take(rate_limits.NEW_PLACE_MAILS, token.pk)
    except TooManyRequests:
        return
    at = token.last_used_at or timezone.now()
    owe_to(token.user, lambda: tenant_mails.new_place(token, where, at))

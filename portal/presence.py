"""Since when this portal has been receiving. Silence of a node counts only while the portal could have heard it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import requests
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from portal.models import PortalPresence

if TYPE_CHECKING:
    from datetime import datetime

BREAK_AFTER: Final = timedelta(seconds=30)  # three missed looks of ten seconds: the portal was away
TIMEOUT_S: Final = 3


def receiving_since() -> datetime | None:
    """Start of the present unbroken stretch, or None while the portal is (as far as it knows) not receiving."""
    row = PortalPresence.objects.filter(pk=1, seen_at__gte=timezone.now() - BREAK_AFTER).first()
    return row.receiving_since if row else None


def look() -> bool:
    """Ask the web entry point over its real address, and note the answer. True when it received."""
    if not _answers():
        return False
    note(timezone.now())
    return True


@transaction.atomic
def note(now: datetime) -> None:
    """The portal received at ``now``; after a break of more than 30 s a new stretch begins."""
    row, made = PortalPresence.objects.select_for_update().get_or_create(
        pk=1, defaults={"receiving_since": now, "seen_at": now}
    )
    if made:
        return
    if now - row.seen_at > BREAK_AFTER:
        row.receiving_since = now
    row.seen_at = max(now, row.seen_at)
    row.save(update_fields=["receiving_since", "seen_at"])


def _answers() -> bool:
    try:
        # The environment's proxies are for the way out; this address is ours.
        with requests.Session() as session:
            session.trust_env = False
            return session.get(settings.PRESENCE_URL, timeout=TIMEOUT_S, allow_redirects=False).ok
    except requests.RequestException:
        return False

"""Links in mails that keep one idle lease, once: signed, for one lease and one idle stretch, useless when that is over.

Whoever has the link may press its button without signing in: all it can do is to let a lease run for one more idle
window, which its members see in the history. The link alone changes nothing; the page behind it asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.core import signing
from django.urls import reverse

if TYPE_CHECKING:
    from rental.models import Lease, LeaseActivity

SALT: Final = "rental.keep"
MAX_TOKEN: Final = 500
LATE: Final = timedelta(seconds=60)  # the sweep that releases may be this late; the link works until it came


@dataclass(frozen=True)
class KeepLink:
    """Which idle stretch of which lease a link is about, and when it was to be released."""

    lease_id: str
    idle_since: datetime
    release_at: datetime

    @property
    def token(self) -> str:
        """What stands in the address."""
        data = [self.lease_id, self.idle_since.isoformat(), int(self.release_at.timestamp())]
        return signing.dumps(data, salt=SALT)

    @property
    def url(self) -> str:
        """The absolute address, for a mail."""
        return f"{settings.PORTAL_URL}{reverse('keep-link', args=[self.token])}"

    def stands(self, lease: Lease, row: LeaseActivity | None, now: datetime) -> bool:
        """Whether the lease still has the warning that this link came with."""
        if row is None or row.warned_for != self.idle_since or now > self.release_at + LATE:
            return False
        used = max(moment for moment in (row.active_at, lease.kept_at, self.idle_since) if moment is not None)
        return used <= self.idle_since


def read(token: str) -> KeepLink | None:
    """The link we made; None for anything else."""
    try:
        lease_id, idle_since, release_at = signing.loads(token[: MAX_TOKEN + 1], salt=SALT)
    except (signing.BadSignature, ValueError):
        return None
    return KeepLink(lease_id, datetime.fromisoformat(idle_since), datetime.fromtimestamp(release_at, tz=UTC))

"""What is said before a lease runs out. ``data``: ``minutes`` (the threshold), ``ends_at`` (RFC 3339).

A warning may be read later than it was given, so the minutes are counted when it is written out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.mails import Mail

if TYPE_CHECKING:
    from rental.models import Lease

MONEY: Final = ("run_out_balance", "run_out_month")


def line(kind: str, lease: Lease, data: dict[str, Any]) -> str:
    """One line for terminals and the page."""
    return f"{_ends(data)} {_why(kind)}"


def mail(kind: str, lease: Lease, data: dict[str, Any]) -> Mail:
    """The mail, with one thing to do."""
    name = lease.name or lease.pk
    minutes = _minutes(data)
    subject = ngettext("%(name)s ends in %(minutes)d minute", "%(name)s ends in %(minutes)d minutes", minutes) % {
        "name": name,
        "minutes": minutes,
    }
    route = reverse("balance") if kind in MONEY else reverse("lease-extend", args=[lease.pk])
    return Mail(
        subject=subject,
        text=f"{name}: {line(kind, lease, data)}",
        url=f"{settings.PORTAL_URL}{route}",
        label=_do(kind),
        after=_(
            "At the end running programs get 30 seconds, then everything in the container is deleted. Copy what you"
            " need before."
        ),
    )


def _ends(data: dict[str, Any]) -> str:
    at = datetime.fromisoformat(data["ends_at"]).astimezone(UTC)
    minutes = _minutes(data)
    return ngettext(
        "This lease ends in %(minutes)d minute, at %(time)s UTC.",
        "This lease ends in %(minutes)d minutes, at %(time)s UTC.",
        minutes,
    ) % {"minutes": minutes, "time": f"{at:%H:%M}"}


def _minutes(data: dict[str, Any]) -> int:
    left = datetime.fromisoformat(data["ends_at"]) - timezone.now()
    return max(1, -(-left // timedelta(minutes=1)))


def _why(kind: str) -> str:
    if kind == "run_out_balance":
        return _("The balance does not pay for more: top it up to go on.")
    if kind == "run_out_month":
        return _("The spend cap of the month is reached then: raise it to go on.")
    if kind == "run_out_cap":
        return _("Its spend cap is used up then: raise it to go on.")
    return _("Its time is over then: extend it to go on.")


def _do(kind: str) -> str:
    if kind == "run_out_balance":
        return _("Top up")
    if kind == "run_out_month":
        return _("Change the spend cap")
    return _("Extend the lease")

"""The words of mails about tenants and tokens, in the active language; portal/mail_tasks.py sends them."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

from django.conf import settings
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.mails import Mail

if TYPE_CHECKING:
    from datetime import datetime

    from portal.models import ApiToken, Invitation, Tenant


def invitation(row: Invitation, url: str) -> Mail:
    """To whoever is invited, with the link."""
    facts = {"tenant": row.tenant.name, "role": row.get_role_display(), "site": settings.SITE_NAME}
    who = row.invited_by.email if row.invited_by else settings.SITE_NAME
    return Mail(
        subject=_("You are invited to %(tenant)s on %(site)s") % facts,
        text=_("%(who)s invites you to work in %(tenant)s. Your role there: %(role)s.") % {**facts, "who": who},
        url=url,
        label=_("See the invitation"),
        after=_("It is for %(email)s and holds until %(until)s. If you do not know them, do nothing.")
        % {"email": row.email, "until": _moment(row.expires_at)},
    )


def suspended(tenant: Tenant) -> Mail:
    """To those who lead or pay for a tenant that an operator has suspended."""
    return Mail(
        subject=_("%(tenant)s is suspended") % {"tenant": tenant.name},
        text=_(
            "An operator has suspended %(tenant)s. Its leases end and nothing new can be ordered.\nReason: %(reason)s"
        )
        % {"tenant": tenant.name, "reason": tenant.suspension_reason},
        after=_("Balance and receipts stay. Answer this mail, or write to whoever runs the portal, to clear it up."),
    )


def restored(tenant: Tenant) -> Mail:
    """To the same people, when that was taken back."""
    return Mail(
        subject=_("%(tenant)s may order again") % {"tenant": tenant.name},
        text=_("The suspension of %(tenant)s is over. Leases that were ended stay ended.") % {"tenant": tenant.name},
        url=settings.PORTAL_URL + reverse("catalog"),
        label=_("See GPUs"),
    )


def deleted(tenant: Tenant) -> Mail:
    """To those who were in an organisation that an owner has deleted."""
    return Mail(
        subject=_("%(tenant)s was deleted") % {"tenant": tenant.name},
        text=_("An owner has deleted %(tenant)s. Your keys and tokens open nothing of it any more.")
        % {"tenant": tenant.name},
        after=_("Your account and your other tenants stay as they are."),
    )


def new_place(token: ApiToken, network: str, at: datetime) -> Mail:
    """To a token's owner: it was used from a network it had not been used from."""
    facts = {"name": token.name, "prefix": token.prefix, "network": network, "at": _moment(at)}
    return Mail(
        subject=_("Your API token “%(name)s” was used from a new place") % facts,
        text=_("The token “%(name)s” (%(prefix)s…) was used from the network %(network)s for the first time: %(at)s.")
        % facts,
        url=settings.PORTAL_URL + reverse("api-tokens"),
        label=_("See your tokens"),
        after=_("If that was not you, revoke it at once; programs that use it are refused from then on."),
    )


def ends_soon(token: ApiToken) -> Mail:
    """To a token's owner, a week before it ends."""
    facts = {"name": token.name, "prefix": token.prefix, "at": _moment(token.expires_at or timezone.now())}
    return Mail(
        subject=_("Your API token “%(name)s” ends soon") % facts,
        text=_("The token “%(name)s” (%(prefix)s…) ends at %(at)s. Programs that use it are refused from then on.")
        % facts,
        url=settings.PORTAL_URL + reverse("api-tokens"),
        label=_("Create another token"),
    )


def _moment(at: datetime) -> str:
    """A time in a mail: the reader's zone is not known there, so UTC, named."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")

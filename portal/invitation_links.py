"""The links in invitation mails: made when they are needed, signed, stored nowhere."""

from __future__ import annotations

from typing import Final

from django.conf import settings
from django.core import signing
from django.urls import reverse

from portal.models import Invitation

SALT: Final = "portal.invitation"


def link(invitation: Invitation) -> str:
    """The address in the mail, absolute."""
    return settings.PORTAL_URL + reverse("invitation-link", args=[token_of(invitation)])


def token_of(invitation: Invitation) -> str:
    """The signed part of the link; it is made when it is needed and stored nowhere."""
    return signing.Signer(salt=SALT, sep=".").sign(f"{invitation.pk}.{invitation.round}")


def read(token: str) -> Invitation | None:
    """The invitation that a link's token opens now; None for any other text."""
    try:
        pk, _dot, number = signing.Signer(salt=SALT, sep=".").unsign(token).partition(".")
    except signing.BadSignature:
        return None
    return opened(pk, int(number))


def opened(pk: str, number: int) -> Invitation | None:
    """The invitation of this id while this round of it is open; its tenant and who invited are loaded."""
    rows = Invitation.objects.waiting().select_related("tenant", "invited_by")
    return rows.filter(pk=pk, round=number).first()

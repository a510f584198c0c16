"""Where a sign-in leads when nobody asked for a page: to an invitation that waits, else to the leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allauth.account.adapter import DefaultAccountAdapter
from django.urls import reverse

from portal import invitations
from portal.invitation_views import HELD
from portal.models import User

if TYPE_CHECKING:
    from django.http import HttpRequest


class Landing(DefaultAccountAdapter):
    """The part of our allauth adapter that knows of invitations: who signed up for one lands back at it."""

    def get_login_redirect_url(self, request: HttpRequest) -> str:
        """An address of ours."""
        if HELD in request.session:
            return reverse("invitation")
        if isinstance(request.user, User) and invitations.waiting_for(request.user).exists():
            return reverse("tenants")
        return str(super().get_login_redirect_url(request))

"""Pages of whoever is invited: the link of the mail, what it offers, yes and no."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views import View
from django.views.decorators.cache import never_cache

from portal import invitation_links, invitations
from portal.access_views import person
from portal.actor import Actor
from portal.models import Invitation, User

HELD: Final = "invitation"  # the session's key for the id and round of a link that was opened; empty for a void one


@method_decorator(never_cache, name="dispatch")
class Link(View):
    """The link of the mail. What it opens moves into the session; the token stays in no address and in no row."""

    def get(self, request: HttpRequest, token: str) -> HttpResponse:
        """Keep it and show what it opens; a link that opens nothing says so there."""
        row = invitation_links.read(token)
        request.session[HELD] = [row.pk, row.round] if row else []
        return redirect("invitation")


@method_decorator(never_cache, name="dispatch")
class Opened(View):
    """What an opened link offers; to sign up or in comes first for who is nobody yet, and leads back here."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The offer, or that there is none any more."""
        followed, row = HELD in request.session, held_by(request)
        if row is None:
            request.session.pop(HELD, None)  # said once
        mine = row is not None and isinstance(request.user, User) and invitations.is_for(row, request.user)
        return render(request, "tenant/invitation.html", {"invitation": row, "is_mine": mine, "followed": followed})


@method_decorator(login_required, name="dispatch")
class _Answer(View):
    """Base of yes and no: an invitation to the person's address, or one whose link this session has opened."""

    def found(self, request: HttpRequest, invitation_id: str) -> tuple[Invitation, bool]:
        """The invitation, and whether the link stands for it; 404 for any other."""
        by_link = held_by(request)
        if by_link is not None and by_link.pk == invitation_id:
            return by_link, True
        row = invitations.waiting_for(person(request)).filter(pk=invitation_id).first()
        if row is None:
            raise Http404
        return row, False


class Accept(_Answer):
    """``POST``: join."""

    def post(self, request: HttpRequest, invitation_id: str) -> HttpResponse:
        """Yes. An account whose addresses are not the invited one has to say so by ``as_this_account``."""
        row, by_link = self.found(request, invitation_id)
        if not invitations.is_for(row, person(request)) and request.POST.get("as_this_account") != "yes":
            facts: dict[str, Any] = {"invitation": row, "is_mine": False, "followed": True, "unconfirmed": True}
            return render(request, "tenant/invitation.html", facts, status=400)
        invitations.accept(invitation=row, actor=Actor.of(request), by_link=by_link)
        request.session.pop(HELD, None)
        request.session["tenant"] = row.tenant_id
        messages.success(request, _("Welcome to %(name)s. You work for it now.") % {"name": row.tenant.name})
        return redirect("leases")


class Decline(_Answer):
    """``POST``: no."""

    def post(self, request: HttpRequest, invitation_id: str) -> HttpResponse:
        """No, thank you."""
        row, by_link = self.found(request, invitation_id)
        invitations.decline(invitation=row, actor=Actor.of(request), by_link=by_link)
        request.session.pop(HELD, None)
        messages.info(request, _("You declined the invitation of %(name)s.") % {"name": row.tenant.name})
        return redirect("tenants")


def held_by(request: HttpRequest) -> Invitation | None:
    """The invitation whose link this session has opened, while it holds."""
    held = request.session.get(HELD)
    return invitation_links.opened(*held) if held else None

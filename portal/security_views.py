"""The security pages of our own: sessions. Second factors and the address are allauth's views with our templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allauth.usersessions.models import UserSession
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views import View

from portal.actor import Actor
from portal.models import User
from portal.sessions import HAND_HELD, browser_of, end_sessions, live_sessions

if TYPE_CHECKING:
    from typing import Any


def _person(request: HttpRequest) -> User:
    if not isinstance(request.user, User):
        raise Http404
    return request.user


@method_decorator(login_required, name="dispatch")
class Sessions(View):
    """Where the person is signed in; POST signs all other browsers out."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """The list, this browser first."""
        here = request.session.session_key
        rows = [_row(session, here) for session in live_sessions(_person(request))]
        rows.sort(key=lambda row: not row["current"])
        return render(
            request, "account/sessions.html", {"sessions": rows, "others": any(not r["current"] for r in rows)}
        )

    def post(self, request: HttpRequest) -> HttpResponse:
        """End the others."""
        user = _person(request)
        others = UserSession.objects.filter(user=user).exclude(session_key=request.session.session_key)
        count = end_sessions(user=user, sessions=others, actor=Actor.of(request))
        said = ngettext("%(count)s other session is ended.", "%(count)s other sessions are ended.", count)
        messages.success(request, said % {"count": count})
        return redirect("sessions")


@method_decorator(login_required, name="dispatch")
class EndSession(View):
    """Ask, then end one session of the person."""

    def get(self, request: HttpRequest, session_id: int) -> HttpResponse:
        """The question."""
        row = _row(self._session(request, session_id), request.session.session_key)
        return render(request, "account/session_end.html", {"session": row})

    def post(self, request: HttpRequest, session_id: int) -> HttpResponse:
        """End it; one's own is a sign-out."""
        session = self._session(request, session_id)
        end_sessions(user=_person(request), sessions=[session], actor=Actor.of(request))
        if session.session_key == request.session.session_key:
            request.session.flush()
            return redirect("catalog")
        messages.success(request, _("The session is ended."))
        return redirect("sessions")

    def _session(self, request: HttpRequest, session_id: int) -> UserSession:
        session: UserSession | None = UserSession.objects.filter(user=_person(request), pk=session_id).first()
        if session is None:
            raise Http404
        return session


def _row(session: UserSession, here: str | None) -> dict[str, Any]:
    browser, system = browser_of(session.user_agent)
    return {
        "id": session.pk,
        "browser": browser,
        "system": system,
        "hand_held": system in HAND_HELD,
        "user_agent": session.user_agent,
        "ip": session.ip,
        "since": session.created_at,
        "seen": session.last_seen_at,
        "current": session.session_key == here,
    }

"""A person's browser sessions: which there are, from where, when last used, and their end."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from allauth.account.internal.flows.login import AUTHENTICATION_METHODS_SESSION_KEY
from allauth.usersessions.models import UserSession
from django.contrib.auth import HASH_SESSION_KEY
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.db import transaction
from django.utils import timezone

from portal.actor import Actor, client_ip
from portal.models import Membership, User
from portal.services import audit
from portal.signals import access_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.http import HttpRequest, HttpResponse

NOTE_EVERY_S: Final = 60
AGENT_LETTERS: Final = 200  # as wide as allauth's column
# The first that is found names it: Edge and Opera also call themselves Chrome, Chrome also Safari.
BROWSERS: Final = (
    ("Edg", "Edge"), ("OPR/", "Opera"), ("SamsungBrowser", "Samsung Internet"), ("Firefox/", "Firefox"),
    ("FxiOS", "Firefox"), ("CriOS", "Chrome"), ("Chrome/", "Chrome"), ("Safari/", "Safari"), ("curl/", "curl"),
    ("python-requests", "python-requests"),
)  # fmt: skip
SYSTEMS: Final = (
    ("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"), ("CrOS", "ChromeOS"),
    ("Macintosh", "macOS"), ("Linux", "Linux"),
)  # fmt: skip
HAND_HELD: Final = frozenset({"iPhone", "iPad", "Android"})


class NoteUse:
    """Remembers when and from where a session was last used, writing at most once a minute.

    Only for sessions that began at our login page. Without a cache nothing is noted: it would cost a write per request.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """After the answer, so that a session which has just ended is not noted."""
        response = self.get_response(request)
        session = request.session
        if session.accessed and session.session_key and AUTHENTICATION_METHODS_SESSION_KEY in session:
            user = request.user
            if isinstance(user, User) and cache.add(_noted(session.session_key), 1, timeout=NOTE_EVERY_S):
                _note(request, user, session.session_key)
        return response


def _noted(session_key: str) -> str:
    # The cache may be a shared Redis: it learns no session key.
    return f"session-used:{hashlib.sha256(session_key.encode()).hexdigest()}"


def _note(request: HttpRequest, user: User, session_key: str) -> None:
    ip = client_ip(request)
    facts: dict[str, Any] = {"user_agent": request.META.get("HTTP_USER_AGENT", "")[:AGENT_LETTERS]}
    if ip:
        facts["ip"] = ip
    facts["last_seen_at"] = timezone.now()
    noted = UserSession.objects.filter(session_key=session_key, user=user).update(**facts)
    if not noted and ip:  # a new key after a change of password
        UserSession.objects.get_or_create(session_key=session_key, defaults={**facts, "user": user})


def browser_of(user_agent: str) -> tuple[str, str]:
    """``("Firefox", "Linux")`` of a User-Agent line, empty where nothing is recognised. It is the client's claim."""
    browser = next((name for mark, name in BROWSERS if mark in user_agent), "")
    system = next((name for mark, name in SYSTEMS if mark in user_agent), "")
    return browser, system


def live_sessions(user: User) -> list[UserSession]:
    """Sessions that still open something, the one used last first. Two queries."""
    rows = {row.session_key: row for row in UserSession.objects.filter(user=user)}
    right = {user.get_session_auth_hash(), *user.get_session_auth_fallback_hash()}
    stored = Session.objects.filter(session_key__in=rows, expire_date__gt=timezone.now())
    found = [rows[row.session_key] for row in stored if row.get_decoded().get(HASH_SESSION_KEY) in right]
    return sorted(found, key=lambda row: row.last_seen_at, reverse=True)


@transaction.atomic
def end_sessions(*, user: User, sessions: Iterable[UserSession], actor: Actor) -> int:
    """End these sessions of the user, open streams within a moment; how many."""
    rows = list(sessions)
    for row in rows:
        row.end()
    if rows:
        audit(actor=actor, action="user.sessions_ended", obj=user, data={"count": len(rows)})
        tenant_ids = list(Membership.objects.filter(user=user).values_list("tenant_id", flat=True))
        transaction.on_commit(lambda: access_changed.send(sender=User, tenant_ids=tenant_ids))
    return len(rows)

"""What wraps every request: the content security policy, the viewer's time zone, pages for domain errors."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, available_timezones

from django.contrib import messages
from django.http import Http404, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from portal import problems
from portal.errors import DomainError, TooManyRequests
from portal.tokens import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class ContentSecurityPolicy:
    """The same strict policy on every answer, the admin's too. A view that needs another sets the header itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Add the header."""
        response = self.get_response(request)
        response.headers.setdefault("Content-Security-Policy", POLICY)
        return response


class ViewerTimeZone:
    """Pages show times in the zone that app.js found and keeps in the cookie ``tz``; without it, UTC."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Activate the zone for the time of this request."""
        zone = known_zone(request.COOKIES.get("tz", ""))
        if zone is None:
            return self.get_response(request)
        with timezone.override(zone):
            return self.get_response(request)


class DomainErrors:
    """A refusal of a service that a page did not handle becomes a page with its status and its sentence."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """An address with a NUL in it is nobody's: PostgreSQL would refuse the id instead of not finding it.

        An API token in the address of a page is not used and does not stay there; the API itself answers 400.
        """
        if "\x00" in request.path_info:
            raise Http404
        if not problems.wanted_by(request) and any(MARK in value for value in request.GET.values()):
            return _without_token(request)
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer a DomainError; anything else is not ours."""
        if not isinstance(error, DomainError):
            return None
        answer: HttpResponse
        if problems.wanted_by(request):
            answer = JsonResponse(problems.of(error), status=error.status, content_type=problems.CONTENT_TYPE)
        elif isinstance(error, TooManyRequests):
            answer = render(request, "429.html", {"error": error}, status=error.status)
        else:
            answer = render(request, "access/refused.html", {"error": error}, status=error.status)
        for name, value in problems.headers_of(error).items():
            answer[name] = value
        return answer


def _without_token(request: HttpRequest) -> HttpResponse:
    """Back to the same page by a clean address: what stands there ends up in histories, logs and links."""
    messages.error(
        request, _("An API token stood in the address. It was not used. Revoke it: others may have seen it.")
    )
    # A path may begin with two slashes, which would name another host.
    here = request.path if url_has_allowed_host_and_scheme(request.path, allowed_hosts=None) else "/"
    return HttpResponseRedirect(here)


def known_zone(name: str) -> ZoneInfo | None:
    """The zone of this name, or None: the cookie is the client's own claim and ZoneInfo opens files by name."""
    return ZoneInfo(name) if name in _zone_names() else None


@lru_cache(maxsize=1)
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones())

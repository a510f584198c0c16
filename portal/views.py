"""Pages of the project itself: theme, health, error pages. The access pages are in access_views.py."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from portal import problems
from portal.context import THEMES

if TYPE_CHECKING:
    from django.http import HttpRequest

logger = logging.getLogger(__name__)
YEAR_S: Final = 31_536_000
RETRY_AFTER_S: Final = "5"
PLAIN: Final = "text/plain; charset=utf-8"


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Keep the theme in a cookie and go back; app.js does the same without leaving the page."""
    theme = request.POST.get("theme", "")
    response = HttpResponseRedirect(_way_back(request))
    if theme in THEMES:
        response.set_cookie("theme", theme, max_age=YEAR_S, samesite="Lax", secure=request.is_secure())
    return response


@never_cache
@require_GET
def healthz(request: HttpRequest) -> HttpResponse:
    """200 ``ok`` when this process reaches the database, else 503. The presence task asks every 10 s."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        logger.error("healthz: the database does not answer (%s)", type(error).__name__)  # noqa: TRY400  # no stack every 10 s
        return HttpResponse("no database", status=503, content_type=PLAIN)
    return HttpResponse("ok", content_type=PLAIN)


@never_cache
@require_GET
def readyz(request: HttpRequest) -> HttpResponse:
    """200 ``ready`` when requests may be sent here: the database answers and has this version's tables."""
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    except DatabaseError:
        return HttpResponse("no database", status=503, content_type=PLAIN)
    if missing:
        return HttpResponse("migrations are missing", status=503, content_type=PLAIN)
    return HttpResponse("ready", content_type=PLAIN)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler400."""
    return _refusal(request, 400, "invalid", "The request is not valid.")


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler403."""
    return _refusal(request, 403, "not_allowed", "You may not do this.")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form without its CSRF token: sent from elsewhere, or opened before a login."""
    return _refusal(request, 403, "csrf_failed", "The CSRF token is missing or wrong.", template="403_csrf.html")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """handler404."""
    return _refusal(request, 404, "not_found", "There is nothing at this address.")


def server_error(request: HttpRequest) -> HttpResponse:
    """handler500: no context processor, no database; whatever broke may be broken still.

    A database that is away is no bug of ours, and over soon: 503 with a time to try again.
    """
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    status, code, detail = (
        (503, "unavailable", "The database does not answer at the moment; nothing was changed. Try again shortly.")
        if away
        else (500, "server_error", "Something broke on our side; it has been recorded.")
    )
    if problems.wanted_by(request):
        response: HttpResponse = problems.response(status, code, detail)
    else:
        response = render(None, f"{status}.html", status=status)  # no request: no context processor runs
    if away:
        response.headers["Retry-After"] = RETRY_AFTER_S
    return response


def _refusal(request: HttpRequest, status: int, code: str, detail: str, *, template: str = "") -> HttpResponse:
    if problems.wanted_by(request):
        return problems.response(status, code, detail)
    return render(request, template or f"{status}.html", status=status)


def _way_back(request: HttpRequest) -> str:
    target = request.POST.get("next", "")
    if url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        return target
    return reverse("catalog")

"""Refusals as problem documents (RFC 9457): ``{"type", "title", "status", "code", "detail", "errors"?, …}``.

``code`` is stable and meant for programs, ``detail`` for people; ``errors`` maps a field (``env.NAME`` where nested) to
sentences. Used by the API, the node API, and the error handlers for paths under /api/.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, JsonResponse
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from portal.errors import DomainError, InvalidInput, NotAllowed, NotFound, TooLarge, TooManyRequests

if TYPE_CHECKING:
    from django.http import HttpRequest

CONTENT_TYPE: Final = "application/problem+json"
WHOLE: Final = "non_field_errors"  # DRF's name for an error of the body as a whole
CODES: Final[dict[type[exceptions.APIException], str]] = {
    exceptions.ParseError: "malformed",
    exceptions.UnsupportedMediaType: "unsupported_media_type",
    exceptions.NotAcceptable: "not_acceptable",
    exceptions.MethodNotAllowed: "method_not_allowed",
    exceptions.Throttled: "too_many_requests",
    exceptions.NotFound: "not_found",
}


def document(
    status: int,
    code: str,
    detail: str,
    *,
    errors: dict[str, list[str]] | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The members of a problem document."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Error"
    problem: dict[str, Any] = {"type": f"urn:lessor:problem:{code}", "title": title, "status": status, "code": code}
    problem["detail"] = detail
    if errors:
        problem["errors"] = errors
    return {**(extra or {}), **problem}


def of(error: DomainError) -> dict[str, Any]:
    """The problem document of a domain error."""
    return document(error.status, error.code, error.detail, errors=error.errors, extra=error.extra)


def headers_of(error: DomainError) -> dict[str, str]:
    """What an answer with this error says besides: when to come back."""
    return {"Retry-After": str(error.retry_after)} if isinstance(error, TooManyRequests) else {}


def response(status: int, code: str, detail: str) -> JsonResponse:
    """A problem as a plain Django response, for middleware and error handlers."""
    return JsonResponse(document(status, code, detail), status=status, content_type=CONTENT_TYPE)


def wanted_by(request: HttpRequest) -> bool:
    """Does this path speak JSON? Pages get pages."""
    return request.path.startswith("/api/")


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's hook: every refusal as a problem; None for a bug, which Django logs and handler500 answers."""
    error = _as_known(error)
    headers: dict[str, str] = {}
    if isinstance(error, DomainError):
        problem = of(error)
        headers = headers_of(error)
    elif isinstance(error, exceptions.ValidationError):
        problem = document(400, "invalid", "The request is not valid.", errors=flat(error.detail))
        problem["detail"] = _sentence(problem["errors"])
    elif isinstance(error, exceptions.APIException):
        problem = document(error.status_code, _code(error), str(error.detail))
        headers = _headers(error)
    else:
        return None
    set_rollback()
    return Response(problem, status=problem["status"], headers=headers, content_type=CONTENT_TYPE)


def flat(detail: Any, path: str = "") -> dict[str, list[str]]:
    """DRF's nested errors as ``{"env.NAME": ["…"], "ssh_key_ids.0": ["…"]}``."""
    if isinstance(detail, dict):
        pairs = [(path if key == WHOLE else f"{path}.{key}".strip("."), value) for key, value in detail.items()]
    elif isinstance(detail, list) and any(isinstance(item, dict | list) for item in detail):
        pairs = [(f"{path}.{index}".strip("."), item) for index, item in enumerate(detail) if item]
    else:
        return {path or "body": [str(item) for item in (detail if isinstance(detail, list) else [detail])]}
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        for key, sentences in flat(value, name).items():
            found.setdefault(key, []).extend(sentences)
    return found


def _as_known(error: Exception) -> Exception:
    if isinstance(error, Http404):
        return NotFound("There is nothing at this address.")
    if isinstance(error, PermissionDenied):
        return NotAllowed("You may not do this.")
    if isinstance(error, RequestDataTooBig):
        return TooLarge("The request is too large.")
    if isinstance(error, SuspiciousOperation):
        return InvalidInput("The request is not valid.")
    return error


def _code(error: exceptions.APIException) -> str:
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    codes = error.get_codes()
    return codes if isinstance(codes, str) else error.default_code


def _headers(error: exceptions.APIException) -> dict[str, str]:
    headers = {}
    if header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = str(int(wait))
    return headers


def _sentence(errors: dict[str, list[str]]) -> str:
    name, sentences = next(iter(errors.items()), ("body", ["Not valid."]))
    return f"{name}: {sentences[0]}"

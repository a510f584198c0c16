"""Who calls the API: a program with a bearer token, or the portal's own pages with a session and CSRF token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication, SessionAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied

from portal import rate_limits, token_use, tokens
from portal.actor import client_ip
from portal.errors import InvalidInput

if TYPE_CHECKING:
    from rest_framework.request import Request

    from portal.models import ApiToken, User

QUERY_NAMES = frozenset({"token", "access_token", "api_key", "api_token"})
BEARER_PARTS = 2  # "Bearer" and the secret


class BearerToken(BaseAuthentication):
    """``Authorization: Bearer lsr_…``. Sets ``request.auth`` to the ApiToken and ``request.user`` to its user."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        """None without a bearer header; AuthenticationFailed (401) for one that opens nothing, without saying why."""
        refuse_token_in_query(request)
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != b"bearer":
            return None
        secret = parts[1].decode("latin-1") if len(parts) == BEARER_PARTS else ""
        token = tokens.find(secret)
        ip = client_ip(request)
        if token is None:
            rate_limits.take(rate_limits.WRONG_TOKENS, rate_limits.place_of(request))
            raise AuthenticationFailed("The token is unknown, expired or revoked.", code="token_invalid")
        token_use.note(token, ip)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        """Makes DRF answer 401 rather than 403."""
        return 'Bearer realm="lessor"'


class Session(SessionAuthentication):
    """The portal's own pages. Writes need the CSRF token, as every form does.

    An anonymous write is refused with 401 before CSRF matters: no route may declare a write public (portal.E011).
    """

    def enforce_csrf(self, request: Request) -> None:
        """403 ``csrf_failed`` where the token is missing or comes from elsewhere."""
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise PermissionDenied("The CSRF token is missing or wrong.", code="csrf_failed") from error


def refuse_token_in_query(request: Request) -> None:
    """A secret in an address ends up in logs, histories and Referer headers: it is refused, not merely ignored."""
    for name, value in request.query_params.items():
        if name.lower() in QUERY_NAMES or str(value).startswith(tokens.MARK):
            sentence = (
                "Send the token in the Authorization header, never in the address; revoke this one if it is real."
            )
            raise InvalidInput(sentence, code="token_in_query")

"""What a caller of the API may do: every view declares the scope of each method, and a view without one opens nothing.

``scopes = {"GET": "leases:read", "POST": "leases:write"}``; PUBLIC needs no one, ANYONE needs a signed-in caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rest_framework.exceptions import MethodNotAllowed
from rest_framework.permissions import BasePermission

from portal.errors import NotAllowed
from portal.models import ROLES_THAT_LEASE, ApiToken, User
from portal.services import ROLE_REFUSED, current_tenant, require_role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rest_framework.request import Request
    from rest_framework.views import APIView

PUBLIC: Final = "public"
ANYONE: Final = "anyone"
# A scope is the ceiling of a token; the role of its user in the tenant is the ceiling of both token and session.
ROLES_FOR: Final = {"leases:write": ROLES_THAT_LEASE}


class HasScope(BasePermission):
    """401 without a caller, 403 ``scope_missing`` when the token lacks the scope, 403 when the role does."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Judge one request by the view's ``scopes`` table."""
        scope = needed(view, request.method or "")
        if scope == PUBLIC:
            return True
        user = request.user
        if not isinstance(user, User):
            return False  # DRF answers 401
        if scope == ANYONE:
            return True
        if isinstance(request.auth, ApiToken) and scope not in request.auth.scopes:
            sentence = f"This token lacks the scope {scope}."
            raise NotAllowed(sentence, code="scope_missing", extra={"scope": scope})
        if scope in ROLES_FOR:
            _check_role(request, user, ROLES_FOR[scope])
        return True


def _check_role(request: Request, user: User, roles: Sequence[str]) -> None:
    role = getattr(request.auth, "role", None)  # was read together with the token
    if role is None:
        require_role(user=user, tenant=current_tenant(request), roles=roles)
    elif role not in roles:
        raise NotAllowed(ROLE_REFUSED)


def needed(view: APIView, method: str) -> str:
    """The scope a view asks for this method; a method it does not have is 405 for everyone."""
    if method == "HEAD":
        method = "GET"
    table: dict[str, str] = getattr(view, "scopes", {})
    if method in table:
        return table[method]
    if method in view.allowed_methods and method != "OPTIONS":
        raise NotAllowed("This route declares no scope and is closed.")
    raise MethodNotAllowed(method)

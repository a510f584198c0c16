"""Who calls the node API: an agent with its node token. Views of the node API, also rental's, build on ``NodeView``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.contrib.auth.models import AnonymousUser
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed, NotAuthenticated
from rest_framework.permissions import BasePermission
from rest_framework.views import APIView

from nodes import credentials
from nodes.models import Node
from portal import rate_limits
from portal.ready import Ready

if TYPE_CHECKING:
    from rest_framework.request import Request

BEARER_PARTS = 2  # "Bearer" and the secret
_BY_DIGEST: Final = Ready(lambda digest: Node.objects.filter(token_digest=digest), digest="?digest")


class NodeToken(BaseAuthentication):
    """``Authorization: Bearer lnt_…``. Sets ``request.node``; there is no user, and no other scheme is tried."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Node] | None:
        """None without a bearer header; 401 ``node_revoked`` or ``node_token_invalid`` for one that opens nothing."""
        parts = get_authorization_header(request).split()
        if not parts or parts[0].lower() != b"bearer":
            return None
        secret = parts[1].decode("latin-1") if len(parts) == BEARER_PARTS else ""
        found: list[Node] = _BY_DIGEST.rows(digest=credentials.digest(secret))
        if not found:
            rate_limits.take(rate_limits.WRONG_TOKENS, rate_limits.place_of(request))
            raise AuthenticationFailed(
                "The node token is unknown: it was replaced, or never ours.", "node_token_invalid"
            )
        node = found[0]
        if node.revoked_at is not None:
            raise AuthenticationFailed("This node has been revoked.", "node_revoked")
        request.node = node  # type: ignore[attr-defined]  # what views of the node API work on
        return AnonymousUser(), node

    def authenticate_header(self, request: Request) -> str:
        """Makes DRF answer 401 rather than 403."""
        return 'Bearer realm="lessor-node"'


class IsNode(BasePermission):
    """401 for everyone but a node."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        """Whether ``NodeToken`` found a node."""
        return isinstance(request.auth, Node)


def node_of(request: Request) -> Node:
    """The node behind a request that ``IsNode`` let through."""
    if not isinstance(request.auth, Node):
        raise NotAuthenticated
    return request.auth


class NodeView(APIView):
    """Base of the node API: a node token opens it and nothing else does; absent from the public schema."""

    authentication_classes = (NodeToken,)
    permission_classes = (IsNode,)
    schema = None

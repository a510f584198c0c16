"""API v1 of the accounts: who am I, SSH keys, API tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import keys, tokens
from portal.actor import Actor
from portal.errors import NotFound
from portal.models import ApiToken, SshKey, User
from portal.pagination import Cursor
from portal.permissions import ANYONE
from portal.serializers import StrictCharField, StrictSerializer
from portal.services import current_tenant

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from rest_framework.request import Request


def caller(request: Request) -> User:
    """The user behind an API request; the permission has made sure of one."""
    if not isinstance(request.user, User):
        raise NotFound("There is nothing at this address.")
    return request.user


class MeOut(serializers.Serializer[Any]):
    """Who calls."""

    email = serializers.EmailField()
    tenant = serializers.CharField(help_text="Id of the tenant this token or session works for.")
    tenant_name = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())


class SshKeyIn(StrictSerializer):
    """A key to add."""

    public_key = StrictCharField(
        trim_whitespace=False, help_text="One line of a .pub file; SSH2 blocks are read too.", max_length=10_000_000
    )
    name = StrictCharField(required=False, default="", allow_blank=True, max_length=keys.MAX_NAME)


class SshKeyOut(serializers.ModelSerializer[SshKey]):
    """A key."""

    public_key = serializers.CharField(source="line")

    class Meta:
        model = SshKey
        fields = ["id", "name", "key_type", "public_key", "fingerprint", "created_at", "last_used_at"]


class TokenIn(StrictSerializer):
    """A token to create."""

    name = StrictCharField(max_length=tokens.MAX_NAME)
    scopes = serializers.ListField(
        child=StrictCharField(), allow_empty=False, max_length=50, help_text=", ".join(tokens.SCOPES)
    )
    expires_at = serializers.DateTimeField(allow_null=True, default=None, help_text="RFC 3339 with zone; null: never.")


class TokenOut(serializers.ModelSerializer[ApiToken]):
    """A token, without its secret."""

    tenant = serializers.CharField(source="tenant_id")
    scopes = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = ApiToken
        fields = [
            "id",
            "name",
            "prefix",
            "tenant",
            "scopes",
            "expires_at",
            "revoked_at",
            "created_at",
            "last_used_at",
            "last_used_ip",
        ]


class CreatedTokenOut(TokenOut):
    """A new token with its secret, shown this once."""

    secret = serializers.CharField(help_text="Shown once; only a digest is kept.")

    class Meta(TokenOut.Meta):
        fields = [*TokenOut.Meta.fields, "secret"]


class Me(APIView):
    """Who calls, for which tenant, with which scopes."""

    scopes = {"GET": ANYONE}

    @extend_schema(operation_id="me", responses=MeOut)
    def get(self, request: Request) -> Response:
        """Who calls, for which tenant, with which scopes."""
        tenant = current_tenant(request)
        granted = request.auth.scopes if isinstance(request.auth, ApiToken) else list(tokens.SCOPES)
        facts = {"email": caller(request).email, "tenant": tenant.pk, "tenant_name": tenant.name, "scopes": granted}
        return Response(MeOut(facts).data)


class SshKeys(APIView):
    """The caller's SSH keys."""

    scopes = {"GET": "keys:read", "POST": "keys:write"}
    pagination_class = Cursor

    @extend_schema(operation_id="list_ssh_keys", responses=SshKeyOut(many=True))
    def get(self, request: Request) -> Response:
        """The caller's SSH keys, oldest first."""
        page = Cursor()
        rows = page.paginate_queryset(SshKey.objects.filter(user=caller(request)), request, self)
        return page.get_paginated_response(SshKeyOut(rows, many=True).data)

    @extend_schema(operation_id="add_ssh_key", request=SshKeyIn, responses={201: SshKeyOut})
    def post(self, request: Request) -> Response:
        """Add a public key. 400 `invalid_key`, `weak_key`, `private_key`, `more_than_one_line`; 409 `duplicate`."""
        said = SshKeyIn(data=request.data)
        said.is_valid(raise_exception=True)
        key = keys.add_key(
            user=caller(request),
            name=said.validated_data["name"],
            text=said.validated_data["public_key"],
            actor=Actor.of(request),
        )
        return Response(SshKeyOut(key).data, status=status.HTTP_201_CREATED)


class OneSshKey(APIView):
    """One SSH key."""

    scopes = {"GET": "keys:read", "DELETE": "keys:write"}

    @extend_schema(operation_id="get_ssh_key", responses=SshKeyOut)
    def get(self, request: Request, key_id: str) -> Response:
        """One SSH key."""
        return Response(SshKeyOut(self._key(request, key_id)).data)

    @extend_schema(operation_id="remove_ssh_key", responses={204: None})
    def delete(self, request: Request, key_id: str) -> Response:
        """Remove a key; sessions made with it end within seconds."""
        keys.remove_key(key=self._key(request, key_id), actor=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _key(self, request: Request, key_id: str) -> SshKey:
        key = SshKey.objects.filter(user=caller(request), pk=key_id).first()
        if key is None:
            raise NotFound("There is no such key.")
        return key


class Tokens(APIView):
    """The caller's API tokens."""

    scopes = {"GET": "tokens:read", "POST": "tokens:write"}
    pagination_class = Cursor

    @extend_schema(operation_id="list_tokens", responses=TokenOut(many=True))
    def get(self, request: Request) -> Response:
        """The caller's tokens in this tenant, newest first, revoked ones too."""
        page = Cursor()
        rows = page.paginate_queryset(visible_tokens(request), request, self)
        return page.get_paginated_response(TokenOut(rows, many=True).data)

    @extend_schema(operation_id="create_token", request=TokenIn, responses={201: CreatedTokenOut})
    def post(self, request: Request) -> Response:
        """Create a token with at most the caller's own scopes; the secret is in this answer only."""
        said = TokenIn(data=request.data)
        said.is_valid(raise_exception=True)
        token, secret = tokens.create_token(
            user=caller(request), tenant=current_tenant(request), actor=Actor.of(request), **said.validated_data
        )
        token.secret = secret  # type: ignore[attr-defined]  # for this answer only; the model has no such field
        answer = Response(CreatedTokenOut(token).data, status=status.HTTP_201_CREATED)
        answer["Cache-Control"] = "no-store"
        return answer


class OneToken(APIView):
    """One API token."""

    scopes = {"GET": "tokens:read", "DELETE": "tokens:write"}

    @extend_schema(operation_id="get_token", responses=TokenOut)
    def get(self, request: Request, token_id: str) -> Response:
        """One token, without its secret."""
        return Response(TokenOut(self._token(request, token_id)).data)

    @extend_schema(operation_id="revoke_token", responses={204: None})
    def delete(self, request: Request, token_id: str) -> Response:
        """Revoke a token; it opens nothing from now on."""
        tokens.revoke(token=self._token(request, token_id), actor=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _token(self, request: Request, token_id: str) -> ApiToken:
        token = visible_tokens(request).filter(pk=token_id).first()
        if token is None:
            raise NotFound("There is no such token.")
        return token


def visible_tokens(request: Request) -> QuerySet[ApiToken]:
    """The caller's own tokens; a token sees those of its tenant only."""
    mine = ApiToken.objects.filter(user=caller(request)).select_related("tenant")
    return mine.filter(tenant=request.auth.tenant_id) if isinstance(request.auth, ApiToken) else mine

"""API v1 of tenants: which there are, who is in them, who is invited. What a role may do stands in portal/roles.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.response import Response
from rest_framework.views import APIView

from portal import invitations, members
from portal.actor import Actor
from portal.api import caller
from portal.errors import NotFound
from portal.models import ApiToken, Invitation, Membership, Tenant
from portal.organisation_deletion import delete_organisation
from portal.pagination import Cursor
from portal.roles import Role
from portal.serializers import StrictCharField, StrictSerializer

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from rest_framework.request import Request


class TenantIn(StrictSerializer):
    """An organisation's name."""

    name = StrictCharField(max_length=members.MAX_NAME)


class DeleteTenantIn(StrictSerializer):
    """That this organisation is meant, and that what is on its account may go."""

    name = StrictCharField(max_length=members.MAX_NAME, help_text="its name, to confirm it")
    give_up_balance = serializers.BooleanField(default=False, help_text="needed while there is money on the account")


class RoleIn(StrictSerializer):
    """A role."""

    role = serializers.ChoiceField(choices=Role.choices)


class InvitationIn(StrictSerializer):
    """Whom to invite."""

    email = StrictCharField(max_length=invitations.MAX_EMAIL)
    role = serializers.ChoiceField(choices=Role.choices, default=Role.MEMBER)


class TenantOut(serializers.ModelSerializer[Tenant]):
    """A tenant."""

    class Meta:
        model = Tenant
        fields = ["id", "name", "kind", "suspended_at", "suspension_reason", "created_at"]


class MemberOut(serializers.ModelSerializer[Membership]):
    """A member; ``id`` is the person's."""

    id = serializers.CharField(source="user_id")
    email = serializers.EmailField(source="user.email")
    joined_at = serializers.DateTimeField(source="created_at")

    class Meta:
        model = Membership
        fields = ["id", "email", "role", "joined_at"]


class InvitationOut(serializers.ModelSerializer[Invitation]):
    """An invitation. The link is in the mail only."""

    state = serializers.SerializerMethodField(help_text="open, accepted, declined, withdrawn, or expired.")
    invited_by = serializers.CharField(source="invited_by_id", allow_null=True)

    class Meta:
        model = Invitation
        fields = ["id", "email", "role", "state", "invited_by", "created_at", "expires_at", "closed_at"]

    def get_state(self, row: Invitation) -> str:
        """An open one that ran out is told as expired."""
        over = row.state == Invitation.State.OPEN and row.expires_at <= timezone.now()
        return "expired" if over else row.state


class Tenants(APIView):
    """The caller's tenants."""

    scopes = {"GET": "tenants:read", "POST": "tenants:write"}
    pagination_class = Cursor
    cursor_by = "created_at"

    @extend_schema(operation_id="list_tenants", responses=TenantOut(many=True))
    def get(self, request: Request) -> Response:
        """The caller's tenants, oldest first; a token sees its own."""
        page = Cursor()
        rows = page.paginate_queryset(visible_tenants(request), request, self)
        return page.get_paginated_response(TenantOut(rows, many=True).data)

    @extend_schema(operation_id="create_tenant", request=TenantIn, responses={201: TenantOut})
    def post(self, request: Request) -> Response:
        """Create an organisation, owned by the caller. A token goes on working in its own tenant."""
        said = TenantIn(data=request.data)
        said.is_valid(raise_exception=True)
        made = members.create_organisation(user=caller(request), actor=Actor.of(request), **said.validated_data)
        return Response(TenantOut(made).data, status=status.HTTP_201_CREATED)


class OneTenant(APIView):
    """One tenant."""

    scopes = {"GET": "tenants:read", "PATCH": "tenants:write", "DELETE": "tenants:write"}

    @extend_schema(operation_id="get_tenant", responses=TenantOut)
    def get(self, request: Request, tenant_id: str) -> Response:
        """One tenant."""
        return Response(TenantOut(one_tenant(request, tenant_id)).data)

    @extend_schema(operation_id="rename_tenant", request=TenantIn, responses=TenantOut)
    def patch(self, request: Request, tenant_id: str) -> Response:
        """Rename an organisation (owner, admin)."""
        tenant = one_tenant(request, tenant_id)
        said = TenantIn(data=request.data)
        said.is_valid(raise_exception=True)
        renamed = members.rename(tenant=tenant, actor=Actor.of(request), **said.validated_data)
        return Response(TenantOut(renamed).data)

    @extend_schema(operation_id="delete_tenant", request=DeleteTenantIn, responses={204: None})
    def delete(self, request: Request, tenant_id: str) -> Response:
        """Delete an organisation for good (owner). The body repeats its name. 409 `leases_running`."""
        tenant = one_tenant(request, tenant_id)
        said = DeleteTenantIn(data=request.data)
        said.is_valid(raise_exception=True)
        delete_organisation(tenant=tenant, actor=Actor.of(request), **said.validated_data)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Members(APIView):
    """Who is in a tenant."""

    scopes = {"GET": "tenants:read"}
    pagination_class = Cursor
    cursor_by = "created_at"

    @extend_schema(operation_id="list_members", responses=MemberOut(many=True))
    def get(self, request: Request, tenant_id: str) -> Response:
        """Who is in a tenant, with which role; who joined first comes first."""
        page = Cursor()
        rows = members.members_of(one_tenant(request, tenant_id))
        return page.get_paginated_response(MemberOut(page.paginate_queryset(rows, request, self), many=True).data)


class OneMember(APIView):
    """One member."""

    scopes = {"GET": "tenants:read", "PATCH": "tenants:write", "DELETE": "tenants:write"}

    @extend_schema(operation_id="get_member", responses=MemberOut)
    def get(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """One member."""
        return Response(MemberOut(members.member(tenant=one_tenant(request, tenant_id), user_id=user_id)).data)

    @extend_schema(operation_id="change_role", request=RoleIn, responses=MemberOut)
    def patch(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Change a role (owner, admin; owners are made and unmade by owners). 409 `last_owner`."""
        tenant = one_tenant(request, tenant_id)
        members.member(tenant=tenant, user_id=user_id)
        said = RoleIn(data=request.data)
        said.is_valid(raise_exception=True)
        row = members.change_role(tenant=tenant, user_id=user_id, actor=Actor.of(request), **said.validated_data)
        return Response(MemberOut(row).data)

    @extend_schema(operation_id="remove_member", responses={204: None})
    def delete(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Remove a member, or leave: keys, tokens and open sessions for this tenant end within seconds."""
        members.remove(tenant=one_tenant(request, tenant_id), user_id=user_id, actor=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class Invitations(APIView):
    """Who is invited."""

    scopes = {"GET": "tenants:read", "POST": "tenants:write"}
    pagination_class = Cursor

    @extend_schema(operation_id="list_invitations", responses=InvitationOut(many=True))
    def get(self, request: Request, tenant_id: str) -> Response:
        """Every invitation of a tenant, oldest first, answered ones too."""
        page = Cursor()
        rows = page.paginate_queryset(one_tenant(request, tenant_id).invitations.all(), request, self)
        return page.get_paginated_response(InvitationOut(rows, many=True).data)

    @extend_schema(operation_id="invite", request=InvitationIn, responses={201: InvitationOut})
    def post(self, request: Request, tenant_id: str) -> Response:
        """Invite an address (owner, admin). 409 `already_member`, `already_invited`, `personal_tenant`; 429."""
        tenant = one_tenant(request, tenant_id)
        said = InvitationIn(data=request.data)
        said.is_valid(raise_exception=True)
        row = invitations.invite(tenant=tenant, actor=Actor.of(request), **said.validated_data)
        return Response(InvitationOut(row).data, status=status.HTTP_201_CREATED)


class OneInvitation(APIView):
    """One invitation."""

    scopes = {"GET": "tenants:read", "DELETE": "tenants:write"}

    @extend_schema(operation_id="get_invitation", responses=InvitationOut)
    def get(self, request: Request, tenant_id: str, invitation_id: str) -> Response:
        """One invitation."""
        return Response(InvitationOut(one_invitation(request, tenant_id, invitation_id)).data)

    @extend_schema(operation_id="withdraw_invitation", responses={204: None})
    def delete(self, request: Request, tenant_id: str, invitation_id: str) -> Response:
        """Withdraw an invitation; its link opens nothing any more."""
        row = one_invitation(request, tenant_id, invitation_id)
        invitations.withdraw(invitation=row, actor=Actor.of(request))
        return Response(status=status.HTTP_204_NO_CONTENT)


class ResendInvitation(APIView):
    """Another mail."""

    scopes = {"POST": "tenants:write"}

    @extend_schema(operation_id="resend_invitation", request=None, responses=InvitationOut)
    def post(self, request: Request, tenant_id: str, invitation_id: str) -> Response:
        """Mail it again, with a new link for 7 days; the link before opens nothing any more."""
        row = one_invitation(request, tenant_id, invitation_id)
        StrictSerializer(data=request.data).is_valid(raise_exception=True)
        return Response(InvitationOut(invitations.resend(invitation=row, actor=Actor.of(request))).data)


def visible_tenants(request: Request) -> QuerySet[Tenant]:
    """Tenants the caller is a member of; a token sees its own."""
    mine = Tenant.objects.filter(memberships__user=caller(request))
    return mine.filter(pk=request.auth.tenant_id) if isinstance(request.auth, ApiToken) else mine


def one_tenant(request: Request, tenant_id: str) -> Tenant:
    """One of them, or NotFound."""
    tenant = visible_tenants(request).filter(pk=tenant_id).first()
    if tenant is None:
        raise NotFound("There is no such tenant.")
    return tenant


def one_invitation(request: Request, tenant_id: str, invitation_id: str) -> Invitation:
    """One invitation of a tenant, or NotFound."""
    rows = Invitation.objects.select_related("tenant").filter(tenant=one_tenant(request, tenant_id))
    row = rows.filter(pk=invitation_id).first()
    if row is None:
        raise NotFound("There is no such invitation.")
    return row

"""Objects and bodies of the routes of tenants, for the table in tests/matrix.py."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.utils import timezone

from portal.models import Invitation, Membership
from tests import make

if TYPE_CHECKING:
    from portal.models import Tenant, User


def organisation(user: User) -> Tenant:
    """Owned by the user and a second owner, so that the user may leave; with one more member."""
    people = {user: "owner", make.make_user(): "owner", make.make_user(): "member"}
    return make.make_tenant(members=people)


def make_invitation(tenant: Tenant, email: str, **values: Any) -> Invitation:
    """An open invitation that holds for 7 days."""
    facts = {"role": "member", "expires_at": timezone.now() + timedelta(days=7), **values}
    return Invitation.objects.create(tenant=tenant, email=email, **facts)


def a_tenant(user: User) -> dict[str, str]:
    """An organisation of the user."""
    return {"tenant_id": organisation(user).pk}


def a_member(user: User) -> dict[str, str]:
    """Another member of an organisation of the user."""
    tenant = organisation(user)
    return {"tenant_id": tenant.pk, "user_id": tenant.memberships.get(role="member").user_id}


def an_invitation(user: User) -> dict[str, str]:
    """An invitation into an organisation of the user."""
    tenant = organisation(user)
    row = make_invitation(tenant, f"guest-{tenant.pk}@example.test", invited_by=user)
    return {"tenant_id": tenant.pk, "invitation_id": row.pk}


def an_invitation_to(user: User) -> dict[str, str]:
    """An invitation to the user's own address."""
    return {"invitation_id": make_invitation(organisation(make.make_user()), user.email).pk}


def name_body(_: User) -> dict[str, Any]:
    """An organisation's name."""
    return {"name": "Northwind"}


def deletion_body(_: User) -> dict[str, Any]:
    """The name that ``organisation`` gave, repeated."""
    return {"name": "Northwind", "give_up_balance": True}


def rename_form(_: User) -> dict[str, Any]:
    """The form that renames."""
    return {"tenant-name": "Southwind"}


def invite_body(_: User) -> dict[str, Any]:
    """Whom to invite."""
    return {"email": "guest@example.test", "role": "viewer"}


def role_body(_: User) -> dict[str, Any]:
    """Another role."""
    return {"role": "billing"}


def switch_form(user: User) -> dict[str, Any]:
    """A tenant to work for."""
    return {"tenant": organisation(user).pk, "next": "/leases/"}


def next_owner(user: User) -> dict[str, Any]:
    """Somebody else in the organisation that was made last."""
    others = Membership.objects.filter(tenant__memberships__user=user, role="member").exclude(user=user)
    last = others.order_by("pk").last()
    return {"member": last.user_id if last else "us-1"}

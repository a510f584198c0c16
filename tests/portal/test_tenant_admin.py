"""The operators' page of tenants: suspending, taking that back, members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, Membership
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(operator: User) -> Client:
    """The operator's browser."""
    client = Client()
    client.force_login(operator)
    return client


def test_a_tenant_is_suspended_with_a_reason_and_restored(desk: Client, tenant: Tenant) -> None:
    suspend = reverse("admin:portal_tenant_suspend", args=[tenant.pk])
    assert suspend in desk.get(reverse("admin:portal_tenant_change", args=[tenant.pk])).content.decode()
    assert desk.get(suspend).status_code == 200
    assert desk.post(suspend, {"reason": " "}).status_code == 200
    tenant.refresh_from_db()
    assert tenant.suspended_at is None
    desk.post(suspend, {"reason": "Charged back."})
    tenant.refresh_from_db()
    assert (tenant.suspension_reason, tenant.suspended_at is not None) == ("Charged back.", True)
    restore = reverse("admin:portal_tenant_restore", args=[tenant.pk])
    assert restore in desk.get(reverse("admin:portal_tenant_change", args=[tenant.pk])).content.decode()
    desk.post(restore)
    tenant.refresh_from_db()
    assert (tenant.suspension_reason, tenant.suspended_at) == ("", None)
    told = AuditEvent.objects.filter(action__startswith="tenant.").order_by("pk").values_list("action", flat=True)
    assert list(told) == ["tenant.suspended", "tenant.restored"]


def rows(tenant: Tenant, **changes: str) -> dict[str, Any]:
    """What the form of a tenant sends, with changes to the rows of members."""
    people = list(tenant.memberships.order_by("pk"))
    sent: dict[str, Any] = {
        "name": tenant.name,
        "memberships-TOTAL_FORMS": len(people),
        "memberships-INITIAL_FORMS": len(people),
    }
    for number, row in enumerate(people):
        sent |= {
            f"memberships-{number}-id": row.pk,
            f"memberships-{number}-tenant": tenant.pk,
            f"memberships-{number}-user": row.user_id,
            f"memberships-{number}-role": row.role,
        }
    return {**sent, **{name.replace("__", "-"): value for name, value in changes.items()}}


def test_who_is_taken_out_by_an_operator_loses_access_at_once(desk: Client, user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "member"})
    token = ApiClient(make.make_token(stranger, tenant=tenant)[1])
    assert token.get("me").status_code == 200
    change = reverse("admin:portal_tenant_change", args=[tenant.pk])
    assert desk.post(change, rows(tenant, memberships__1__DELETE="on")).status_code == 302
    assert token.get("me").status_code == 401
    Membership.objects.create(tenant=tenant, user=stranger)
    assert token.get("me").status_code == 401


def test_an_operator_leaves_an_organisation_with_an_owner(desk: Client, user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "member"})
    change = reverse("admin:portal_tenant_change", args=[tenant.pk])
    refused = desk.post(change, rows(tenant, memberships__0__role="viewer"))
    assert "must be an owner" in refused.content.decode()
    assert (
        desk.post(change, rows(tenant, memberships__0__role="viewer", memberships__1__role="owner")).status_code == 302
    )
    assert {row.user_id: row.role for row in tenant.memberships.all()} == {user.pk: "viewer", stranger.pk: "owner"}

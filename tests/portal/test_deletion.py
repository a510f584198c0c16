"""Closing an account, by an operator and for good by its owner: what is locked, kept and forgotten (case A11)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.apps import apps
from django.core import mail
from django.test import Client
from django.urls import reverse

from portal import deletion, invitations, members, suspension
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import ApiToken, AuditEvent, Invitation, Membership, SshKey, Tenant, User
from portal.services import audit
from tests import make
from tests.clients import ApiClient
from tests.matrix_tenants import make_invitation
from tests.portal.second_factor import log_in, with_app

pytestmark = pytest.mark.django_db


def close(user: User, *, deleted: bool) -> None:
    """By its owner, or by an operator."""
    act = deletion.delete_account if deleted else deletion.deactivate
    act(user=user, actor=Actor.of_user(user) if deleted else Actor.system("operator"))


@pytest.mark.parametrize("by", ["operator", "owner"])
def test_a_closed_account_gets_401_by_token_and_cookie_at_once_and_cannot_sign_in(user: User, by: str) -> None:
    # case A11
    client = Client()
    log_in(client, user)
    api = ApiClient(make.make_token(user)[1])
    assert api.get("me").status_code == 200
    close(user, deleted=by == "owner")
    assert api.get("me").status_code == 401
    assert client.get("/api/v1/me").status_code == 401
    assert client.get(reverse("leases")).status_code == 302
    fresh = Client()
    log_in(fresh, user)
    assert "_auth_user_id" not in fresh.session


def test_closing_twice_is_closing_once_and_an_operator_can_open_it_again(user: User) -> None:
    client = Client()
    log_in(client, user)
    api = ApiClient(make.make_token(user)[1])
    for _ in range(2):
        close(user, deleted=False)
    assert AuditEvent.objects.filter(action="user.deactivated").count() == 1
    deletion.reactivate(user=user, actor=Actor.system("operator"))
    assert api.get("me").status_code == 200
    assert client.get(reverse("leases")).status_code == 302  # the session does not come back
    log_in(client, user)
    assert client.get(reverse("leases")).status_code == 200


def test_the_operator_closes_and_opens_an_account_on_its_page_in_the_admin(user: User, operator: User) -> None:
    client = Client()
    client.force_login(operator)
    page = reverse("admin:portal_user_change", args=[user.pk])
    client.post(page, {"first_name": "", "last_name": ""})
    user.refresh_from_db()
    assert not user.is_active
    client.post(page, {"first_name": "", "last_name": "", "is_active": "on"})
    user.refresh_from_db()
    assert user.is_active
    told = AuditEvent.objects.filter(object_id=user.pk, actor=operator).order_by("pk").values_list("action", flat=True)
    assert list(told) == ["user.changed", "user.deactivated", "user.changed", "user.reactivated"]


def test_a_deleted_account_stays_closed(user: User, operator: User) -> None:
    close(user, deleted=True)
    with pytest.raises(DomainError) as refused:
        deletion.reactivate(user=user, actor=Actor.system("operator"))
    assert refused.value.code == "account_deleted"
    client = Client()
    client.force_login(operator)
    client.post(reverse("admin:portal_user_change", args=[user.pk]), {"is_active": "on"})
    user.refresh_from_db()
    assert not user.is_active


def test_after_deletion_no_row_of_ours_holds_the_address_or_name(user: User, tenant: Tenant) -> None:  # case A11
    user.first_name, user.last_name = "Maya", "Okonkwo-Lind"
    user.save(update_fields=["first_name", "last_name"])
    client = Client()
    log_in(client, user)
    with_app(user)
    make.make_key(user)
    make.make_token(user)
    org = make.make_tenant(members={user: "member", make.make_user(): "owner"})
    audit(actor=Actor.of_user(user), action="tenant.changed", obj=org, tenant=org, data={"members": {user.email: "x"}})
    audit_elsewhere(user)
    for number, state in enumerate(Invitation.State.values):
        make_invitation(make.make_tenant(f"Org {number}"), "maya@example.test", state=state)
    suspension.suspend(tenant=tenant, reason="Maya@Example.test was charged back.", actor=Actor.system("operator"))
    close(user, deleted=True)
    for word in ("maya@example.test", "Okonkwo-Lind"):
        for model in apps.get_models():
            if model._meta.app_label in {"portal", "billing", "rental", "nodes", "account", "mfa", "usersessions"}:
                for row in model._base_manager.values():
                    assert word.lower() not in json.dumps(row, default=str).lower(), (model, row)
    user.refresh_from_db()
    assert user.email == f"{user.pk}@deleted.invalid"
    assert not user.has_usable_password()
    tenant.refresh_from_db()
    assert tenant.name == user.email
    assert set(Membership.objects.filter(user=user).values_list("tenant_id", flat=True)) == {tenant.pk}
    for model in (SshKey, EmailAddress, Authenticator):
        assert not model.objects.filter(user=user).exists()
    assert not ApiToken.objects.filter(user=user, revoked_at__isnull=True).exists()
    assert AuditEvent.objects.filter(actor=user, action="user.deleted", ip=None).count() == 1
    assert not Invitation.objects.filter(state=Invitation.State.OPEN).exists()
    assert tenant.suspension_reason == f"{user.email} was charged back."


def audit_elsewhere(user: User) -> None:
    """Rows of organisations the person has left, or was only ever invited into."""
    boss = make.make_user()
    left = make.make_tenant("Left", members={user: "member", boss: "owner"})
    desk = Actor.system("operator")
    audit(actor=desk, action="tenant.changed", obj=left, tenant=left, data={"members": {user.email: "member"}})
    members.remove(tenant=left, user_id=user.pk, actor=Actor.of_user(boss))
    never = make.make_tenant("Never", members={boss: "owner"})
    offer = invitations.invite(tenant=never, email=user.email, role="member", actor=Actor.of_user(boss))
    invitations.withdraw(invitation=offer, actor=Actor.of_user(boss))


def test_an_address_that_was_not_confirmed_closes_no_invitation_of_whoever_has_it(user: User) -> None:
    EmailAddress.objects.create(user=user, email="victim@example.test", verified=False)
    row = make_invitation(make.make_tenant(), "victim@example.test")
    close(user, deleted=True)
    row.refresh_from_db()
    assert (row.email, row.state) == ("victim@example.test", Invitation.State.OPEN)


def test_who_is_gone_may_come_back_as_somebody_new(user: User, django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        close(user, deleted=True)
    assert mail.outbox[-1].to == ["maya@example.test"]
    assert mail.outbox[-1].subject == "Your account is deleted"
    form = {"email": "maya@example.test", "password1": make.PASSWORD, "password2": make.PASSWORD}
    Client().post(reverse("account_signup"), form)
    assert User.objects.get(email="maya@example.test").pk != user.pk


def test_the_last_owner_hands_over_first(user: User, stranger: User) -> None:  # case A11
    org = make.make_tenant("Northwind", members={user: "owner", stranger: "member"})
    with pytest.raises(DomainError, match="Northwind") as refused:
        close(user, deleted=True)
    assert refused.value.code == "last_owner"
    user.refresh_from_db()
    assert user.is_active
    Membership.objects.filter(user=stranger).update(role="owner")
    close(user, deleted=True)
    assert list(org.memberships.values_list("user_id", flat=True)) == [stranger.pk]


def test_an_owner_who_is_closed_does_not_count_as_one(user: User, stranger: User) -> None:
    make.make_tenant(members={user: "owner", stranger: "owner"})
    close(stranger, deleted=False)
    assert deletion.effects(user).ownerless


def test_an_organisation_of_one_closes_with_its_only_member(user: User, tenant: Tenant) -> None:
    org = make.make_tenant(members={user: "owner"})
    assert set(deletion.effects(user).alone) == {org, tenant}
    close(user, deleted=True)


def test_an_operator_who_deletes_the_own_account_is_no_operator_any_more(operator: User) -> None:
    close(operator, deleted=True)
    operator.refresh_from_db()
    assert (operator.is_staff, operator.is_superuser) == (False, False)

"""Deleting an organisation: who may, what speaks against it, what is left of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from billing.models import Account, LedgerEntry
from nodes.models import Node
from portal import invitations
from portal.actor import Actor
from portal.errors import DomainError, InvalidInput, NotFound
from portal.models import ApiToken, AuditEvent, Invitation, Membership, Tenant, User
from portal.organisation_deletion import delete_organisation
from rental.models import Lease
from rental.states import State
from tests import make
from tests.clients import ApiClient
from tests.matrix_tenants import make_invitation
from tests.portal.second_factor import confirm_password, log_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def org(user: User, stranger: User) -> Tenant:
    """Owned by the user, with one more member."""
    return make.make_tenant("Northwind Labs", members={user: "owner", stranger: "admin"})


@pytest.fixture
def browser(user: User) -> Client:
    """The owner at the login page, proved once more."""
    client = Client()
    log_in(client, user)
    confirm_password(client)
    return client


def delete(org: Tenant, user: User, **said: Any) -> None:
    """By its owner, who typed the name."""
    delete_organisation(tenant=org, actor=Actor.of_user(user), **{"name": org.name, **said})


def test_a_deleted_organisation_opens_nothing_and_keeps_its_books(
    org: Tenant, user: User, stranger: User, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    account = make.make_balance(org)
    make.make_lease(org, state=State.STOPPING)
    token = ApiClient(make.make_token(stranger, tenant=org)[1])
    offer = make_invitation(org, "guest@example.test", invited_by=user)
    guest = make.make_user(email="guest@example.test")
    delete(org, user, give_up_balance=True)
    org.refresh_from_db()
    assert org.deleted_at is not None
    assert token.get("me").status_code == 401
    assert not Membership.objects.filter(tenant=org).exists()
    assert not ApiToken.objects.filter(tenant=org, revoked_at__isnull=True).exists()
    with pytest.raises(NotFound):
        invitations.accept(invitation=offer, actor=Actor.of_user(guest), by_link=True)
    assert Invitation.objects.get(pk=offer.pk).state == Invitation.State.WITHDRAWN
    assert Account.objects.get(pk=account.pk).balance_ticks > 0
    assert LedgerEntry.objects.filter(account=account).exists()
    assert Lease.objects.filter(tenant=org).count() == 1
    told = AuditEvent.objects.get(action="tenant.deleted")
    assert (told.actor, told.tenant, told.data) == (user, org, {"name": "Northwind Labs", "members": 2})
    assert [mail.to for mail in mailoutbox] == [[stranger.email]]
    assert mailoutbox[0].subject == "Northwind Labs was deleted"


def test_leases_that_go_on_are_named_and_keep_the_organisation(org: Tenant, user: User, node: Node) -> None:
    make.make_lease(org, node=node, name="train-big")
    make.make_lease(org, state=State.STOPPING, name="going-already")
    with pytest.raises(DomainError, match="train-big") as refused:
        delete(org, user)
    assert refused.value.code == "leases_running"
    assert "going-already" not in refused.value.detail
    assert Tenant.objects.get(pk=org.pk).deleted_at is None
    assert org.memberships.count() == 2


def test_a_long_list_of_leases_is_cut(org: Tenant, user: User) -> None:
    for number in range(7):
        make.make_lease(org, name=f"run-{number}")
    with pytest.raises(DomainError, match="run-4 …"):
        delete(org, user)


def test_money_is_given_up_by_word_and_a_debt_keeps_nobody(org: Tenant, user: User) -> None:
    make.make_balance(org)
    with pytest.raises(InvalidInput) as refused:
        delete(org, user)
    assert list(refused.value.errors) == ["give_up_balance"]
    Account.objects.filter(tenant=org).update(balance_ticks=-5)
    delete(org, user)
    assert not org.memberships.exists()


def test_the_name_is_typed(org: Tenant, user: User) -> None:
    with pytest.raises(InvalidInput) as refused:
        delete(org, user, name="northwind labs")
    assert list(refused.value.errors) == ["name"]
    delete(org, user, name=" Northwind  Labs ")


def test_a_personal_tenant_goes_with_the_account_only(user: User, tenant: Tenant) -> None:
    with pytest.raises(DomainError) as refused:
        delete(tenant, user)
    assert refused.value.code == "personal_tenant"


def test_the_page_states_the_effects_asks_for_the_name_and_deletes(browser: Client, org: Tenant, user: User) -> None:
    make.make_balance(org)
    lease = make.make_lease(org, name="train-big")
    page = reverse("tenant-delete", args=[org.pk])
    assert page in browser.get(reverse("tenant", args=[org.pk])).content.decode()
    text = browser.get(page).content.decode()
    assert "train-big" in text
    assert "is given up" in text
    assert 'name="name"' not in text, "nothing to confirm while leases go on"
    refused = browser.post(page, {"name": org.name, "give_up_balance": "on"})
    assert (refused.status_code, "train-big" in refused.content.decode()) == (400, True)
    Lease.objects.filter(pk=lease.pk).update(state=State.STOPPING)
    refused = browser.post(page, {"name": "Northwind"})
    assert refused.status_code == 400
    assert "Confirm this, or use the balance up first." in refused.content.decode()
    refused = browser.post(page, {"name": "Northwind", "give_up_balance": "on"})
    assert "This is not the name of this organisation." in refused.content.decode()
    done = browser.post(page, {"name": org.name, "give_up_balance": "on"}, follow=True)
    assert done.redirect_chain == [(reverse("tenants"), 302)]
    assert "is deleted" in done.content.decode()
    assert not org.memberships.exists()


def test_a_session_that_worked_for_it_works_for_the_personal_tenant_again(
    browser: Client, org: Tenant, user: User
) -> None:
    browser.post(reverse("tenant-switch"), {"tenant": org.pk})
    delete(org, user)
    assert browser.get(reverse("leases")).status_code == 200
    assert browser.get(reverse("tenant", args=[org.pk])).status_code == 404


def test_who_is_no_owner_finds_no_such_page_and_proof_is_asked_for(org: Tenant, user: User, stranger: User) -> None:
    page = reverse("tenant-delete", args=[org.pk])
    admin = Client()
    log_in(admin, stranger)
    confirm_password(admin)
    assert admin.get(page).status_code == 404
    assert page not in admin.get(reverse("tenant", args=[org.pk])).content.decode()
    unproved = Client()
    unproved.force_login(user)
    assert unproved.post(page, {"name": org.name}).status_code == 302
    assert org.memberships.count() == 2


def test_the_api_deletes_with_the_name_in_the_body(org: Tenant, user: User) -> None:
    api = ApiClient(make.make_token(user, tenant=org)[1])
    make.make_balance(org)
    lease = make.make_lease(org, name="train-big")
    path = f"tenants/{org.pk}"
    assert "name" in api.delete(path).json()["errors"]
    answer = api.send("DELETE", path, {"name": org.name})
    assert (answer.status_code, answer.json()["code"]) == (409, "leases_running")
    Lease.objects.filter(pk=lease.pk).update(state=State.STOPPING)
    assert "give_up_balance" in api.send("DELETE", path, {"name": org.name}).json()["errors"]
    assert api.send("DELETE", path, {"name": org.name, "give_up_balance": True}).status_code == 204
    assert api.get("me").status_code == 401

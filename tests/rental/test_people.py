"""Leases, money and pages when an account is closed or deleted (case A11)."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from billing.models import Account, LedgerEntry
from nodes import broker
from nodes.models import Node
from portal import deletion
from portal.actor import Actor
from portal.models import Tenant, User
from rental import access, tasks
from rental.models import Lease, LeaseEvent
from rental.states import EndReason, State
from tests import make
from tests.portal.second_factor import confirm_password, log_in
from tests.rental.factories import order, report, running

pytestmark = pytest.mark.django_db
DELETE = "account-delete"


@pytest.fixture
def browser(renter: User) -> Client:
    """The renter at the login page, proved once more."""
    client = Client()
    log_in(client, renter)
    confirm_password(client)
    return client


@pytest.fixture
def woken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Leases whose nodes are told to look."""
    told: list[str] = []
    monkeypatch.setattr(broker, "_publish", lambda _node_id, lease_id: told.append(lease_id))
    return told


def keys_of(lease: Lease) -> list[str]:
    """Lines that open the lease now."""
    return [key.line for key in access.keys_of([lease])[lease.pk]]


@pytest.mark.parametrize("by", ["operator", "owner"])
def test_what_runs_for_nobody_else_is_stopped_and_charged_to_the_second(
    renter: User, tenant: Tenant, node: Node, by: str
) -> None:  # case A11
    lease, waiting = make.make_lease(tenant, node=node), order(renter, tenant)  # the first for five minutes now
    if by == "owner":
        deletion.delete_account(user=renter, actor=Actor.of_user(renter))
    else:
        deletion.deactivate(user=renter, actor=Actor.system("operator"))
    for row in (lease, waiting):
        row.refresh_from_db()
        assert row.state == State.STOPPING
    expected = [EndReason.RELEASED, EndReason.CANCELLED] if by == "owner" else [EndReason.OPERATOR] * 2
    assert [lease.end_reason, waiting.end_reason] == expected
    segment = lease.segments.get()
    assert (segment.seconds or 0) >= 300
    assert LedgerEntry.objects.get(source=f"segment:{segment.pk}").ticks == -(segment.ticks or 0)
    assert Account.objects.get(tenant=tenant).held_ticks == 0


def test_deletion_leaves_receipt_ledger_and_history_without_the_address(
    renter: User, tenant: Tenant, node: Node
) -> None:  # case A11
    lease = running(renter, tenant)
    before = list(LedgerEntry.objects.values_list("pk", flat=True))
    deletion.delete_account(user=renter, actor=Actor.of_user(renter))
    report(lease, "stopped")
    report(lease, "cleaned")
    assert set(before) <= set(LedgerEntry.objects.values_list("pk", flat=True))
    labels = set(LeaseEvent.objects.filter(lease=lease).values_list("actor_label", flat=True))
    assert "maya@example.test" not in labels
    assert f"{renter.pk}@deleted.invalid" in labels
    lease.refresh_from_db()
    assert lease.created_by_id == renter.pk


@pytest.mark.parametrize("by", ["operator", "owner"])
def test_beside_others_the_leases_go_on_and_only_the_keys_stop_opening_them(
    renter: User, stranger: User, node: Node, woken: list[str], by: str, django_capture_on_commit_callbacks: Any
) -> None:  # case A11
    org = make.make_tenant(members={renter: "member", stranger: "owner"})
    make.make_balance(org)
    other = make.make_key(stranger)
    lease = running(renter, org)
    assert len(keys_of(lease)) == 2
    with django_capture_on_commit_callbacks(execute=True):
        if by == "owner":
            deletion.delete_account(user=renter, actor=Actor.of_user(renter))
        else:
            deletion.deactivate(user=renter, actor=Actor.system("operator"))
    lease.refresh_from_db()
    assert lease.state == State.RUNNING
    assert keys_of(lease) == [other.line]
    assert lease.pk in woken


def test_a_lease_that_slipped_in_while_the_account_was_closed_is_swept(
    renter: User, tenant: Tenant, stranger: User, node: Node
) -> None:
    late = running(renter, tenant)
    untouched = make.make_lease(make.tenant_of(stranger), node=make.make_node(gpus=1))
    User.objects.filter(pk=renter.pk).update(is_active=False)
    tasks.sweep_abandoned()
    late.refresh_from_db()
    untouched.refresh_from_db()
    assert (late.state, late.end_reason) == (State.STOPPING, EndReason.OPERATOR)
    assert untouched.state == State.RUNNING


def test_the_page_states_what_follows_before_it_asks(browser: Client, renter: User, tenant: Tenant, node: Node) -> None:
    # case A11
    lease = running(renter, tenant)
    org = make.make_tenant("Northwind", members={renter: "member", make.make_user(): "owner"})
    make.make_lease(org, node=make.make_node(gpus=1), created_by=renter)
    make.make_token(renter)
    page = browser.get(reverse(DELETE)).content.decode()
    for words in (
        "1 lease is stopped and charged to this second",
        lease.pk,
        "$100.00 on the account of",
        "API tokens (1)",
        "You leave Northwind",
        "1 lease that you started there keeps running",
        "I give up the remaining balance",
    ):
        assert words in page, words


def test_the_page_asks_who_it_is_first(page: Client) -> None:
    assert page.get(reverse(DELETE))["Location"].startswith(reverse("account_reauthenticate"))
    assert page.post(reverse(DELETE), {"email": "maya@example.test"}).status_code == 302
    assert User.objects.get(email="maya@example.test").is_active


@pytest.mark.parametrize("said", [{}, {"email": "other@example.test", "give_up": "on"}, {"email": "maya@example.test"}])
def test_without_the_address_and_the_balance_given_up_nothing_happens(browser: Client, said: dict[str, str]) -> None:
    assert browser.post(reverse(DELETE), said).status_code == 400
    assert User.objects.get(email="maya@example.test").is_active


def test_confirmed_it_deletes_keeps_the_balance_in_the_books_and_signs_out(
    browser: Client, renter: User, tenant: Tenant
) -> None:  # case A11
    answer = browser.post(reverse(DELETE), {"email": "MAYA@example.test", "give_up": "on"}, follow=True)
    assert answer.redirect_chain[-1][0] == reverse("catalog")
    assert b"Your account is deleted" in answer.content
    assert browser.get(reverse("leases")).status_code == 302
    assert Account.objects.get(tenant=tenant).balance_ticks > 0
    renter.refresh_from_db()
    assert not renter.is_active


def test_a_last_owner_sees_what_to_do_and_no_button(browser: Client, renter: User, stranger: User) -> None:
    make.make_tenant("Northwind", members={renter: "owner", stranger: "member"})
    page = browser.get(reverse(DELETE)).content.decode()
    assert "Northwind" in page
    assert "Delete my account" not in page
    assert browser.post(reverse(DELETE), {"email": renter.email, "give_up": "on"}).status_code == 400
    assert User.objects.get(pk=renter.pk).is_active

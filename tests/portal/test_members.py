"""Organisations and the people in them: roles, leaving, handing over, what ends with a membership."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connection, connections
from django.urls import reverse

from portal import invitations, members, roles, signals, suspension
from portal.actor import Actor
from portal.errors import DomainError, NotAllowed, NotFound
from portal.models import AuditEvent, Invitation, Membership, Tenant
from portal.organisation_deletion import delete_organisation
from portal.roles import Act, Role
from rental import services as rental
from tests import make
from tests.clients import ApiClient
from tests.matrix_tenants import make_invitation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.test import Client

    from portal.models import User

pytestmark = pytest.mark.django_db


def act(user: User) -> Actor:
    """The person."""
    return Actor.of_user(user)


def role_of(user: User, tenant: Tenant) -> str | None:
    """Their role there."""
    return Membership.objects.filter(user=user, tenant=tenant).values_list("role", flat=True).first()


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """What the signals about members said."""
    heard: list[dict[str, Any]] = []

    def listen(**said: Any) -> None:
        heard.append(said)

    for signal in (signals.ssh_keys_changed, signals.membership_changed):
        signal.connect(listen)
    yield heard
    for signal in (signals.ssh_keys_changed, signals.membership_changed):
        signal.disconnect(listen)


# --- the matrix of roles ----------------------------------------------------------------------------------------------


def tries(tenant: Tenant, person: User, other: User) -> dict[Act, Callable[[], object]]:
    """Each act of the table, done by ``person`` through the service that pages and API call."""
    by = act(person)
    home = make.make_tenant(members={person: role_of(person, tenant) or "", other: "owner"})  # where nothing runs
    lease = make.make_lease(tenant)
    api = ApiClient(make.make_token(person, tenant=tenant)[1])

    def ask(path: str, **body: Any) -> object:
        answer = api.post(path, body) if body else api.get(path)
        if answer.status_code == 403:
            raise NotAllowed(answer.json()["detail"])
        return answer

    return {
        Act.SEE: lambda: ask("leases"),
        Act.ORDER: lambda: ask("quotes", gpu_model=make.H100, gpu_count=1),
        Act.STOP: lambda: rental.stop_lease(lease=lease, actor=by),
        Act.SEE_MONEY: lambda: ask("ledger"),
        Act.CREATE_TOKENS: lambda: ask("tokens", name="ci", scopes=["leases:read"]),
        Act.INVITE: lambda: invitations.invite(tenant=tenant, email="new@example.test", role="viewer", actor=by),
        Act.CHANGE_ROLES: lambda: members.change_role(tenant=tenant, user_id=other.pk, role="billing", actor=by),
        Act.REMOVE: lambda: members.remove(tenant=tenant, user_id=other.pk, actor=by),
        Act.RENAME: lambda: members.rename(tenant=tenant, name="Other", actor=by),
        Act.HAND_OVER: lambda: members.hand_over(tenant=tenant, user_id=other.pk, actor=by),
        Act.DELETE: lambda: delete_organisation(tenant=home, name=home.name, actor=by),
    }


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("what", [one for one in Act if one != Act.TOP_UP])
def test_a_role_may_do_what_the_table_says_and_nothing_else(role: Role, what: Act) -> None:
    person, other = make.make_user(), make.make_user()
    tenant = make.make_tenant(members={make.make_user(): "owner", person: role, other: "member"})
    do = tries(tenant, person, other)[what]
    if roles.may(role, what):
        do()
    else:
        with pytest.raises(NotAllowed):
            do()


def test_the_table_names_every_act_and_the_page_and_the_manual_show_it(page: Client) -> None:
    assert set(roles.ALLOWED) == set(Act)
    text = page.get(reverse("tenant-roles")).content.decode()
    manual = (settings.BASE_DIR / "docs" / "api.md").read_text()
    for one in Act:
        assert str(one.label) in text
        marks = ["yes" if roles.may(role, one) else "no" for role in Role]
        assert f"| {one.label} | {' | '.join(marks)} |" in manual


# --- owners -----------------------------------------------------------------------------------------------------------


def test_the_last_owner_can_neither_leave_nor_be_removed_nor_demoted(user: User) -> None:
    tenant = make.make_tenant(members={user: "owner", make.make_user(): "admin"})
    for do in (
        lambda: members.leave(tenant=tenant, actor=act(user)),
        lambda: members.remove(tenant=tenant, user_id=user.pk, actor=act(user)),
        lambda: members.change_role(tenant=tenant, user_id=user.pk, role="admin", actor=act(user)),
    ):
        with pytest.raises(DomainError) as refused:
            do()
        assert refused.value.code == "last_owner"
    assert role_of(user, tenant) == Role.OWNER


def test_a_closed_account_does_not_count_as_an_owner(user: User) -> None:
    gone = make.make_user(is_active=False)
    tenant = make.make_tenant(members={user: "owner", gone: "owner"})
    with pytest.raises(DomainError):
        members.leave(tenant=tenant, actor=act(user))
    assert list(members.owned_alone(user)) == [tenant]


def test_an_organisation_is_handed_over_and_the_old_owner_may_leave(user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "viewer"})
    members.hand_over(tenant=tenant, user_id=stranger.pk, actor=act(user))
    assert (role_of(user, tenant), role_of(stranger, tenant)) == (Role.ADMIN, Role.OWNER)
    members.leave(tenant=tenant, actor=act(user))
    assert role_of(user, tenant) is None
    assert list(AuditEvent.objects.order_by("pk").values_list("action", flat=True)) == [
        "tenant.handed_over",
        "member.left",
    ]


def test_an_admin_makes_and_unmakes_no_owner(user: User, stranger: User) -> None:
    other = make.make_user()
    tenant = make.make_tenant(members={user: "admin", stranger: "owner", other: "member"})
    for do in (
        lambda: members.change_role(tenant=tenant, user_id=user.pk, role="owner", actor=act(user)),
        lambda: members.change_role(tenant=tenant, user_id=stranger.pk, role="viewer", actor=act(user)),
        lambda: members.change_role(tenant=tenant, user_id=other.pk, role="owner", actor=act(user)),
        lambda: members.remove(tenant=tenant, user_id=stranger.pk, actor=act(user)),
        lambda: invitations.invite(tenant=tenant, email="new@example.test", role="owner", actor=act(user)),
    ):
        with pytest.raises(NotAllowed):
            do()


def test_a_personal_tenant_is_left_shared_and_renamed_by_nobody(user: User, tenant: Tenant) -> None:
    for do in (
        lambda: members.leave(tenant=tenant, actor=act(user)),
        lambda: members.rename(tenant=tenant, name="Mine", actor=act(user)),
        lambda: invitations.invite(tenant=tenant, email="new@example.test", role="member", actor=act(user)),
    ):
        with pytest.raises(DomainError) as refused:
            do()
        assert refused.value.code == "personal_tenant"


@pytest.mark.postgres
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite lets one writer in at a time")
@pytest.mark.django_db(transaction=True)
def test_two_owners_who_leave_at_once_do_not_both_go() -> None:
    first, second = make.make_user(), make.make_user()
    tenant = make.make_tenant(members={first: "owner", second: "owner"})
    start, refused = threading.Barrier(2), []

    def go(user: User) -> None:
        try:
            start.wait()
            members.leave(tenant=tenant, actor=act(user))
        except DomainError as error:
            refused.append(error.code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=go, args=[user]) for user in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (connection.vendor, refused) == ("postgresql", ["last_owner"])
    assert tenant.memberships.count() == 1


# --- what ends with a membership --------------------------------------------------------------------------------------


def test_who_is_removed_loses_tokens_keys_and_sight_at_once(
    user: User, stranger: User, told: list[dict[str, Any]], django_capture_on_commit_callbacks: Any
) -> None:  # case A11
    tenant = make.make_tenant(members={user: "owner", stranger: "admin"})
    make.make_key(stranger)
    token = ApiClient(make.make_token(stranger, tenant=tenant)[1])
    elsewhere = ApiClient(make.make_token(stranger)[1])
    assert token.get("leases").status_code == 200
    with django_capture_on_commit_callbacks(execute=True):
        members.remove(tenant=tenant, user_id=stranger.pk, actor=act(user))
    assert token.get("leases").status_code == 401
    assert elsewhere.get("leases").status_code == 200
    assert [said["tenant_ids"] for said in told if "tenant_ids" in said] == [[tenant.pk]]
    assert [said["tenant_id"] for said in told if "tenant_id" in said] == [tenant.pk]
    Membership.objects.create(tenant=tenant, user=stranger)
    assert token.get("leases").status_code == 401, "coming back brings no old token back"


def test_the_nodes_of_a_tenant_are_woken_when_a_member_goes(
    user: User, stranger: User, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "member"})
    lease = make.make_lease(tenant)
    make.make_lease(make.tenant_of(user))
    woken: list[str] = []
    monkeypatch.setattr("nodes.broker.wake", lambda *, node_id, lease_id: woken.append(lease_id))
    with django_capture_on_commit_callbacks(execute=True):
        members.remove(tenant=tenant, user_id=stranger.pk, actor=act(user))
    assert woken == [lease.pk]


def test_offers_of_who_may_not_make_them_any_more_are_withdrawn(user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "owner"})
    as_owner = make_invitation(tenant, "a@example.test", role="owner", invited_by=stranger)
    as_member = make_invitation(tenant, "b@example.test", role="member", invited_by=stranger)
    members.change_role(tenant=tenant, user_id=stranger.pk, role="admin", actor=act(user))
    as_owner.refresh_from_db()
    as_member.refresh_from_db()
    assert (as_owner.state, as_member.state) == (Invitation.State.WITHDRAWN, Invitation.State.OPEN)
    members.remove(tenant=tenant, user_id=stranger.pk, actor=act(user))
    as_member.refresh_from_db()
    assert as_member.state == Invitation.State.WITHDRAWN


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_person_creates_an_organisation_switches_and_sees_its_leases(page: Client, user: User) -> None:
    page.post(reverse("tenants"), {"name": "  Northwind   Labs "})
    tenant = Tenant.objects.get(kind="organisation")
    assert (tenant.name, role_of(user, tenant)) == ("Northwind Labs", Role.OWNER)
    lease = make.make_lease(tenant, name="of-the-organisation")
    assert lease.name in page.get(reverse("leases")).content.decode()
    home = make.tenant_of(user)
    assert page.post(reverse("tenant-switch"), {"tenant": home.pk})["Location"] == reverse("leases")
    assert lease.name not in page.get(reverse("leases")).content.decode()
    assert page.post(reverse("tenant-switch"), {"tenant": tenant.pk, "next": "//evil.test/"})["Location"] == "/leases/"


def test_a_chosen_tenant_one_has_left_gives_way_to_the_personal_one(page: Client, user: User, stranger: User) -> None:
    tenant = make.make_tenant("Northwind", members={stranger: "owner", user: "member"})
    page.post(reverse("tenant-switch"), {"tenant": tenant.pk})
    members.remove(tenant=tenant, user_id=user.pk, actor=act(stranger))
    assert "Northwind" not in page.get(reverse("leases"), follow=True).content.decode().partition("toasts")[2]
    assert page.get(reverse("tenant", args=[tenant.pk])).status_code == 404


def test_nobody_switches_to_a_tenant_of_others(page: Client, stranger: User) -> None:
    foreign = make.make_tenant(members={stranger: "owner"})
    assert page.post(reverse("tenant-switch"), {"tenant": foreign.pk}).status_code == 404


@pytest.mark.parametrize("role", list(Role))
def test_the_members_page_offers_what_the_role_may(page: Client, user: User, stranger: User, role: Role) -> None:
    tenant = make.make_tenant(members={stranger: "owner", user: role})
    make_invitation(tenant, "guest@example.test")
    text = page.get(reverse("tenant", args=[tenant.pk])).content.decode()
    assert stranger.email in text
    leads = roles.may(role, Act.INVITE)
    assert ("guest@example.test" in text) is leads
    assert (reverse("tenant-invite", args=[tenant.pk]) in text) is leads
    assert (reverse("tenant-member-remove", args=[tenant.pk, stranger.pk]) in text) is (role == Role.OWNER)
    assert (reverse("tenant-hand-over", args=[tenant.pk]) in text) is (role == Role.OWNER)


def test_the_members_page_needs_the_same_queries_for_any_number_of_members(
    page: Client, user: User, django_assert_num_queries: Any
) -> None:
    tenant = make.make_tenant(members={user: "owner"})
    address = reverse("tenant", args=[tenant.pk])
    page.get(address)
    with django_assert_num_queries(6) as few:
        page.get(address)
    for _ in range(5):
        Membership.objects.create(tenant=tenant, user=make.make_user())
        make_invitation(tenant, make.make_user().email, invited_by=user)
    with django_assert_num_queries(len(few)):
        page.get(address)


def test_a_role_is_changed_and_a_member_removed_on_the_page(page: Client, user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner", stranger: "member"})
    page.post(reverse("tenant-member-role", args=[tenant.pk, stranger.pk]), {"role": "billing"})
    assert role_of(stranger, tenant) == Role.BILLING
    question = reverse("tenant-member-remove", args=[tenant.pk, stranger.pk])
    assert stranger.email in page.get(question).content.decode()
    page.post(question)
    assert role_of(stranger, tenant) is None


def test_only_who_may_leave_is_offered_it_and_the_only_owner_reads_what_to_do(page: Client, user: User) -> None:
    other = make.make_user()
    tenant = make.make_tenant(members={user: "owner", other: "admin"})
    address, leave = reverse("tenant", args=[tenant.pk]), reverse("tenant-leave", args=[tenant.pk])
    text = page.get(address).content.decode()
    assert leave not in text
    assert "hand the organisation over first, or delete it" in text
    assert f"Role of {user.email}" not in text  # giving it up is refused as well
    assert '<form method="post" action="' + leave not in page.get(leave).content.decode()
    other.is_active = False
    other.save(update_fields=["is_active"])
    text = page.get(address).content.decode()
    assert reverse("tenant-hand-over", args=[tenant.pk]) not in text
    assert "invite somebody who takes it over" in text
    other.is_active = True
    other.save(update_fields=["is_active"])
    Membership.objects.filter(user=other).update(role=Role.OWNER)
    text = page.get(address).content.decode()
    assert leave in text
    assert "only owner" not in text
    assert page.get(leave).status_code == 200
    assert page.get(reverse("tenant-leave", args=[make.tenant_of(user).pk])).status_code == 404


# --- suspension -------------------------------------------------------------------------------------------------------


def test_a_suspended_tenant_is_told_orders_nothing_and_is_restored(
    page: Client, user: User, tenant: Tenant, mailoutbox: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    heard: list[tuple[str, str]] = []

    def suspended(*, tenant_id: str, **_: Any) -> None:
        heard.append(("suspended", tenant_id))

    def restored(*, tenant_id: str, **_: Any) -> None:
        heard.append(("restored", tenant_id))

    signals.tenant_suspended.connect(suspended)
    signals.tenant_restored.connect(restored)
    operator = Actor.system("tests")
    with django_capture_on_commit_callbacks(execute=True):
        suspension.suspend(tenant=tenant, reason="A payment was  charged back.", actor=operator)
        suspension.suspend(tenant=tenant, reason="again", actor=operator)
    text = page.get(reverse("leases")).content.decode()
    assert "A payment was charged back." in text
    with django_capture_on_commit_callbacks(execute=True):
        suspension.restore(tenant=tenant, actor=operator)
        suspension.restore(tenant=tenant, actor=operator)
    assert "charged back" not in page.get(reverse("leases")).content.decode()
    assert heard == [("suspended", tenant.pk), ("restored", tenant.pk)]
    actions = AuditEvent.objects.filter(action__startswith="tenant.").order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["tenant.suspended", "tenant.restored"]


def test_nobody_finds_a_stranger_among_the_members(user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={user: "owner"})
    for do in (
        lambda: members.member(tenant=tenant, user_id=stranger.pk),
        lambda: members.rename(tenant=tenant, name="Mine", actor=act(stranger)),
        lambda: members.leave(tenant=tenant, actor=act(stranger)),
    ):
        with pytest.raises(NotFound):
            do()

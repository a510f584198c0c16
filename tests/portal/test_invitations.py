"""Invitations: the mail, its link, accepting by address or by an explicit word, once and in time."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone, translation

from portal import invitation_links, invitations, mail_tasks, suspension
from portal.actor import Actor
from portal.errors import DomainError, InvalidInput, NotFound, TooManyRequests
from portal.models import AuditEvent, Invitation, Membership, Tenant, User
from tests import make
from tests.matrix_tenants import make_invitation

if TYPE_CHECKING:
    import time_machine

pytestmark = pytest.mark.django_db


@pytest.fixture
def northwind(user: User) -> Tenant:
    """An organisation of the user."""
    return make.make_tenant("Northwind", members={user: "owner"})


def invited(tenant: Tenant, user: User, email: str, role: str = "member") -> Invitation:
    """Invite, and send the mail as the worker does."""
    row = invitations.invite(tenant=tenant, email=email, role=role, actor=Actor.of_user(user))
    mail_tasks.send_invitation(row.pk)
    return row


def path_in_mail() -> str:
    """The path of the link in the last mail."""
    found = re.search(r"https?://[^/\s]+(/invitations/\S+)", str(mail.outbox[-1].body))
    assert found, mail.outbox[-1].body
    return found[1]


def browser(user: User) -> Client:
    """Signed in."""
    client = Client()
    client.force_login(user)
    return client


def test_somebody_without_an_account_signs_up_and_lands_back_at_the_invitation(northwind: Tenant, user: User) -> None:
    invited(northwind, user, " Guest@Example.test ", "billing")
    client = Client()
    shown = client.get(path_in_mail(), follow=True)
    text = shown.content.decode()
    assert shown.request["PATH_INFO"] == reverse("invitation")
    assert "Northwind" in text
    sign_up = re.search(rf'href="({reverse("account_signup")}\?next[^"]*)"', text)
    assert sign_up
    assert 'value="guest@example.test"' in client.get(sign_up[1].replace("&amp;", "&")).content.decode()
    body = {"email": "guest@example.test", "password1": make.PASSWORD, "password2": make.PASSWORD}
    client.post(reverse("account_signup"), body)
    confirm = re.search(r"https?://[^/\s]+(/account/\S+)", str(mail.outbox[-1].body))
    assert confirm
    client.post(confirm[1])
    back = client.post(reverse("account_login"), {"login": "guest@example.test", "password": make.PASSWORD})
    assert back["Location"] == reverse("invitation")
    row = Invitation.objects.get()
    assert f'action="{reverse("invitation-accept", args=[row.pk])}"' in client.get(back["Location"]).content.decode()
    assert client.post(reverse("invitation-accept", args=[row.pk]))["Location"] == reverse("leases")
    member = Membership.objects.get(tenant=northwind, user__email="guest@example.test")
    assert member.role == "billing"
    assert client.session["tenant"] == northwind.pk
    told = AuditEvent.objects.filter(tenant=northwind).order_by("pk").values_list("action", flat=True)
    assert [action for action in told if action.startswith("invitation")] == ["invitation.sent", "invitation.accepted"]


def test_opening_the_link_changes_nothing_and_shows_no_token_in_the_address(northwind: Tenant, user: User) -> None:
    invited(northwind, user, "guest@example.test")
    answer = Client().get(path_in_mail())
    assert answer["Location"] == reverse("invitation")
    assert "no-store" in answer["Cache-Control"]
    assert Invitation.objects.get().state == Invitation.State.OPEN


def test_another_account_has_to_say_that_it_shall_join(northwind: Tenant, user: User, stranger: User) -> None:
    row = invited(northwind, user, "guest@example.test")
    client = browser(stranger)
    client.get(path_in_mail())
    accept = reverse("invitation-accept", args=[row.pk])
    refused = client.post(accept)
    assert refused.status_code == 400
    assert stranger.email in refused.content.decode()
    assert not Membership.objects.filter(tenant=northwind, user=stranger).exists()
    client.post(accept, {"as_this_account": "yes"})
    assert Membership.objects.filter(tenant=northwind, user=stranger, role="member").exists()


def test_without_the_link_only_a_verified_address_joins(northwind: Tenant, user: User, stranger: User) -> None:
    row = invited(northwind, user, "guest@example.test")
    unproved = EmailAddress.objects.create(user=stranger, email="guest@example.test", verified=False)
    accept = reverse("invitation-accept", args=[row.pk])
    assert browser(stranger).post(accept, {"as_this_account": "yes"}).status_code == 404
    with pytest.raises(NotFound):
        invitations.accept(invitation=row, actor=Actor.of_user(stranger))
    unproved.verified = True
    unproved.save(update_fields=["verified"])
    waiting = browser(stranger).get(reverse("tenants")).content.decode()
    assert accept in waiting
    assert browser(stranger).post(accept).status_code == 302
    assert Membership.objects.filter(tenant=northwind, user=stranger).exists()


def test_a_link_works_once(northwind: Tenant, user: User, stranger: User) -> None:
    row = invited(northwind, user, stranger.email)
    path = path_in_mail()
    browser(stranger).post(reverse("invitation-accept", args=[row.pk]))
    Membership.objects.filter(user=stranger, tenant=northwind).delete()
    client = browser(stranger)
    assert "opens nothing any more" in client.get(path, follow=True).content.decode()
    assert client.post(reverse("invitation-accept", args=[row.pk])).status_code == 404


def test_a_link_ends_after_seven_days_and_with_a_newer_mail(
    northwind: Tenant, user: User, time_machine: time_machine.TimeMachineFixture
) -> None:
    row = invited(northwind, user, "guest@example.test")
    first = path_in_mail()
    again = invitations.resend(invitation=row, actor=Actor.of_user(user))
    mail_tasks.send_invitation(again.pk)
    second = path_in_mail()
    assert "opens nothing any more" in Client().get(first, follow=True).content.decode()
    assert "Northwind invites you" in Client().get(second, follow=True).content.decode()
    time_machine.move_to(timezone.now() + timedelta(days=7, seconds=1))
    assert "opens nothing any more" in Client().get(second, follow=True).content.decode()


@pytest.mark.parametrize("token", ["us-1", "iv-x.1.forged", "iv-x", "", "iv-x.1." + "A" * 300, "%00"])
def test_a_forged_link_opens_nothing(token: str) -> None:
    assert invitation_links.read(token) is None


def test_a_changed_link_opens_nothing(northwind: Tenant, user: User) -> None:
    row, other = invited(northwind, user, "a@example.test"), invited(northwind, user, "b@example.test")
    token = invitation_links.token_of(row)
    assert invitation_links.read(token) == row
    assert invitation_links.read(token.replace(row.pk, other.pk)) is None


def test_a_withdrawn_and_a_declined_one_open_nothing(northwind: Tenant, user: User, stranger: User) -> None:
    row = invited(northwind, user, "guest@example.test")
    path = path_in_mail()
    invitations.withdraw(invitation=row, actor=Actor.of_user(user))
    assert "opens nothing any more" in Client().get(path, follow=True).content.decode()
    other = invited(northwind, user, stranger.email)
    client = browser(stranger)
    client.post(reverse("invitation-decline", args=[other.pk]))
    other.refresh_from_db()
    assert other.state == Invitation.State.DECLINED
    assert client.post(reverse("invitation-accept", args=[other.pk])).status_code == 404


def test_who_is_a_member_already_keeps_the_role(northwind: Tenant, user: User, stranger: User) -> None:
    row = invited(northwind, user, stranger.email, "viewer")
    Membership.objects.create(tenant=northwind, user=stranger, role="admin")
    joined = invitations.accept(invitation=row, actor=Actor.of_user(stranger))
    assert joined.role == "admin"


def test_one_open_invitation_per_address_and_an_old_one_gives_way(
    northwind: Tenant, user: User, stranger: User
) -> None:
    actor = Actor.of_user(user)
    invited(northwind, user, "guest@example.test")
    Membership.objects.create(tenant=northwind, user=stranger)
    for email, code in (("GUEST@example.test", "already_invited"), (stranger.email.upper(), "already_member")):
        with pytest.raises(DomainError) as refused:
            invitations.invite(tenant=northwind, email=email, role="member", actor=actor)
        assert refused.value.code == code
    Invitation.objects.update(expires_at=timezone.now())
    invitations.invite(tenant=northwind, email="guest@example.test", role="member", actor=actor)
    assert list(Invitation.objects.order_by("pk").values_list("state", flat=True).distinct()) in (
        ["withdrawn", "open"],
        ["open", "withdrawn"],
    )


@pytest.mark.parametrize(
    "email", ["", "x", "a@b", "a b@example.test", "a@example.test\nBcc: b@example.test", "x" * 300]
)
def test_an_address_that_is_none_is_refused_by_its_field(northwind: Tenant, user: User, email: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        invitations.invite(tenant=northwind, email=email, role="member", actor=Actor.of_user(user))
    assert "email" in refused.value.errors


def test_a_suspended_organisation_invites_nobody(northwind: Tenant, user: User) -> None:
    Tenant.objects.filter(pk=northwind.pk).update(suspended_at=timezone.now())
    with pytest.raises(DomainError) as refused:
        invitations.invite(tenant=northwind, email="a@example.test", role="member", actor=Actor.of_user(user))
    assert refused.value.code == "tenant_suspended"


def test_an_address_is_not_mailed_without_end(northwind: Tenant, user: User) -> None:  # case H12
    row = invited(northwind, user, "guest@example.test")
    for _ in range(4):
        row = invitations.resend(invitation=row, actor=Actor.of_user(user))
    with pytest.raises(TooManyRequests):
        invitations.resend(invitation=row, actor=Actor.of_user(user))
    assert row.round == 5


# --- the mail ---------------------------------------------------------------------------------------------------------


def test_the_mail_is_sent_once_per_round_however_often_the_task_runs(northwind: Tenant, user: User) -> None:
    row = invited(northwind, user, "guest@example.test")
    mail_tasks.send_invitation(row.pk)
    assert len(mail.outbox) == 1
    assert "Northwind" in mail.outbox[0].subject
    assert user.email in str(mail.outbox[0].body)
    assert mail.outbox[0].to == ["guest@example.test"]


def test_a_mail_that_was_refused_or_lost_is_queued_again(
    northwind: Tenant, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as broken:
        broken.setattr("portal.mails.send", refuse)
        row = invited(northwind, user, "guest@example.test")
    assert not mail.outbox
    queued: list[str] = []
    monkeypatch.setattr(mail_tasks, "enqueue", lambda task, pk: queued.append(pk))
    mail_tasks.sweep_invitations()
    assert queued == [row.pk]
    mail_tasks.send_invitation(row.pk)
    assert len(mail.outbox) == 1


def test_the_mail_speaks_the_language_of_who_reads_it_else_of_who_invites(northwind: Tenant, user: User) -> None:
    make.make_user("reader@example.test", language="zh-hans")
    spoken: list[str] = []

    def say(*_: Any) -> None:
        spoken.append(translation.get_language() or "")

    with translation.override("zh-hans"):
        first = invitations.invite(tenant=northwind, email="new@example.test", role="member", actor=Actor.of_user(user))
    second = invitations.invite(tenant=northwind, email="reader@example.test", role="member", actor=Actor.of_user(user))
    third = invitations.invite(tenant=northwind, email="other@example.test", role="member", actor=Actor.of_user(user))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("portal.mails.send", say)
        for row in (first, second, third):
            mail_tasks.send_invitation(row.pk)
    assert spoken == ["zh-hans", "zh-hans", "en"]


def test_the_language_is_kept_when_somebody_signs_up_or_switches() -> None:
    client = Client(headers={"Accept-Language": "zh-CN,zh;q=0.9"})
    body = {"email": "kim@example.test", "password1": make.PASSWORD, "password2": make.PASSWORD}
    client.post(reverse("account_signup"), body)
    kim = User.objects.get(email="kim@example.test")
    assert kim.language == "zh-hans"
    client = browser(kim)
    client.post(reverse("set_language"), {"language": "en", "next": "/"})
    kim.refresh_from_db()
    assert kim.language == "en"
    client.post(reverse("set_language"), {"language": "xx", "next": "/"})
    kim.refresh_from_db()
    assert kim.language == "en"
    assert Client().post(reverse("set_language"), {"language": "zh-hans", "next": "/"}).status_code == 302


def test_those_who_lead_or_pay_are_told_of_a_suspension_and_its_end(user: User, stranger: User) -> None:
    tenant = make.make_tenant("Northwind", members={user: "owner", stranger: "billing", make.make_user(): "member"})
    operator = Actor.system("tests")
    suspension.suspend(tenant=tenant, reason="Charged back.", actor=operator)
    mail_tasks.mail_standing(tenant.pk)
    mail_tasks.mail_standing(tenant.pk)  # a message that comes twice
    assert sorted(message.to[0] for message in mail.outbox) == sorted([user.email, stranger.email])
    assert all("Charged back." in str(message.body) for message in mail.outbox)
    suspension.restore(tenant=tenant, actor=operator)
    mail_tasks.mail_standing(tenant.pk)
    assert "may order again" in mail.outbox[-1].subject


def test_a_mail_about_a_suspension_is_late_but_not_lost_without_a_broker(
    user: User, stranger: User, monkeypatch: pytest.MonkeyPatch, time_machine: time_machine.TimeMachineFixture
) -> None:
    tenant = make.make_tenant("Northwind", members={user: "owner", stranger: "billing"})
    suspension.suspend(tenant=tenant, reason="Charged back.", actor=Actor.system("tests"))  # nothing was published
    queued: list[str] = []
    monkeypatch.setattr(mail_tasks, "enqueue", lambda task, pk: queued.append(pk))
    mail_tasks.sweep_standing()
    assert queued == [tenant.pk]
    mail_tasks.mail_standing(tenant.pk)
    mail_tasks.sweep_standing()
    assert (len(mail.outbox), len(queued)) == (2, 1)
    suspension.restore(tenant=tenant, actor=Actor.system("tests"))
    time_machine.move_to(timezone.now() + timedelta(hours=7))
    mail_tasks.sweep_standing()
    assert len(queued) == 1, "after hours the news is old"


def refuse_mail(*_: Any) -> None:
    """A mail server that takes nothing."""
    raise ConnectionRefusedError


def test_an_invitation_made_elsewhere_is_no_invitation_here(northwind: Tenant, user: User) -> None:
    foreign = make_invitation(make.make_tenant("Elsewhere"), "guest@example.test")
    address = reverse("tenant-invitation-withdraw", args=[northwind.pk, foreign.pk])
    assert browser(user).post(address).status_code == 404

"""Mails no row of their own remembers as due: they arrive once, also when the mail server or the broker was away."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from allauth.mfa.models import Authenticator
from django.core import mail
from django.core.mail import EmailMultiAlternatives
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal import deletion, mail_tasks, mails, owed_mails, suspension, token_use
from portal.actor import Actor
from portal.mails import Mail
from portal.models import OwedMail
from portal.organisation_deletion import delete_organisation
from tests import make
from tests.portal.second_factor import confirm_password, log_in, with_app

if TYPE_CHECKING:
    from collections.abc import Callable

    import time_machine

    from portal.models import User

pytestmark = pytest.mark.django_db


def deletes_an_organisation(user: User) -> None:
    """Somebody else deletes one that the user is in."""
    owner = make.make_user()
    tenant = make.make_tenant(members={owner: "owner", user: "member"})
    delete_organisation(tenant=tenant, name=tenant.name, actor=Actor.of_user(owner))


def deletes_the_account(user: User) -> None:
    """The user goes for good."""
    deletion.delete_account(user=user, actor=Actor.of_user(user))


def loses_the_second_factor(user: User) -> None:
    """An operator takes it away."""
    with_app(user)
    call_command("remove_second_factor", user.email)


def uses_a_token_elsewhere(user: User) -> None:
    """A program calls from another network."""
    token, _ = make.make_token(user, last_used_at=timezone.now(), last_used_ip="198.51.100.7")
    token_use.note(token, "203.0.113.5")


def removes_a_passkey(user: User) -> None:
    """On the page of security."""
    browser = Client()
    log_in(browser, user)
    confirm_password(browser)
    key = Authenticator.objects.create(user=user, type="webauthn", data={"name": "laptop"})
    assert browser.post(reverse("mfa_remove_webauthn", args=[key.pk])).status_code == 302


def changes_the_password(user: User) -> None:
    """On its page."""
    browser = Client()
    log_in(browser, user)
    form = {"oldpassword": make.PASSWORD, "password1": "another-long-one-7", "password2": "another-long-one-7"}
    assert browser.post(reverse("account_change_password"), form).status_code == 302


def is_suspended(user: User) -> None:
    """With the personal tenant."""
    tenant = suspension.suspend(tenant=make.tenant_of(user), reason="Charged back.", actor=Actor.system("tests"))
    mail_tasks.mail_standing(tenant.pk)


EVENTS = [
    (deletes_an_organisation, "Northwind was deleted"),
    (deletes_the_account, "Your account is deleted"),
    (loses_the_second_factor, "Your second factor was removed"),
    (uses_a_token_elsewhere, "was used from a new place"),
    (removes_a_passkey, "passkey"),
    (changes_the_password, "password was changed"),
    (is_suspended, "is suspended"),
]


def refuse(*_: Any, **__: Any) -> int:
    """A mail server that is not there."""
    raise ConnectionRefusedError


def owe(subject: str = "Hello") -> None:
    """Owe one mail."""
    owed_mails.owe(mails.written("kim@example.test", "en", lambda: Mail(subject, "A word.", "https://x.test/", "Look")))


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of mails that the worker was asked to send; nobody does."""
    found: list[str] = []
    monkeypatch.setattr(owed_mails, "enqueue", lambda task, pk: found.append(pk))
    return found


@pytest.mark.parametrize(("happens", "subject"), EVENTS)
def test_what_a_mail_server_refuses_arrives_later_in_the_same_words(
    user: User,
    happens: Callable[[User], None],
    subject: str,
    monkeypatch: pytest.MonkeyPatch,
    time_machine: time_machine.TimeMachineFixture,
) -> None:
    address = user.email
    with monkeypatch.context() as broken:
        broken.setattr(EmailMultiAlternatives, "send", refuse)
        happens(user)
    assert mail.outbox == []
    owed_mails.sweep_owed()
    assert mail.outbox == [], "a mail that a worker may be about to send is left to it"
    time_machine.move_to(timezone.now() + timedelta(minutes=5))
    for _ in range(2):
        owed_mails.sweep_owed()
    (message,) = mail.outbox
    assert message.to == [address]
    assert subject in message.subject
    assert not OwedMail.objects.exists()


def test_a_message_that_comes_twice_sends_one_mail_as_it_was_written(queued: list[str]) -> None:
    owe("Hello\nthere")
    for _ in range(2):
        owed_mails.send_owed(queued[0])
    (message,) = mail.outbox
    assert message.subject == "Hello there"
    assert isinstance(message, EmailMultiAlternatives)
    assert "https://x.test/" in str(message.body)
    assert "https://x.test/" in str(message.alternatives[0][0])


def test_a_mail_that_another_worker_has_in_hand_is_not_sent_again(
    queued: list[str], time_machine: time_machine.TimeMachineFixture
) -> None:
    owe()
    OwedMail.objects.update(in_hand_at=timezone.now())
    time_machine.move_to(timezone.now() + timedelta(hours=1))
    owed_mails.sweep_owed()
    assert len(queued) == 1
    owed_mails.send_owed(queued[0])
    assert mail.outbox == []


def test_after_hours_a_mail_is_given_up_and_nothing_of_it_is_kept(
    queued: list[str], time_machine: time_machine.TimeMachineFixture, caplog: pytest.LogCaptureFixture
) -> None:
    owe()
    time_machine.move_to(timezone.now() + timedelta(hours=7))
    owed_mails.sweep_owed()
    assert not OwedMail.objects.exists()
    assert "1 mails given up" in caplog.text
    assert "kim@example.test" not in caplog.text


def test_what_did_not_happen_is_not_told(queued: list[str]) -> None:
    def fail() -> None:
        with transaction.atomic():
            owe()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not OwedMail.objects.exists()


def test_mails_whose_links_open_something_are_kept_nowhere(user: User, queued: list[str]) -> None:
    form = {"email": "kim@example.test", "password1": make.PASSWORD, "password2": make.PASSWORD}
    Client().post(reverse("account_signup"), form)
    Client().post(reverse("account_reset_password"), {"email": user.email})
    assert len(mail.outbox) == 2
    assert queued == []
    assert not OwedMail.objects.exists()

"""Warnings: given once, mailed once, told to terminals, taken back."""

from __future__ import annotations

from smtplib import SMTPException
from typing import Any

import pytest
from django.core.mail import EmailMultiAlternatives
from django.test import TestCase
from django.utils import timezone
from django.utils.translation import gettext

from nodes.models import Node
from portal.actor import Actor
from portal.mails import Mail
from portal.models import Membership, Tenant, User
from rental import desired, live, notices
from rental.models import Lease, LeaseEvent, LeaseNotice
from rental.notice_words import Words
from tests import make
from tests.rental.factories import running

pytestmark = pytest.mark.django_db
ACTOR = Actor.system("test")


@pytest.fixture(autouse=True)
def _a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(lease: Lease, data: dict[str, Any]) -> Mail:
        return Mail(f"{gettext('Balance')} {data['n']}", "text", url=notices.page_url("lease", lease), label="Open")

    monkeypatch.setattr(notices, "WORDS", {"try": Words(lambda _, data: f"line {data['n']}", write)})


@pytest.fixture
def lease(renter: User, tenant: Tenant, node: Node) -> Lease:
    return running(renter, tenant)


def tell(lease: Lease, number: int = 1) -> LeaseNotice | None:
    return notices.tell(lease=lease, kind="try", key=f"try:{number}", actor=ACTOR, data={"n": number})


def test_a_warning_is_given_once_and_stands_in_the_history(lease: Lease, mailoutbox: list[Any]) -> None:
    with TestCase.captureOnCommitCallbacks(execute=False):
        assert tell(lease) is not None
        assert tell(lease) is None
    assert LeaseEvent.objects.filter(lease=lease, code="try").count() == 1


def test_it_is_mailed_once_however_often_the_task_runs_in_the_readers_language(  # case I02
    lease: Lease, mailoutbox: list[EmailMultiAlternatives]
) -> None:
    User.objects.update(language="zh-hans")
    notice = tell(lease)
    assert notice is not None
    assert notices.mail(notice_id=str(notice.pk))
    assert not notices.mail(notice_id=str(notice.pk))
    (mail,) = mailoutbox
    assert mail.to == [lease.created_by.email] if lease.created_by else False
    assert mail.subject == "余额 1"
    assert f"/leases/{lease.pk}" in str(mail.body)
    assert "<html" in str(mail.alternatives[0][0])


def test_a_mail_server_that_refuses_is_asked_again_by_the_sweep(
    lease: Lease, mailoutbox: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = tell(lease)
    assert notice is not None
    with monkeypatch.context() as away:
        away.setattr(EmailMultiAlternatives, "send", lambda _: (_ for _ in ()).throw(SMTPException()))
        assert not notices.mail(notice_id=str(notice.pk))
    assert notices.unmailed(timezone.now()) == []
    assert notices.unmailed(timezone.now() + notices.MAIL_AGAIN_AFTER * 2) == [str(notice.pk)]
    assert notices.mail(notice_id=str(notice.pk))


def test_terminals_get_the_newest_few_and_forget_what_was_taken_back(lease: Lease, node: Node) -> None:
    for number in range(1, 8):
        tell(lease, number)
    (word,) = desired.desired_leases(node)
    assert [told["text"] for told in word["notices"]] == [f"line {number}" for number in range(3, 8)]
    assert notices.take_back(lease=lease, prefix="try:") == 7
    assert desired.desired_leases(node)[0]["notices"] == []


def test_open_pages_are_told_of_what_was_taken_back_once(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    tell(lease)
    monkeypatch.setattr(live, "publish", lambda of: told.append(of.pk))
    assert notices.take_back(lease=lease, prefix="try:") == 1
    assert told == [lease.pk]
    assert notices.take_back(lease=lease, prefix="try:") == 0
    assert told == [lease.pk]


def test_the_owners_are_told_when_who_ordered_has_left(lease: Lease) -> None:
    other = make.make_user("owner@example.com")
    Membership.objects.create(tenant=lease.tenant, user=other, role=Membership.Role.OWNER)
    assert notices.readers(lease) == [lease.created_by]
    Membership.objects.filter(tenant=lease.tenant, user=lease.created_by).update(role=Membership.Role.VIEWER)
    assert notices.readers(lease) == [other]

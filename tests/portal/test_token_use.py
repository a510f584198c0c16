"""When and where tokens are used, and the mails about it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal import mail_tasks, token_use, tokens
from portal.actor import Actor
from portal.models import ApiToken, TokenPlace
from tests import make

if TYPE_CHECKING:
    import time_machine
    from pytest_django import DjangoAssertNumQueries

    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


def use(secret: str, ip: str) -> int:
    """Call the API from an address; the status."""
    return Client(REMOTE_ADDR=ip, headers={"Authorization": f"Bearer {secret}"}).get("/api/v1/me").status_code


def create(user: User, tenant: Tenant, ip: str) -> tuple[ApiToken, str]:
    """A token made in a browser at an address."""
    actor = Actor(label=user.email, user=user, ip=ip)
    return tokens.create_token(
        user=user, tenant=tenant, name="ci", scopes=["leases:read"], expires_at=None, actor=actor
    )


def test_the_first_use_from_a_new_place_is_told_and_later_ones_are_not(user: User, tenant: Tenant) -> None:
    _, secret = create(user, tenant, "198.51.100.7")
    for ip in ("198.51.100.200", "203.0.113.5", "203.0.113.99", "198.51.100.7", "203.0.113.5"):
        assert use(secret, ip) == 200
    assert [message.to for message in mail.outbox] == [[user.email]]
    for ip in ("2001:db8:1:2::1", "2001:db8:1:ffff::1", "2001:db8:2::1"):
        use(secret, ip)
    assert len(mail.outbox) == 3


def test_places_are_kept_as_keyed_digests(user: User, tenant: Tenant) -> None:
    first, secret = create(user, tenant, "198.51.100.7")
    second, _ = create(user, tenant, "198.51.100.7")
    use(secret, "203.0.113.5")
    stored = repr(list(TokenPlace.objects.values()))
    assert "203.0.113" not in stored
    assert "198.51.100" not in stored
    digests = [TokenPlace.objects.filter(token=token).order_by("pk")[0].digest for token in (first, second)]
    assert digests[0] != digests[1], "one network of two tokens cannot be told to be one"


def test_time_and_address_are_written_at_most_once_a_minute(
    user: User,
    tenant: Tenant,
    django_assert_num_queries: DjangoAssertNumQueries,
    time_machine: time_machine.TimeMachineFixture,
) -> None:
    start = timezone.now()
    time_machine.move_to(start, tick=False)
    token, _secret = create(user, tenant, "198.51.100.7")
    token_use.note(token, "198.51.100.7")
    assert (token.last_used_at, token.last_used_ip) == (start, "198.51.100.7")
    time_machine.move_to(start + timedelta(seconds=59), tick=False)
    with django_assert_num_queries(0):
        token_use.note(token, "198.51.100.8")
    time_machine.move_to(start + timedelta(seconds=61), tick=False)
    with django_assert_num_queries(1):
        token_use.note(token, "198.51.100.8")
    token.refresh_from_db()
    assert token.last_used_ip == "198.51.100.8"


def test_a_token_that_travels_does_not_flood_its_owner(user: User, tenant: Tenant) -> None:
    _, secret = create(user, tenant, "198.51.100.7")
    for third in range(20):
        use(secret, f"203.0.{third}.5")
    assert len(mail.outbox) == 5


def test_the_mail_names_token_and_network_and_never_the_secret(user: User, tenant: Tenant) -> None:
    token, secret = create(user, tenant, "198.51.100.7")
    use(secret, "203.0.113.5")
    said = str(mail.outbox[0].body)
    assert mail.outbox[0].to == [user.email]
    assert "203.0.113.0/24" in said
    assert token.prefix in said
    assert secret not in said


def test_a_token_is_announced_a_week_before_it_ends_once(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    ending, _ = make.make_token(user, expires_at=now + timedelta(days=6), created_at=now - timedelta(days=24))
    make.make_token(user, expires_at=now + timedelta(days=8), created_at=now - timedelta(days=24))
    make.make_token(user, expires_at=now + timedelta(days=6), created_at=now)  # lives a week altogether
    make.make_token(user, expires_at=now + timedelta(days=6), created_at=now - timedelta(days=24), revoked_at=now)
    make.make_token(user)
    found: list[str] = []
    monkeypatch.setattr(mail_tasks, "enqueue", lambda task, pk: found.append(pk))
    mail_tasks.sweep_token_ends()
    assert found == [ending.pk]
    for _ in range(2):
        mail_tasks.mail_token_end(ending.pk)
    assert len(mail.outbox) == 1
    assert "ends soon" in mail.outbox[0].subject
    mail_tasks.sweep_token_ends()
    assert found == [ending.pk]


def test_a_mail_of_an_end_that_was_refused_is_tried_again(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    token, _ = make.make_token(user, expires_at=now + timedelta(days=6), created_at=now - timedelta(days=24))

    def refuse(*_: Any) -> None:
        raise ConnectionRefusedError

    with monkeypatch.context() as broken:
        broken.setattr("portal.mails.send", refuse)
        mail_tasks.mail_token_end(token.pk)
    token.refresh_from_db()
    assert token.expiry_told_at is None


def test_the_list_shows_where_a_token_was_used_last_and_when_it_ends(user: User, tenant: Tenant, page: Client) -> None:
    now = timezone.now()
    make.make_token(user, last_used_at=now, last_used_ip="203.0.113.5", expires_at=now + timedelta(days=3))
    make.make_token(user, expires_at=now - timedelta(days=3))
    text = page.get(reverse("api-tokens")).content.decode()
    assert "203.0.113.5" in text
    assert "ends soon" in text
    assert "expired" in text


def test_a_token_page_offers_several_lives(page: Client, user: User) -> None:
    body = {"name": "ci", "scopes": ["leases:read"], "ends": "7"}
    assert page.post(reverse("api-tokens"), body).status_code == 201
    token = ApiToken.objects.get(user=user)
    assert token.expires_at is not None
    assert timedelta(days=6, hours=23) < token.expires_at - timezone.now() <= timedelta(days=7)

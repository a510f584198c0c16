"""API tokens: shape, scopes, life and death."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from portal import token_use, tokens
from portal.actor import Actor
from portal.errors import InvalidInput, NotAllowed
from portal.models import ApiToken, AuditEvent, Membership, Tenant, User
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    import time_machine
    from pytest_django import DjangoAssertNumQueries


def test_a_secret_carries_its_mark_and_a_checksum() -> None:
    secret = tokens.new_secret()
    assert secret.startswith("lsr_")
    assert len(secret) == 42
    assert tokens.looks_right(secret)
    assert not tokens.looks_right(secret[:-1] + ("a" if secret[-1] != "a" else "b"))
    assert not tokens.looks_right(secret.upper())
    assert not tokens.looks_right("")
    assert not tokens.looks_right(secret + "x")
    assert tokens.new_secret() != secret


def test_a_mistyped_secret_costs_no_query(db: None, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    with django_assert_num_queries(0):
        assert tokens.find("lsr_" + "a" * 38) is None


def test_only_a_digest_is_stored(user: User, tenant: Tenant) -> None:
    token, secret = tokens.create_token(
        user=user, tenant=tenant, name="ci", scopes=["offers:read"], expires_at=None, actor=Actor.of_user(user)
    )
    assert tokens.find(secret) == token
    stored = ApiToken.objects.filter(pk=token.pk).values().get()
    assert secret not in str(stored)
    assert stored["prefix"] == secret[:12]
    assert secret not in str(list(AuditEvent.objects.values()))


def test_a_token_opens_the_api_until_it_is_revoked(user: User) -> None:
    token, secret = make.make_token(user)
    assert ApiClient(secret).get("me").status_code == 200
    tokens.revoke(token=token, actor=Actor.of_user(user))
    answer = ApiClient(secret).get("me")
    assert (answer.status_code, answer.json()["code"]) == (401, "token_invalid")
    assert answer["WWW-Authenticate"].startswith("Bearer")


def test_revoking_twice_leaves_one_audit_row(user: User) -> None:
    token, _ = make.make_token(user)
    for _i in range(2):
        tokens.revoke(token=token, actor=Actor.of_user(user))
    assert AuditEvent.objects.filter(action="token.revoked").count() == 1


def test_unknown_expired_revoked_and_orphaned_tokens_are_refused_alike(user: User, tenant: Tenant) -> None:  # case A11
    now = timezone.now()
    organisation = make.make_tenant(members={user: "member"})
    _, left = make.make_token(user, tenant=organisation)
    Membership.objects.filter(tenant=organisation).delete()
    _, of_inactive = make.make_token(make.make_user(is_active=False))
    secrets = [
        make.make_token(user, expires_at=now - timedelta(seconds=1))[1],
        make.make_token(user, revoked_at=now)[1],
        tokens.new_secret(),
        "lsr_nonsense",
        "",
        left,
        of_inactive,
    ]
    answers = [ApiClient(secret).get("me") for secret in secrets]
    assert [answer.status_code for answer in answers] == [401] * len(secrets)
    assert len({answer.content for answer in answers}) == 1


def test_a_token_works_in_its_own_tenant_only(user: User) -> None:
    organisation = make.make_tenant("Northwind", members={user: "admin"})
    _, secret = make.make_token(user, tenant=organisation)
    assert ApiClient(secret).get("me").json()["tenant"] == organisation.pk


def test_last_use_is_written_at_most_once_a_minute(
    user: User, time_machine: time_machine.TimeMachineFixture, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    start = timezone.now()
    time_machine.move_to(start, tick=False)
    token, secret = make.make_token(user)
    token_use.know(token, "127.0.0.1")
    client = ApiClient(secret)
    with django_assert_num_queries(3):  # the token, its place, this use
        client.get("me")
    time_machine.move_to(start + timedelta(seconds=59), tick=False)
    with django_assert_num_queries(1):
        client.get("me")
    token.refresh_from_db()
    assert token.last_used_at == start
    time_machine.move_to(start + timedelta(seconds=61), tick=False)
    client.get("me")
    token.refresh_from_db()
    assert token.last_used_at == start + timedelta(seconds=61)


def test_a_token_is_created_over_the_api_with_its_secret_shown_once(user: User) -> None:
    _, secret = make.make_token(user, scopes=["tokens:write", "tokens:read", "leases:read"])
    client = ApiClient(secret)
    answer = client.post("tokens", {"name": "child", "scopes": ["leases:read"]})
    assert answer.status_code == 201
    assert answer["Cache-Control"] == "no-store"
    made = answer.json()
    assert ApiClient(made["secret"]).get("me").json()["scopes"] == ["leases:read"]
    assert "secret" not in client.get(f"tokens/{made['id']}").json()
    assert made["secret"] not in client.get("tokens").content.decode()
    event = AuditEvent.objects.get(action="token.created")
    assert event.token is not None
    assert event.token.digest == tokens.digest(secret)


def test_a_token_cannot_create_one_with_more_than_its_own_scopes(user: User) -> None:
    _, secret = make.make_token(user, scopes=["tokens:write", "leases:read"])
    answer = ApiClient(secret).post("tokens", {"name": "child", "scopes": ["leases:read", "leases:write"]})
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
    assert answer.json()["scopes"] == ["leases:write"]
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"name": 7}, "name"),
        ({"scopes": []}, "scopes"),
        ({"scopes": ["everything"]}, "scopes"),
        ({"scopes": "leases:read"}, "scopes"),
        ({"expires_at": "2001-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"tenant": "tn-other"}, "tenant"),
        ({"digest": "0" * 64}, "digest"),
        ({"user": "us-other"}, "user"),
    ],
)
def test_a_wrong_field_is_named(api: ApiClient, change: dict[str, object], field: str) -> None:
    answer = api.post("tokens", {"name": "ci", "scopes": ["leases:read"], **change})
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field] or field in answer.json()["errors"]
    assert ApiToken.objects.count() == 1


def test_nobody_makes_a_token_for_a_tenant_they_are_not_in(user: User, stranger: User) -> None:
    with pytest.raises(NotAllowed):
        tokens.create_token(
            user=user,
            tenant=make.tenant_of(stranger),
            name="x",
            scopes=["leases:read"],
            expires_at=None,
            actor=Actor.of_user(user),
        )


def test_scopes_without_any_are_refused_with_the_list(user: User, tenant: Tenant) -> None:
    with pytest.raises(InvalidInput, match="leases:read"):
        tokens.create_token(user=user, tenant=tenant, name="x", scopes=[], expires_at=None, actor=Actor.of_user(user))

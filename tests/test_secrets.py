"""Markers through the main routes: a secret is in the one answer or mail that is meant to carry it, and nowhere else.

Looked through after each: the answer, every captured log line, every row of every table (sessions decoded), and what
was published to Redis (case H10).
"""

from __future__ import annotations

import base64
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.apps import apps
from django.contrib.sessions.models import Session
from django.core import mail
from django.test import Client
from django.urls import reverse

from portal import invitation_links, invitations, mail_tasks, queue
from portal.actor import Actor
from portal.celery import app
from portal.models import AuditEvent
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from portal.models import User

MARK = "zq7marker"
PASSWORD = f"{MARK} correct horse 9"
PRIVATE = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{MARK}\n-----END OPENSSH PRIVATE KEY-----"


def database() -> str:
    """Every row there is, sessions in clear."""
    rows = [repr(list(model._base_manager.values_list())) for model in apps.get_models()]
    sessions = [repr(session.get_decoded()) for session in Session.objects.all()]
    return "\n".join([*rows, *sessions])


@pytest.fixture
def nowhere(caplog: pytest.LogCaptureFixture) -> Callable[..., None]:
    """Fails when the secret is in a log line, a row, or one of the answers given."""
    caplog.set_level(logging.INFO)

    def look(secret: str, *answers: Any) -> None:
        for answer in answers:
            told = answer.content.decode() + repr(dict(answer.headers)) + answer.cookies.output()
            assert secret not in told
        assert secret not in caplog.text
        assert secret not in database()

    return look


pytestmark = pytest.mark.django_db


def browser(user: User | None = None) -> Client:
    """Signed in or not; a server error is an answer, as in production."""
    client = Client(raise_request_exception=False)
    if user is not None:
        client.force_login(user)
    return client


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Bearer {}", "bearer {} {}", "Basic {}", "{}"])
def test_a_wrong_token_is_repeated_nowhere(nowhere: Callable[..., None], db: None, header: str) -> None:  # case H10
    secret = f"lsr_{MARK}"
    client = Client(headers={"Authorization": header.format(secret, secret)})
    nowhere(MARK, client.get("/api/v1/me"), client.get("/api/node/v1/desired"), client.post("/api/v1/leases"))


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/v1/leases", "/api/v1/nothing-here", "/leases/", "/nothing-here"])
def test_a_token_in_the_address_is_repeated_nowhere(nowhere: Callable[..., None], user: User, path: str) -> None:
    # case H10
    secret = make.make_token(user)[1]
    answers = [browser().get(f"{path}?token={secret}"), ApiClient(secret).get(f"{path}?q={secret}")]
    nowhere(secret, *answers)
    if not path.startswith("/api/"):  # and to no other host
        for elsewhere in ("//elsewhere.test/", "/\\elsewhere.test/"):
            assert browser().get("/", {"token": secret}, PATH_INFO=elsewhere)["Location"] == "/"
        assert [answer["Location"] for answer in answers] == [path, path]


def test_a_new_token_is_in_one_answer_only(nowhere: Callable[..., None], user: User) -> None:  # case H10
    client = browser(user)
    created = client.post(reverse("api-tokens"), {"name": "ci", "scopes": ["leases:read"], "ends": "30"})
    found = re.search(r"lsr_[0-9A-Za-z]{38}", created.content.decode())
    assert found
    assert "no-store" in created["Cache-Control"]
    api = ApiClient(found[0])
    nowhere(found[0], client.get(reverse("api-tokens")), api.get("me"), api.get("tokens"))
    made = ApiClient(make.make_token(user)[1]).post("tokens", {"name": "x", "scopes": ["leases:read"]})
    assert "no-store" in made["Cache-Control"]
    nowhere(made.json()["secret"])


# --- passwords --------------------------------------------------------------------------------------------------------


def test_a_password_is_repeated_nowhere(nowhere: Callable[..., None], user: User) -> None:  # case H10
    client, here = browser(), browser(user)
    two = {"password1": PASSWORD, "password2": f"{PASSWORD} other"}
    same = {"password1": PASSWORD, "password2": PASSWORD}
    nowhere(
        MARK,
        client.post(reverse("account_login"), {"login": user.email, "password": PASSWORD}),
        client.post(reverse("account_login"), {"login": "none@example.test", "password": PASSWORD}),
        client.post(reverse("account_signup"), {"email": "kim@example.test", **two}),
        client.post(reverse("account_signup"), {"email": "not an address", **same}),
        here.post(reverse("account_change_password"), {"oldpassword": PASSWORD, **two}),
        client.post(reverse("account_signup"), {"email": "kim@example.test", **same}),
    )
    assert MARK not in "".join(str(message.body) for message in mail.outbox)


def test_a_password_typed_as_the_address_stays_out_of_the_audit(nowhere: Callable[..., None], db: None) -> None:
    browser().post(reverse("account_login"), {"login": f"{MARK}@example.test", "password": "x"})
    nowhere(MARK)


# --- keys and settings ------------------------------------------------------------------------------------------------


def test_a_private_key_is_repeated_nowhere(nowhere: Callable[..., None], user: User) -> None:  # case H10
    client, api = browser(user), ApiClient(make.make_token(user)[1])
    nowhere(
        MARK,
        client.post(reverse("ssh-keys"), {"public_key": PRIVATE, "name": ""}),
        api.post("ssh-keys", {"public_key": PRIVATE}),
        api.post("ssh-keys", {"public_key": [PRIVATE]}),
    )


@pytest.mark.parametrize("name", ["env", "secrets", "environment", "HF_TOKEN"])
def test_a_value_for_the_environment_is_repeated_nowhere(nowhere: Callable[..., None], user: User, name: str) -> None:
    # case H10
    api = ApiClient(make.make_token(user)[1])
    body = {"gpu_model": make.H100, name: {"HF_TOKEN": MARK}}
    nowhere(MARK, api.post("quotes", body), api.post("leases", {"quote": "x", **body}), api.post("leases", body))


# --- a bug ------------------------------------------------------------------------------------------------------------


def test_a_server_error_repeats_no_secret(
    nowhere: Callable[..., None], user: User, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:  # case H10
    settings.DEBUG = False

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug of ours")

    token = make.make_token(user)[1]
    monkeypatch.setattr("portal.keys.read_public_key", broken)
    monkeypatch.setattr("portal.adapters.AccountAdapter.authenticate", broken)
    monkeypatch.setattr("portal.tokens.create_token", broken)
    client = browser(user)
    api = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    answers = [
        client.post(reverse("ssh-keys"), {"public_key": f"ssh-ed25519 {MARK}", "name": ""}),
        browser().post(reverse("account_login"), {"login": user.email, "password": PASSWORD}),
        api.post("/api/v1/ssh-keys", {"public_key": f"ssh-ed25519 {MARK}"}, content_type="application/json"),
        client.post(reverse("api-tokens"), {"name": "ci", "scopes": ["leases:read"], "ends": "30"}),
    ]
    assert {answer.status_code for answer in answers} == {500}
    assert all("a bug of ours" not in answer.content.decode() for answer in answers)
    nowhere(MARK, *answers)
    nowhere(token, *answers)


# --- one-time links ---------------------------------------------------------------------------------------------------


def test_the_link_of_an_invitation_is_in_its_mail_only(nowhere: Callable[..., None], user: User) -> None:  # case H10
    tenant = make.make_tenant(members={user: "owner"})
    row = invitations.invite(tenant=tenant, email="guest@example.test", role="member", actor=Actor.of_user(user))
    mail_tasks.send_invitation(row.pk)
    token = invitation_links.token_of(row)
    assert token in str(mail.outbox[-1].body)
    client, owner = browser(), browser(user)
    client.get(reverse("invitation-link", args=[token]))
    nowhere(
        token,
        client.get(reverse("invitation")),
        owner.get(reverse("tenant", args=[tenant.pk])),
        ApiClient(make.make_token(user, tenant=tenant)[1]).get(f"tenants/{tenant.pk}/invitations"),
    )


def test_a_reset_link_is_in_no_log_and_no_audit_row(caplog: pytest.LogCaptureFixture, user: User) -> None:  # case H10
    caplog.set_level(logging.INFO)
    client = browser()
    client.post(reverse("account_reset_password"), {"email": user.email})
    found = re.search(r"/account/password/reset/key/\S+?-([^/\s]+)/", str(mail.outbox[-1].body))
    assert found
    asked = client.get(found[0])
    shown = client.get(asked["Location"])
    assert found[1] not in asked["Location"]
    assert found[1] not in shown.content.decode()
    assert found[1] not in caplog.text
    assert found[1] not in repr(list(AuditEvent.objects.values()))


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
def test_messages_carry_ids_only(redis_server: str, user: User, monkeypatch: pytest.MonkeyPatch) -> None:  # case H10
    server = redis.Redis.from_url(redis_server)
    monkeypatch.setattr(app.conf, "broker_url", redis_server)
    published: list[tuple[str, tuple[str, ...]]] = []
    real = queue._publish

    def publish(task: Any, ids: tuple[str, ...]) -> None:
        published.append((task.name, ids))
        with app.connection_for_write(redis_server) as connection:
            task.apply_async(args=ids, retry=False, connection=connection)

    monkeypatch.setattr(queue, "_publish", publish)
    assert real is not publish
    tenant = make.make_tenant("Northwind", members={user: "owner"})
    row = invitations.invite(tenant=tenant, email="guest@example.test", role="member", actor=Actor.of_user(user))
    assert published == [("portal.mail_tasks.send_invitation", (row.pk,))]
    lines = [bytes(line).decode() for line in server.lrange("portal", 0, -1)]  # type: ignore[arg-type]  # bytes, as asked
    bodies = [base64.b64decode(json.loads(line)["body"]).decode() for line in lines]
    assert any(row.pk in body for body in bodies)
    for secret in (invitation_links.token_of(row), "guest@example.test", "Northwind"):
        assert secret not in "".join([*lines, *bodies])
    server.close()

"""Second factors: set up, asked for at login, needed for changes, lost (cases A11, H04)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from django.core import mail
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from portal import sealing
from portal.models import AuditEvent, User
from tests import make
from tests.portal.second_factor import (
    code_of,
    confirm_code,
    confirm_password,
    log_in,
    log_in_with_app,
    recovery_codes,
    secret_on,
    with_app,
)

pytestmark = pytest.mark.django_db


def signed_in(client: Client) -> bool:
    """Does this browser have a session of a person?"""
    return "_auth_user_id" in client.session


@pytest.fixture
def browser(user: User) -> Client:
    """Signed in with the password, at the login page."""
    client = Client()
    log_in(client, user)
    return client


@pytest.mark.django_db(transaction=True)
def test_an_app_is_set_up_with_the_key_that_is_shown_and_codes_come_once(browser: Client, user: User) -> None:
    assert browser.get(reverse("mfa_activate_totp"))["Location"].startswith(reverse("account_reauthenticate"))
    confirm_password(browser)
    page = browser.get(reverse("mfa_activate_totp"))
    assert b'src="data:image/svg+xml;base64,' in page.content
    done = browser.post(reverse("mfa_activate_totp"), {"code": code_of(secret_on(page))})
    assert done["Location"] == reverse("mfa_view_recovery_codes")
    codes = recovery_codes(user)
    shown = browser.get(done["Location"]).content.decode()
    assert all(code in shown for code in codes)
    assert "data:text/plain" in shown
    again = browser.get(done["Location"]).content.decode()
    assert not any(code in again for code in codes)
    assert browser.get(reverse("mfa_download_recovery_codes")).status_code == 403
    assert [message.subject for message in mail.outbox] == ["An authenticator app was set up"]
    assert AuditEvent.objects.filter(action="user.second_factor_added", actor=user).count() == 2  # app, codes


def test_a_wrong_code_sets_nothing_up(browser: Client) -> None:
    confirm_password(browser)
    page = browser.get(reverse("mfa_activate_totp"))
    wrong = f"{(int(code_of(secret_on(page))) + 1) % 1_000_000:06}"
    assert b"Incorrect code" in browser.post(reverse("mfa_activate_totp"), {"code": wrong}).content
    assert not Authenticator.objects.exists()


def test_the_password_alone_no_longer_signs_in_and_the_session_key_changes_with_the_second_step(user: User) -> None:
    # case H04
    secret = with_app(user)
    client = Client()
    assert log_in(client, user)["Location"] == reverse("mfa_authenticate")
    assert not signed_in(client)
    assert client.get(reverse("leases")).status_code == 302
    before = client.cookies["sessionid"].value
    assert client.get(reverse("mfa_authenticate")).status_code == 200
    answer = client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert answer["Location"] == reverse("leases")
    assert signed_in(client)
    assert client.cookies["sessionid"].value != before


def test_a_code_works_once(user: User) -> None:
    secret = with_app(user)
    log_in_with_app(Client(), user, secret)
    second = Client()
    log_in(second, user)
    second.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert not signed_in(second)


def test_a_recovery_code_works_once_and_the_audit_names_it(user: User) -> None:
    with_app(user)
    code = recovery_codes(user)[0]
    for expected in (True, False):
        client = Client()
        log_in(client, user)
        client.post(reverse("mfa_authenticate"), {"code": code})
        assert signed_in(client) is expected
    assert len(recovery_codes(user)) == 9
    used = AuditEvent.objects.get(action="user.second_factor_used")
    assert used.data == {"type": "recovery_codes"}
    assert mail.outbox[-1].subject == "A recovery code was used"


def test_guessing_codes_is_stopped_even_from_many_addresses(user: User) -> None:  # case H12
    secret = with_app(user)
    wrong = f"{(int(code_of(secret)) + 1) % 1_000_000:06}"
    for n in range(6):
        client = Client(REMOTE_ADDR=f"192.0.2.{n + 1}")
        log_in(client, user)
        client.post(reverse("mfa_authenticate"), {"code": wrong})
    client = Client(REMOTE_ADDR="192.0.2.99")
    log_in(client, user)
    client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})
    assert not signed_in(client)


def test_with_a_second_factor_the_password_does_not_confirm_a_change(user: User) -> None:
    secret = with_app(user)
    client = Client()
    log_in_with_app(client, user, secret)
    asked = client.get(reverse("mfa_deactivate_totp"))
    assert asked["Location"].startswith(reverse("mfa_reauthenticate"))
    confirm_password(client)
    assert client.get(reverse("mfa_deactivate_totp")).status_code == 302
    cache.clear()
    confirm_code(client, code_of(secret))
    assert client.get(reverse("mfa_deactivate_totp")).status_code == 200
    client.post(reverse("mfa_deactivate_totp"))
    assert not Authenticator.objects.exists()  # the recovery codes went with the last factor
    assert mail.outbox[-1].subject == "The authenticator app was turned off"


@pytest.mark.django_db(transaction=True)
def test_new_recovery_codes_replace_the_old_ones(user: User) -> None:
    secret = with_app(user)
    old = recovery_codes(user)
    client = Client()
    log_in_with_app(client, user, secret)
    confirm_code(client, old[0])
    assert client.get(reverse("mfa_generate_recovery_codes")).status_code == 200
    client.post(reverse("mfa_generate_recovery_codes"))
    assert not set(old) & set(recovery_codes(user))
    assert mail.outbox[-1].subject == "New recovery codes were made"


def test_seeds_do_not_lie_in_the_database_as_they_are(user: User) -> None:
    secret = with_app(user)
    assert secret not in json.dumps(list(Authenticator.objects.values_list("data", flat=True)))


def test_a_sealed_text_opens_with_the_key_before_last_and_not_with_a_strange_one(settings: Any) -> None:
    sealed = sealing.seal("secret")
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert sealing.unseal(sealed) == "secret"
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(ValueError, match="SECRET_KEY_FALLBACKS"):
        sealing.unseal(sealed)


def test_somebody_with_a_second_factor_can_change_the_address(user: User) -> None:
    secret = with_app(user)
    client = Client()
    log_in_with_app(client, user, secret)
    confirm_code(client, recovery_codes(user)[0])
    client.post(reverse("account_email"), {"action_add": "", "email": "maya@new.test"})
    assert mail.outbox[-1].to == ["maya@new.test"]


def test_an_address_that_is_only_wished_for_resets_no_password_and_keeps_nobody_from_signing_up(user: User) -> None:
    EmailAddress.objects.create(user=user, email="noor@example.test", verified=False, primary=False)
    Client().post(reverse("account_reset_password"), {"email": "noor@example.test"})
    assert "/password/reset/key/" not in str(mail.outbox[-1].body)
    form = {"email": "noor@example.test", "password1": make.PASSWORD, "password2": make.PASSWORD}
    Client().post(reverse("account_signup"), form)
    assert User.objects.filter(email="noor@example.test").exists()
    assert list(user.emailaddress_set.values_list("email", flat=True)) == [user.email]


def test_an_operator_can_take_a_lost_second_factor_away(user: User) -> None:
    with_app(user)
    call_command("remove_second_factor", user.email.upper())
    assert not Authenticator.objects.exists()
    assert mail.outbox[-1].to == [user.email]
    assert AuditEvent.objects.filter(action="user.second_factor_reset", object_id=user.pk).count() == 1
    client = Client()
    log_in(client, user)
    assert signed_in(client)


@pytest.mark.parametrize("lost_to", ["", "oneself", "operator"])
def test_who_has_no_passkey_reads_whether_there_was_one(browser: Client, user: User, lost_to: str) -> None:
    confirm_password(browser)
    if lost_to:
        key = Authenticator.objects.create(user=user, type="webauthn", data={"name": "laptop"})
    if lost_to == "oneself":
        browser.post(reverse("mfa_remove_webauthn", args=[key.pk]))
    if lost_to == "operator":
        call_command("remove_second_factor", user.email)
    for name in ("mfa_index", "mfa_list_webauthn"):
        text = browser.get(reverse(name)).content.decode()
        assert ("No passkey left" in text, "No passkey yet" in text) == (bool(lost_to), not lost_to)


@pytest.mark.parametrize("credential", ["", "{", "[]", '"x"', "{}", '{"response": 1}'])
def test_a_passkey_that_is_none_is_refused_in_words(credential: str) -> None:
    client = Client(headers={"Accept": "application/json"})
    assert "challenge" in client.get(reverse("mfa_login_webauthn")).json()["request_options"]["publicKey"]
    answer = client.post(reverse("mfa_login_webauthn"), {"credential": credential})
    assert answer["Location"] == reverse("account_login")
    assert not signed_in(client)


def test_a_passkey_used_on_a_lease_s_own_page_opens_nothing(user: User) -> None:
    said = json.dumps({"type": "webauthn.get", "challenge": "x", "origin": "http://ls-1.apps.localhost:8000"})
    data = base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")
    client = Client()
    credential = json.dumps({"id": "x", "response": {"clientDataJSON": data}})
    page = client.post(reverse("mfa_login_webauthn"), {"credential": credential}, follow=True)
    assert b"This passkey was not accepted" in page.content


@pytest.mark.parametrize(
    "name",
    ["mfa_index", "mfa_list_webauthn", "mfa_add_webauthn", "mfa_view_recovery_codes", "mfa_generate_recovery_codes"],
)
def test_security_pages_render(user: User, name: str) -> None:
    secret = with_app(user)
    client = Client()
    log_in_with_app(client, user, secret)
    confirm_code(client, recovery_codes(user)[0])
    assert client.get(reverse(name)).status_code == 200


def test_whoever_has_no_second_factor_is_told_so(page: Client) -> None:
    assert b"Your password alone protects this account" in page.get(reverse("mfa_index")).content

"""The admin opens only to staff whose session has shown a second factor (cases A11, H04)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core.checks import run_checks
from django.test import Client
from django.urls import reverse

from portal.models import User
from portal.routes import every_route
from tests.portal.second_factor import confirm_code, log_in, log_in_with_app, recovery_codes, with_app

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

ADMIN = reverse("admin:index")
PLAIN = [route for route in every_route() if route.path.startswith("admin/") and "<" not in route.path]


@pytest.fixture(autouse=True)
def _on(settings: Any) -> None:
    settings.STAFF_MFA = True


def test_staff_who_signed_in_with_the_password_alone_are_sent_to_set_a_factor_up(operator: User) -> None:
    client = Client()
    assert log_in(client, operator, ADMIN)["Location"] == ADMIN
    page = client.get(ADMIN, follow=True)
    assert page.redirect_chain[-1][0] == reverse("mfa_index")
    assert b"The admin needs a second factor" in page.content


@pytest.mark.parametrize("route", [route for route in PLAIN if route.name != "logout"], ids=lambda route: route.path)
def test_no_page_of_the_admin_opens_without_it(operator: User, route: Any) -> None:
    with_app(operator)
    client = Client()
    client.force_login(operator)
    for answer in (client.get(f"/{route.path}"), client.post(f"/{route.path}")):
        assert answer.status_code in {302, 403, 405}
        assert answer.status_code != 302 or answer["Location"].startswith(
            (reverse("admin:login"), reverse("mfa_reauthenticate"))
        ), answer["Location"]


def test_the_login_with_both_steps_leads_into_the_admin(operator: User) -> None:
    secret = with_app(operator)
    client = Client()
    assert log_in_with_app(client, operator, secret, ADMIN)["Location"] == ADMIN
    assert client.get(ADMIN).status_code == 200
    assert client.get(reverse("admin:password_change"))["Location"] == reverse("account_change_password")


def test_whoever_sets_a_factor_up_proves_it_once_and_is_in(operator: User) -> None:
    client = Client()
    log_in(client, operator)
    with_app(operator)
    asked = client.get(ADMIN, follow=True)
    assert asked.redirect_chain[-1][0] == f"{reverse('mfa_reauthenticate')}?next=%2Fadmin%2F"
    confirm_code(client, recovery_codes(operator)[0])
    assert client.get(ADMIN).status_code == 200


def test_a_factor_that_was_taken_away_no_longer_keeps_the_admin_open(operator: User) -> None:
    secret = with_app(operator)
    client = Client()
    log_in_with_app(client, operator, secret)
    assert client.get(ADMIN).status_code == 200
    Authenticator.objects.filter(user=operator).delete()
    assert client.get(ADMIN).status_code == 302


def test_a_session_does_not_pass_its_factor_on_to_another_account(operator: User, user: User) -> None:
    secret = with_app(user)
    client = Client()
    log_in_with_app(client, user, secret)
    client.force_login(operator)
    assert client.get(ADMIN).status_code == 302


def test_renters_are_refused_with_or_without_one(user: User) -> None:
    secret = with_app(user)
    client = Client()
    log_in_with_app(client, user, secret)
    assert client.get(ADMIN, follow=True).status_code == 403


def test_nobody_is_sent_away_to_another_site(operator: User) -> None:
    secret = with_app(operator)
    client = Client()
    log_in_with_app(client, operator, secret)
    answer = client.get(reverse("admin:login") + "?next=https://elsewhere.test/")
    assert answer["Location"] == ADMIN


def test_turning_it_off_beyond_loopback_is_warned_about(settings: Any) -> None:
    settings.TESTING, settings.STAFF_MFA, settings.SECRET_KEY = False, False, "k3y" * 20 + "abcdef"
    settings.PORTAL_URL = "https://gpu.example.test"
    assert "portal.W004" in {message.id for message in run_checks()}
    settings.PORTAL_URL = "http://localhost:8000"
    assert "portal.W004" not in {message.id for message in run_checks()}


def test_it_is_on_unless_somebody_turns_it_off_and_cookies_are_secure_behind_https() -> None:  # case H04
    names = "STAFF_MFA SESSION_COOKIE_SECURE CSRF_COOKIE_SECURE SESSION_COOKIE_HTTPONLY SESSION_COOKIE_SAMESITE"
    code = f"from portal import settings as s; print(*[getattr(s, n) for n in {names.split()!r}])"
    env = {**os.environ, "PORTAL_URL": "https://gpu.example.test", "LESSOR_TESTING": "1"}
    env.pop("STAFF_MFA", None)
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["True", "True", "True", "True", "Lax"]

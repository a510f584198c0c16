"""Sign-up, verification, login, reset: through the pages, with the mails that are sent (cases A08, H04)."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.core.cache import cache
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

import portal.settings
from portal import adapters
from portal.models import AuditEvent, Membership, Tenant, User
from tests import make

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

ADDRESS = "Kim@Example.test"

pytestmark = pytest.mark.django_db


def sign_up(client: Client, email: str, password: str = make.PASSWORD) -> Answer:
    """Post the sign-up form."""
    return client.post(reverse("account_signup"), {"email": email, "password1": password, "password2": password})


def log_in(client: Client, email: str, password: str = make.PASSWORD) -> Answer:
    """Post the login form."""
    return client.post(reverse("account_login"), {"login": email, "password": password})


def link_in(message: mail.EmailMessage) -> str:
    """The path of the one link of ours in a mail."""
    found = re.search(r"https?://[^/\s]+(/account/\S+)", str(message.body))
    assert found, message.body
    return found[1]


def confirm(client: Client) -> Answer:
    """Follow the link in the last mail and press the button."""
    path = link_in(mail.outbox[-1])
    assert client.get(path).status_code == 200
    return client.post(path)


def wish(client: Client, email: str) -> None:
    """Ask for another address, with the password once more."""
    asked = client.post(reverse("account_email"), {"action_add": "", "email": email})
    client.post(asked["Location"], {"password": make.PASSWORD})


def signed_in(client: Client) -> bool:
    """Does this browser have a session of a person?"""
    return "_auth_user_id" in client.session


def test_a_person_signs_up_confirms_and_logs_in_whatever_the_case() -> None:  # case A08
    client = Client()
    assert sign_up(client, ADDRESS).status_code == 302
    assert not signed_in(client)
    assert log_in(client, ADDRESS)["Location"] == reverse("account_email_verification_sent")
    assert not signed_in(client)
    confirm(client)
    for email in ("kim@example.test", "KIM@EXAMPLE.TEST", ADDRESS):
        browser = Client()
        assert log_in(browser, email)["Location"] == reverse("leases")
        assert signed_in(browser)
        browser.post(reverse("account_logout"))
        assert not signed_in(browser)
    assert EmailAddress.objects.count() == 1
    assert User.objects.count() == 1


def test_sign_up_makes_the_personal_tenant_and_the_audit_tells_the_story() -> None:
    client = Client()
    sign_up(client, ADDRESS)
    confirm(client)
    log_in(client, ADDRESS)
    user = User.objects.get()
    membership = Membership.objects.get(user=user)
    assert (membership.role, membership.tenant.kind) == (Membership.Role.OWNER, Tenant.Kind.PERSONAL)
    told = list(AuditEvent.objects.order_by("pk").values_list("action", flat=True))
    assert told == ["user.signed_up", "user.email_confirmed", "user.logged_in"]
    assert set(AuditEvent.objects.values_list("ip", flat=True)) == {"127.0.0.1"}


def test_opening_the_link_confirms_nothing_until_the_button_is_pressed() -> None:
    client = Client()
    sign_up(client, ADDRESS)
    client.get(link_in(mail.outbox[-1]))
    assert not EmailAddress.objects.get().verified


def test_a_second_sign_up_in_another_case_looks_the_same_and_changes_nothing() -> None:  # case A08
    first = sign_up(Client(), ADDRESS)
    sent = len(mail.outbox)
    cache.clear()
    second = sign_up(Client(), "KIM@example.test", "another password 77")
    assert (second.status_code, second["Location"]) == (first.status_code, first["Location"])
    assert len(mail.outbox) == sent + 1  # the owner is told, the other sees nothing
    assert User.objects.count() == EmailAddress.objects.count() == 1
    assert User.objects.get().check_password(make.PASSWORD)


def test_two_sign_ups_with_one_address_at_once_make_no_server_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # case A08
    def taken(*_: object, **__: object) -> None:
        raise IntegrityError("user_email_once_in_any_case")

    monkeypatch.setattr(adapters, "ensure_personal_tenant", taken)
    assert sign_up(Client(), ADDRESS)["Location"] == reverse("account_email_verification_sent")
    assert User.objects.count() == 0


def test_plus_and_dots_make_different_addresses_and_the_plus_survives() -> None:  # case A08
    for email in ("kim+a@example.test", "kim+b@example.test", "k.im@example.test"):
        sign_up(Client(), email)
        cache.clear()
    assert set(User.objects.values_list("email", flat=True)) == {
        "kim+a@example.test",
        "kim+b@example.test",
        "k.im@example.test",
    }
    body = "email=kim%2Bc%40example.test&password1=correct+horse+battery+9&password2=correct+horse+battery+9"
    Client().post(reverse("account_signup"), body, content_type="application/x-www-form-urlencoded")
    assert User.objects.filter(email="kim+c@example.test").exists()
    assert mail.outbox[-1].to == ["kim+c@example.test"]


@pytest.mark.parametrize("password", ["short", "12345678901", "password123", "kim@example.test"])
def test_weak_passwords_are_refused(password: str) -> None:
    assert sign_up(Client(), "kim@example.test", password).status_code == 200
    assert not User.objects.exists()


def test_login_and_reset_do_not_tell_whether_an_address_is_known() -> None:
    make.make_user("known@example.test")
    answers = [
        log_in(Client(), email, "wrong password 1").content for email in ("known@example.test", "none@example.test")
    ]
    assert len({re.sub(rb'value="[^"]*"|data-now="\d+"|"X-CSRFToken": "[^"]*"', b"", text) for text in answers}) == 1
    resets = [
        Client().post(reverse("account_reset_password"), {"email": email})
        for email in ("known@example.test", "none@example.test")
    ]
    assert len({(answer.status_code, answer["Location"]) for answer in resets}) == 1


def test_a_reset_by_mail_sets_the_password_and_ends_all_other_sessions() -> None:  # case H04
    user = make.make_user("kim@example.test")
    elsewhere = Client()
    log_in(elsewhere, "kim@example.test")
    client = Client()
    client.post(reverse("account_reset_password"), {"email": "KIM@example.test"})
    form = client.get(link_in(mail.outbox[-1]), follow=True)
    new = "a new long password 5"
    client.post(form.request["PATH_INFO"], {"password1": new, "password2": new})
    user.refresh_from_db()
    assert user.check_password(new)
    assert elsewhere.get(reverse("ssh-keys")).status_code == 302
    assert AuditEvent.objects.filter(action="user.password_reset", actor=user).count() == 1
    assert all(new not in str(message.body) for message in mail.outbox)


def test_a_reset_link_works_once() -> None:
    make.make_user("kim@example.test")
    client = Client()
    client.post(reverse("account_reset_password"), {"email": "kim@example.test"})
    path = link_in(mail.outbox[-1])
    form = client.get(path, follow=True)
    new = "a new long password 5"
    client.post(form.request["PATH_INFO"], {"password1": new, "password2": new})
    assert User.objects.get().check_password(new)
    later = Client().get(path, follow=True)
    assert b'name="password1"' not in later.content


def test_the_session_key_changes_at_login() -> None:  # case H04
    make.make_user("kim@example.test")
    client = Client()
    session = client.session
    session["seen"] = 1
    session.save()
    before = client.cookies["sessionid"].value
    log_in(client, "kim@example.test")
    assert client.cookies["sessionid"].value != before


@pytest.mark.parametrize(
    "name", ["account_login", "account_signup", "account_reset_password", "set-theme", "set_language"]
)
def test_forms_of_the_anonymous_need_the_csrf_token_too(name: str) -> None:  # case H04
    answer = Client(enforce_csrf_checks=True).post(reverse(name), {"email": "kim@example.test"})
    assert answer.status_code == 403


def test_many_wrong_passwords_are_slowed_down() -> None:  # case H12
    make.make_user("kim@example.test")
    client = Client()
    for _ in range(6):
        log_in(client, "kim@example.test", "wrong password 1")
    log_in(client, "kim@example.test")
    assert not signed_in(client)


def test_an_inactive_person_does_not_get_in() -> None:  # case A11
    make.make_user("kim@example.test", is_active=False)
    client = Client()
    log_in(client, "kim@example.test")
    assert not signed_in(client)


@pytest.mark.parametrize(
    "name",
    [
        "account_login",
        "account_signup",
        "account_reset_password",
        "account_reset_password_done",
        "account_email_verification_sent",
        "account_inactive",
    ],
)
def test_account_pages_for_the_anonymous_render(name: str) -> None:
    assert Client().get(reverse(name)).status_code == 200


@pytest.mark.parametrize(
    "name", ["account_logout", "account_email", "account_change_password", "account_reauthenticate"]
)
def test_account_pages_for_the_signed_in_render(name: str) -> None:
    client = Client()
    client.force_login(make.make_user())
    assert client.get(reverse(name)).status_code == 200


def test_a_password_is_changed_and_the_audit_knows() -> None:
    user = make.make_user("kim@example.test")
    client = Client()
    log_in(client, "kim@example.test")
    new = "a new long password 5"
    client.post(reverse("account_change_password"), {"oldpassword": make.PASSWORD, "password1": new, "password2": new})
    user.refresh_from_db()
    assert user.check_password(new)
    assert AuditEvent.objects.filter(action="user.password_changed").count() == 1


def test_another_address_takes_over_once_it_is_confirmed() -> None:
    user = make.make_user("kim@example.test")
    client = Client()
    log_in(client, "kim@example.test")
    wish(client, "kim@new.test")
    user.refresh_from_db()
    assert user.email == "kim@example.test"
    confirm(client)
    user.refresh_from_db()
    assert user.email == "kim@new.test"
    assert list(EmailAddress.objects.values_list("email", "primary", "verified")) == [("kim@new.test", True, True)]
    assert mail.outbox[-1].to == ["kim@example.test"]  # the old address is told
    assert "kim@new.test" in str(mail.outbox[-1].body)
    assert {"user.email_added", "user.email_confirmed", "user.email_changed"} <= set(
        AuditEvent.objects.values_list("action", flat=True)
    )


def test_without_redis_sign_in_waits_and_who_is_signed_in_goes_on(user: User, settings: Any, page: Client) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        address = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        settings.CACHES = {"default": {**portal.settings.CACHES["default"], "LOCATION": address}}
        assert log_in(Client(raise_request_exception=False), user.email).status_code == 429
        assert page.get(reverse("ssh-keys")).status_code == 200


def test_a_wish_for_another_address_can_be_taken_back_and_its_link_then_does_nothing() -> None:
    user = make.make_user("kim@example.test")
    client = Client()
    log_in(client, "kim@example.test")
    wish(client, "kim@new.test")
    path = link_in(mail.outbox[-1])
    assert b"waits for its confirmation" in client.get(reverse("account_email")).content
    client.post(reverse("account_email"), {"action_remove": "", "email": "kim@new.test"})
    Client().post(path)
    user.refresh_from_db()
    assert user.email == "kim@example.test"
    assert list(EmailAddress.objects.values_list("email", flat=True)) == ["kim@example.test"]


def test_until_the_new_address_is_confirmed_only_the_old_one_signs_in() -> None:
    make.make_user("kim@example.test")
    client = Client()
    log_in(client, "kim@example.test")
    wish(client, "kim@new.test")
    cache.clear()
    early, usual = Client(), Client()
    log_in(early, "kim@new.test")
    log_in(usual, "kim@example.test")
    assert not signed_in(early)
    assert signed_in(usual)


def test_every_form_and_page_spells_the_address_alike(client: Client, user: User) -> None:
    label = re.compile(r"<label [^>]*>\s*(E-?mail[^<]*?)\s*<", re.IGNORECASE)
    names = ["account_login", "account_signup", "account_reset_password"]
    pages = [client.get(reverse(name)).content.decode() for name in names]
    client.force_login(user)
    pages += [client.get(reverse(name)).content.decode() for name in ("account_email", "mfa_index")]
    assert [label.findall(page) for page in pages[:4]] == [["E-mail address"]] * 4
    for page in pages:
        assert re.findall(r"\bemail(?: address)?(?=[<\"])", re.sub(r"=\"[a-z]*email\"", "", page), re.IGNORECASE) == []


@pytest.mark.parametrize(("email", "said"), [("kim", "such as kim@example.org"), (ADDRESS, "password is not right")])
def test_refusals_of_a_sign_in_spell_it_alike(client: Client, email: str, said: str) -> None:
    text = log_in(client, email).content.decode()
    assert said in text
    assert "email address" not in text.lower()

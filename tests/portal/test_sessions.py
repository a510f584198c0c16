"""Browser sessions: listed with browser, address and last use; ended one by one or all others (cases A11, H04)."""

from __future__ import annotations

import pytest
from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from portal.models import AuditEvent, User
from portal.sessions import browser_of
from tests import make
from tests.portal.second_factor import log_in

pytestmark = pytest.mark.django_db

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0"
EDGE = (
    "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.0.0"
)
SAFARI = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Mobile Safari/604.1"


def browser(user: User, *, agent: str = FIREFOX, ip: str = "192.0.2.7") -> Client:
    """Somewhere, signed in."""
    client = Client(headers={"User-Agent": agent}, REMOTE_ADDR=ip)
    log_in(client, user)
    return client


def inside(client: Client) -> bool:
    """Does this browser still see its owner's pages?"""
    return client.get(reverse("ssh-keys")).status_code == 200


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (FIREFOX, ("Firefox", "Linux")),
        (EDGE, ("Edge", "Windows")),
        (SAFARI, ("Safari", "iPhone")),
        ("curl/8.5.0", ("curl", "")),
        ("", ("", "")),
    ],
)
def test_a_browser_is_named_by_what_it_says(agent: str, expected: tuple[str, str]) -> None:
    assert browser_of(agent) == expected


def test_the_list_names_each_session_and_marks_this_one(user: User, stranger: User) -> None:
    here = browser(user)
    browser(user, agent=SAFARI, ip="2001:db8::5")
    browser(stranger, ip="198.51.100.9")
    page = here.get(reverse("sessions")).content.decode()
    for words in ("Firefox on Linux", "192.0.2.7", "This browser", "Safari on iPhone", "2001:db8::5"):
        assert words in page
    assert "198.51.100.9" not in page


def test_the_list_costs_as_many_queries_however_long_it_is(user: User, django_assert_max_num_queries: object) -> None:
    here = browser(user)
    for n in range(6):
        browser(user, ip=f"192.0.2.{n + 20}")
    with django_assert_max_num_queries(10):  # type: ignore[operator]
        here.get(reverse("sessions"))


def test_last_use_is_noted_with_the_new_address_at_most_once_a_minute(user: User) -> None:
    client = browser(user)
    seen = UserSession.objects.get()
    client.get(reverse("ssh-keys"), REMOTE_ADDR="203.0.113.1")
    cache.clear()  # a minute later
    client.get(reverse("ssh-keys"), REMOTE_ADDR="203.0.113.1")
    noted = UserSession.objects.get()
    assert noted.ip == "203.0.113.1"
    assert noted.last_seen_at > seen.last_seen_at
    client.get(reverse("ssh-keys"), REMOTE_ADDR="203.0.113.2")
    assert UserSession.objects.get().ip == "203.0.113.1"


def test_one_session_is_ended_at_once_and_the_audit_knows(user: User) -> None:
    here, there = browser(user), browser(user, agent=SAFARI)
    row = UserSession.objects.get(user_agent=SAFARI)
    assert here.get(reverse("session-end", args=[row.pk])).status_code == 200
    here.post(reverse("session-end", args=[row.pk]))
    assert not inside(there)
    assert inside(here)
    assert AuditEvent.objects.get(action="user.sessions_ended").data == {"count": 1}


def test_all_others_are_ended_and_this_one_stays(user: User) -> None:
    here, others = browser(user), [browser(user, ip=f"192.0.2.{n}") for n in (1, 2)]
    here.post(reverse("sessions"))
    assert not any(inside(client) for client in others)
    assert inside(here)
    assert UserSession.objects.count() == 1


def test_ending_the_own_session_signs_out(user: User) -> None:
    here = browser(user)
    here.post(reverse("session-end", args=[UserSession.objects.get().pk]))
    assert not inside(here)


def test_nobody_ends_a_stranger_s_session(user: User, stranger: User) -> None:
    mine, theirs = browser(user), browser(stranger)
    row = UserSession.objects.get(user=stranger)
    assert mine.post(reverse("session-end", args=[row.pk])).status_code == 404
    assert inside(theirs)


def test_a_new_password_ends_all_other_sessions_and_the_page_says_so(user: User) -> None:  # case A11, case H04
    here, there = browser(user), browser(user, agent=SAFARI)
    key = here.cookies["sessionid"].value
    page = here.get(reverse("account_change_password"))
    assert b"all others are signed out" in page.content
    new = "a new long password 5"
    here.post(reverse("account_change_password"), {"oldpassword": make.PASSWORD, "password1": new, "password2": new})
    assert inside(here)
    assert here.cookies["sessionid"].value != key
    assert not inside(there)
    shown = here.get(reverse("sessions")).content.decode()
    assert "This browser" in shown
    assert "Safari on iPhone" not in shown

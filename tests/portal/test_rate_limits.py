"""Who is slowed down, by what address, and who is not (case H12)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as live_settings
from django.core import mail
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

import portal.settings
from portal import rate_limits, tokens
from portal.actor import client_ip
from portal.errors import TooManyRequests
from portal.rate_limits import Limit
from tests import make
from tests.portal.test_accounts import link_in, log_in, signed_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import time_machine

    from portal.models import User

ATTACKER, ANOTHER, HOME = "198.51.100.9", "198.51.100.77", "203.0.113.5"
WRONG = "wrong password 1"


def at(ip: str, **forwarded: str) -> Client:
    """A browser at an address, with whatever headers it makes up."""
    return Client(REMOTE_ADDR=ip, headers={name.replace("_", "-"): value for name, value in forwarded.items()})


@pytest.fixture(autouse=True)
def _one_window(monkeypatch: pytest.MonkeyPatch, time_machine: time_machine.TimeMachineFixture) -> None:
    """All of a test falls into one window, and no failure of a test before is remembered."""
    time_machine.move_to(timezone.now().replace(hour=12, minute=0, second=10), tick=False)
    monkeypatch.setattr(rate_limits, "_rest_until", 0.0)


# --- whose request it is ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proxies", "peer", "forwarded", "client"),
    [
        (0, HOME, "1.1.1.1", HOME),
        (1, "10.0.0.2", "1.1.1.1", "1.1.1.1"),
        (1, "10.0.0.2", "6.6.6.6, 1.1.1.1", "1.1.1.1"),
        (2, "10.0.0.2", "6.6.6.6, 1.1.1.1, 10.0.0.3", "1.1.1.1"),
        (2, "10.0.0.2", "1.1.1.1", "10.0.0.2"),  # it came past one of the proxies
        (1, "10.0.0.2", "", "10.0.0.2"),
        (1, "10.0.0.2", "1.1.1.1:49152", "1.1.1.1"),
        (1, "10.0.0.2", "[2001:db8::1]:49152", "2001:db8::1"),
        (1, "10.0.0.2", "2001:DB8::1", "2001:db8::1"),
        (1, "10.0.0.2", "fe80::1%eth0", "fe80::1"),
        (1, "10.0.0.2", "::ffff:1.1.1.1", "1.1.1.1"),
        (1, "10.0.0.2", "unknown", "10.0.0.2"),
        (1, "10.0.0.2", "'; DROP TABLE--", "10.0.0.2"),
        (0, "", "1.1.1.1", None),
        (0, "unix:", "", None),
    ],
)
def test_an_address_is_believed_only_from_as_many_proxies_as_there_are(
    settings: Any, proxies: int, peer: str, forwarded: str, client: str | None
) -> None:  # case H12
    settings.TRUSTED_PROXIES = proxies
    request = RequestFactory().get("/", REMOTE_ADDR=peer)
    request.META |= {"HTTP_X_FORWARDED_FOR": forwarded, "HTTP_X_REAL_IP": "7.7.7.7", "HTTP_FORWARDED": "for=7.7.7.7"}
    assert client_ip(request) == client


def test_a_customer_of_ipv6_is_one_address() -> None:
    places = {
        rate_limits.place_of(RequestFactory().get("/", REMOTE_ADDR=ip)) for ip in ("2001:db8::1", "2001:db8::ffff:1")
    }
    assert len(places) == 1


# --- sign-in ----------------------------------------------------------------------------------------------------------


def guess(ip: str, email: str, times: int, **forwarded: str) -> list[int]:
    """Wrong passwords; the statuses."""
    client = at(ip, **forwarded)
    return [
        client.post(reverse("account_login"), {"login": email, "password": f"{WRONG}{i}"}).status_code
        for i in range(times)
    ]


def test_one_address_that_guesses_is_slowed_and_another_is_not(user: User) -> None:  # case H12
    statuses = guess(ATTACKER, user.email, 20)
    assert statuses[0] == 200
    assert statuses[-1] == 429
    assert statuses.count(200) == rate_limits.WRONG_FOR_ACCOUNT_HERE.amount
    client = at(ATTACKER)
    assert log_in(client, user.email).status_code == 429
    assert not signed_in(client)
    victim = at(HOME)
    log_in(victim, user.email)
    assert signed_in(victim)


def test_the_answer_says_when_to_come_back(user: User) -> None:
    guess(ATTACKER, user.email, 5)
    answer = log_in(at(ATTACKER), user.email, WRONG)
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 300
    assert "Too many tries" in answer.content.decode()


@pytest.mark.parametrize("name", ["X_Forwarded_For", "X_Real_IP", "Forwarded", "True_Client_IP", "CF_Connecting_IP"])
def test_forged_headers_give_no_new_tries(user: User, name: str) -> None:  # case H12
    statuses = [guess(ATTACKER, user.email, 1, **{name: f"192.0.2.{i}"})[0] for i in range(8)]
    assert statuses[-1] == 429


def test_a_forged_entry_before_the_proxies_own_gives_no_new_tries(user: User, settings: Any) -> None:  # case H12
    settings.TRUSTED_PROXIES = 1
    chains = [f"192.0.2.{i}, {ATTACKER}" for i in range(8)]
    statuses = [guess("10.0.0.2", user.email, 1, X_Forwarded_For=chain)[0] for chain in chains]
    assert statuses[-1] == 429
    other = Client(REMOTE_ADDR="10.0.0.2", headers={"X-Forwarded-For": HOME})
    log_in(other, user.email)
    assert signed_in(other), "others behind the same proxy are not slowed"


def test_many_addresses_tried_from_one_place_are_slowed(db: None) -> None:  # case H12
    statuses = [guess(ATTACKER, f"person{i}@example.test", 1)[0] for i in range(30)]
    assert statuses[-1] == 429
    assert statuses.count(200) == rate_limits.WRONG_FROM_ADDRESS.amount


def lock(user: User) -> None:
    """Wrong passwords from everywhere, until the account takes no more from unknown devices."""
    for i in range(rate_limits.WRONG_FOR_ACCOUNT.amount):
        guess(f"192.0.2.{i}", user.email, 1)
    stranger = at(ANOTHER)
    assert log_in(stranger, user.email).status_code == 429


def test_a_victim_gets_in_on_a_known_device_whatever_others_try(user: User) -> None:  # case H12
    home = at(HOME)
    log_in(home, user.email)
    home.post(reverse("account_logout"))
    lock(user)
    log_in(home, user.email)
    assert signed_in(home)


def test_a_victim_gets_in_by_a_mail_link_on_a_new_device(user: User) -> None:  # case H12
    lock(user)
    device = at(HOME)
    device.post(reverse("account_reset_password"), {"email": user.email})
    form = device.get(link_in(mail.outbox[-1]), follow=True)
    new = "a new long password 5"
    device.post(form.request["PATH_INFO"], {"password1": new, "password2": new})
    for i in range(60):
        guess(f"192.0.2.{i}", user.email, 1)
    log_in(device, user.email, new)
    assert signed_in(device)


def test_a_known_device_guesses_no_faster(user: User, stranger: User) -> None:
    home = at(HOME)
    log_in(home, user.email)
    home.post(reverse("account_logout"))
    mine = [log_in(home, user.email, WRONG).status_code for _ in range(12)]
    assert mine.count(200) == rate_limits.WRONG_ON_KNOWN_DEVICE.amount
    theirs = [log_in(home, stranger.email, WRONG).status_code for _ in range(8)]
    assert theirs.count(200) == rate_limits.WRONG_FOR_ACCOUNT_HERE.amount, "known for one account, not for others"


def test_the_cookie_of_a_known_device_cannot_be_made_up(user: User) -> None:
    home = at(HOME)
    log_in(home, user.email)
    cookie = home.cookies["device"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"
    assert user.email not in cookie.value
    forged = at(ATTACKER)
    forged.cookies["device"] = cookie.value[:-2] + "xx"
    assert [log_in(forged, user.email, WRONG).status_code for _ in range(6)][-1] == 429


def test_right_passwords_use_nothing_up(user: User) -> None:
    for _ in range(12):
        client = at(HOME)
        log_in(client, user.email)
        assert signed_in(client)


# --- the other doors --------------------------------------------------------------------------------------------------


def test_sign_up_and_reset_are_slowed_by_address(db: None) -> None:  # case H12
    client = at(ATTACKER)
    body = {"password1": make.PASSWORD, "password2": make.PASSWORD}
    joined = [
        client.post(reverse("account_signup"), {**body, "email": f"p{i}@example.test"}).status_code for i in range(25)
    ]
    assert joined[-1] == 429
    reset = [
        client.post(reverse("account_reset_password"), {"email": f"p{i}@example.test"}).status_code for i in range(25)
    ]
    assert reset[-1] == 429
    answer = client.post(reverse("account_reset_password"), {"email": "p@example.test"})
    assert int(answer["Retry-After"]) > 0
    assert at(HOME).post(reverse("account_reset_password"), {"email": "p@example.test"}).status_code == 302


@pytest.mark.parametrize("path", ["/api/v1/me", "/api/node/v1/desired"])
def test_wrong_tokens_are_slowed_and_right_ones_behind_the_same_address_go_on(user: User, path: str) -> None:
    # case H12
    secret = make.make_token(user)[1]

    def ask(bearer: str) -> Any:
        return at(ATTACKER, X_Forwarded_For="1.2.3.4", Authorization=f"Bearer {bearer}").get(path)

    answers = [ask(tokens.new_secret()) for _ in range(rate_limits.WRONG_TOKENS.amount + 1)]
    assert {answer.status_code for answer in answers[:-1]} == {401}
    assert answers[-1].status_code == 429
    assert answers[-1].json()["code"] == "too_many_requests"
    assert int(answers[-1]["Retry-After"]) == answers[-1].json()["retry_after_s"] > 0
    right = make.make_node_secret(make.make_node()) if "node" in path else secret
    assert ask(right).status_code == 200


def test_wrong_enrolment_tokens_are_slowed(db: None) -> None:
    body = {"enrolment_token": "lne_wrong"}
    statuses = [at(ATTACKER).post("/api/node/v1/enrol", body, content_type="application/json") for _ in range(31)]
    assert statuses[-1].status_code in {400, 429}
    assert {answer.status_code for answer in statuses[:-1]} <= {400, 401}


def test_prices_and_orders_are_limited_per_tenant(user: User, stranger: User, settings: Any) -> None:
    settings.QUOTES_PER_MINUTE = 3
    settings.ORDERS_PER_MINUTE = 2
    make.make_node(gpus=2)
    make.make_price()

    def ask(who: User, path: str) -> int:
        client = at(HOME, Authorization=f"Bearer {make.make_token(who)[1]}")
        return client.post(path, {"gpu_model": make.H100}, content_type="application/json").status_code

    for person in (user, stranger):
        make.make_key(person)
    assert [ask(user, "/api/v1/quotes") for _ in range(4)] == [200, 200, 200, 429]
    assert ask(stranger, "/api/v1/quotes") == 200
    assert [ask(user, "/api/v1/leases") for _ in range(3)] == [400, 400, 429]


# --- the counters -----------------------------------------------------------------------------------------------------


def test_a_limit_refuses_the_next_one_and_starts_anew_with_its_window(
    time_machine: time_machine.TimeMachineFixture,
) -> None:
    limit = Limit("tests", 2, 60)
    time_machine.move_to("2026-01-01T00:00:10Z", tick=False)
    rate_limits.take(limit, "a")
    rate_limits.take(limit, "a")
    with pytest.raises(TooManyRequests) as refused:
        rate_limits.take(limit, "a")
    assert refused.value.retry_after == 50
    rate_limits.take(limit, "b")
    time_machine.move_to("2026-01-01T00:01:00Z", tick=False)
    rate_limits.take(limit, "a")
    rate_limits.give_back(limit, "a")
    rate_limits.give_back(limit, "never-counted")


@pytest.fixture
def without_redis(settings: Any) -> Iterator[None]:
    """The cache of production, with nobody behind its address."""
    settings.CACHES = {"default": {**portal.settings.CACHES["default"], "LOCATION": "redis://127.0.0.1:1/0"}}
    yield
    del settings.CACHES


def test_without_redis_passwords_wait_and_the_rest_goes_on(
    user: User, without_redis: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate_limits.take(Limit("tests", 1, 60), "a")
    rate_limits.take(Limit("tests", 1, 60), "a")
    with pytest.raises(TooManyRequests):
        rate_limits.take(Limit("tests", 1, 60, strict=True), "a")
    monkeypatch.setattr(rate_limits, "_rest_until", 0.0)
    client = at(HOME, Authorization=f"Bearer {make.make_token(user)[1]}")
    assert client.get("/api/v1/me").status_code == 200
    assert log_in(Client(raise_request_exception=False), user.email).status_code == 429


SCRIPT = """
import django, sys
django.setup()
from django.core.cache import cache
from portal import rate_limits
from portal.errors import TooManyRequests
limit = rate_limits.Limit("workers", 40, 864_000_000)
passed = 0
for _ in range(30):
    try:
        rate_limits.take(limit, "one bucket")
        passed += 1
    except TooManyRequests:
        pass
print(passed)
"""


@pytest.mark.redis
def test_workers_count_together(redis_server: str) -> None:  # case H12
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "portal.settings",
        "LESSOR_TESTING": "1",
        "REDIS_URL": redis_server,
    }
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, env=environment, cwd=live_settings.BASE_DIR
        )
        for _ in range(2)
    ]
    assert sum(int(worker.communicate(timeout=60)[0]) for worker in workers) == 40

"""Limits of clients behind a real nginx, with several workers and one Redis (case H12)."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from scripts.demolib.portal_stack import Portal
from scripts.demolib.processes import Processes
from tests.rig.stack import PASSWORD
from tests.rig.stack_portal import RigPortal

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.rig

LOGIN, ME = "/account/login/", "/api/v1/me"
HOST = "127.0.0.1"
OWNER = "operator@example.com"
ATTACKER, OTHER = "127.0.0.66", "127.0.0.77"  # every address of 127.0.0.0/8 is this machine
# Two windows of the limit: however the clock stands, somebody who is counted has met a refusal by then.
MOST_WRONG, MOST_TOKENS = 41, 61


class Proxied(RigPortal):
    """web and streams behind the demo's nginx; nothing here needs the worker or the clock."""

    start = Portal.start

    def __init__(self, processes: Processes, var: Path) -> None:
        settings = {"TRUSTED_PROXIES": "1", "DJANGO_SETTINGS_MODULE": "tests.rig.quick_settings"}
        super().__init__(processes, var, HOST, f"sqlite:///{var}/lessor.sqlite3", settings)
        self.redis_addresses = HOST

    def start_program(self, name: str, suffix: str = "") -> None:
        """Not started."""


class From(HTTPAdapter):
    """Connections of a client that has this address."""

    def __init__(self, address: str) -> None:
        self.address = address
        super().__init__()

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Bind before connecting."""
        super().init_poolmanager(*args, **kwargs, source_address=(self.address, 0))


@pytest.fixture(scope="module")
def portal() -> Iterator[Proxied]:
    """The portal as it stands behind a proxy; an operator has an account there."""
    with tempfile.TemporaryDirectory(prefix="lessor-nginx-") as name:
        var = Path(name)
        processes = Processes(var)
        try:
            made = Proxied(processes, var)
            made.start_redis()
            made.prepare()
            (var / "password").write_text(PASSWORD)
            made.manage("ensure_operator", OWNER, "--password-file", str(var / "password"))
            made.start()
            yield made
        finally:
            processes.stop_all()


def client(portal: Proxied, address: str) -> requests.Session:
    """A browser at the address, at the page of the login."""
    session = requests.Session()
    session.mount("http://", From(address))
    session.get(portal.url + LOGIN, timeout=20).raise_for_status()
    return session


def sign_in(portal: Proxied, session: requests.Session, email: str, password: str, headers: dict[str, str]) -> int:
    """The status of the answer; 302 is in."""
    form = {"login": email, "password": password, "csrfmiddlewaretoken": session.cookies["csrftoken"]}
    return session.post(portal.url + LOGIN, form, headers=headers, timeout=20, allow_redirects=False).status_code


def made_up(number: int) -> dict[str, str]:
    """What a client can say about itself, another lie each time."""
    lie = f"203.0.113.{number}"
    names = ("X-Forwarded-For", "X-Real-IP", "X_Forwarded_For", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP")
    return {**dict.fromkeys(names, lie), "Forwarded": f"for={lie}"}


def test_guessing_is_slowed_for_the_one_who_guesses_whatever_it_says_about_itself(portal: Proxied) -> None:
    # case H12
    attacker = client(portal, ATTACKER)
    for number in range(1, MOST_WRONG + 1):
        status = sign_in(portal, attacker, f"guess-{number}@example.com", "wrong password", made_up(number))
        if status == 429:
            break
        assert status == 200
    assert status == 429
    assert number > 20
    assert sign_in(portal, client(portal, OTHER), OWNER, PASSWORD, {}) == 302


def test_a_victim_of_guesses_gets_in_from_elsewhere(portal: Proxied) -> None:  # case H12
    attacker = client(portal, "127.0.0.67")
    tries = (sign_in(portal, attacker, OWNER, "wrong password", made_up(number)) for number in range(1, 12))
    assert 429 in tries
    assert sign_in(portal, client(portal, "127.0.0.78"), OWNER, PASSWORD, {}) == 302


def test_wrong_tokens_are_slowed_at_the_api_alike(portal: Proxied) -> None:  # case H12
    attacker, other = client(portal, "127.0.0.68"), client(portal, "127.0.0.79")
    for number in itertools.count(1):
        assert number <= MOST_TOKENS, "never slowed down"
        said = made_up(number) | {"Authorization": f"Bearer lsr_{number:032d}"}
        answer = attacker.get(portal.url + ME, headers=said, timeout=20)
        if answer.status_code == 429:
            break
        assert answer.status_code == 401
    assert int(answer.headers["Retry-After"]) > 0
    assert other.get(portal.url + ME, headers={"Authorization": "Bearer lsr_1"}, timeout=20).status_code == 401

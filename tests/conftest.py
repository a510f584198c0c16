"""What every test gets: no network beyond this machine, an empty cache and mailbox, clients of the three kinds."""

from __future__ import annotations

import ipaddress
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client

from portal import owed_mails
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from collections.abc import Iterator

    from portal.models import Tenant, User

if (Path(__file__).parent / "rig" / "fixtures.py").exists():
    pytest_plugins = ["tests.rig.fixtures"]


def pytest_configure() -> None:
    """Refuse to run against settings that are not the tests' own: they would send mail and write to a real database."""
    # Under nohup every child would ignore HUP, and a session's processes are told apart by just that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if not settings.TESTING:
        raise pytest.UsageError("Run the tests with DJANGO_SETTINGS_MODULE=tests.settings.")


def pytest_addoption(parser: pytest.Parser) -> None:
    """One more option, for the pass on the second database."""
    parser.addoption(
        "--second-database", action="store_true", help="only tests that may find something else on another database"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a database, or about routes and words alone, a test says the same on both: once is enough."""
    if not config.getoption("--second-database"):
        return
    chosen = [item for item in items if _may_differ(item)]
    config.hook.pytest_deselected(items=[item for item in items if not _may_differ(item)])
    items[:] = chosen


def _may_differ(item: pytest.Item) -> bool:
    uses = item.get_closest_marker("django_db") or "db" in getattr(item, "fixturenames", ())
    return bool(uses) and item.get_closest_marker("one_database") is None


@pytest.fixture(autouse=True)
def _closed_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that would leave this machine fails the test. Rig tests have namespaces of their own."""
    if request.node.get_closest_marker("rig"):
        return
    connect = socket.socket.connect

    def guarded(sock: socket.socket, address: Any) -> None:
        if sock.family in {socket.AF_INET, socket.AF_INET6} and not _is_loopback(str(address[0])):
            pytest.fail(f"A test tried to reach {address[0]}:{address[1]}; the network is closed.")
        connect(sock, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _empty_cache() -> Iterator[None]:
    yield
    cache.clear()


@pytest.fixture(autouse=True)
def _a_worker_for_mails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mails that are owed are sent at once; tests of owing put a queue of their own here."""
    monkeypatch.setattr(owed_mails, "enqueue", lambda task, pk: task(pk))


@pytest.fixture
def user(db: None) -> User:
    """A renter with a verified address and a personal tenant."""
    return make.make_user("maya@example.test")


@pytest.fixture
def tenant(user: User) -> Tenant:
    """The renter's personal tenant."""
    return make.tenant_of(user)


@pytest.fixture
def stranger(db: None) -> User:
    """Another renter, who must not see anything of the first."""
    return make.make_user("stranger@example.test")


@pytest.fixture
def operator(db: None) -> User:
    """Staff with every right."""
    return make.make_user("operator@example.test", operator=True)


@pytest.fixture
def page(user: User) -> Client:
    """The renter's browser."""
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def api(user: User) -> ApiClient:
    """A program of the renter with every scope."""
    return ApiClient(make.make_token(user)[1])

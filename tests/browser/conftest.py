"""A real browser against the real application: uvicorn serves pages, API and streams; a redis-server of its own tells.

Whatever the browser complains about fails the test: the content security policy, a script, a missing file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.db import connection, connections
from playwright.sync_api import Page, sync_playwright

from nodes import broker
from rental import live
from tests.rig.services import redis_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import BrowserContext, ConsoleMessage, Response

CHROMIUM = "/usr/bin/chromium"
# Chromium says this when interfaces of the machine come and go, as they do beside tests of containers.
OTHERS_FAULT = "ERR_NETWORK_CHANGED"


@pytest.fixture
def redis(settings: Any) -> Iterator[None]:
    """A redis-server of this test: streams listen to it."""
    with redis_server() as url:
        settings.REDIS_URL = settings.NODE_BROKER_URL = url
        broker.close()
        live.close()
        yield
        broker.close()
        live.close()


@pytest.fixture
def portal(
    transactional_db: None, redis: None, settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """The address of the running application, a process of its own on the tests' database."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # Playwright keeps an event loop in the test's thread
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://localhost:{port}"
    (tmp_path / "static").mkdir()
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url(),
        "REDIS_URL": settings.REDIS_URL,
        "PORTAL_URL": address,
        "LESSOR_VAR": str(tmp_path),
    }
    command = [sys.executable, "-m", "uvicorn", "portal.asgi:application", "--port", str(port), "--log-level", "error"]
    log = tmp_path / "portal.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--timeout-graceful-shutdown", "1"], env=environment, stderr=output)
    try:
        deadline = time.monotonic() + 40
        while not listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the application did not start"
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in log.read_text(), log.read_text()


def listens(port: int) -> bool:
    """Does the application accept connections?"""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def database_url() -> str:
    """The database of this test, for another process. In memory it cannot be shared."""
    facts = connection.settings_dict
    if connection.vendor != "postgresql":
        pytest.skip("A browser test needs a database that two processes can open: PostgreSQL.")
    user = ":".join(quote(facts[name], safe="") for name in ("USER", "PASSWORD") if facts[name])
    return f"postgresql://{user}@{facts['HOST']}:{facts['PORT']}/{facts['NAME']}"


class Complaints(list[str]):
    """What the browser complained about so far."""

    def watch(self, page: Page) -> None:
        """Listen to a page."""
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.append(f"script: {error}"))
        page.on("response", self._answered)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and OTHERS_FAULT not in message.text:
            self.append(f"{message.type}: {message.text}")

    def _answered(self, response: Response) -> None:
        if response.status >= 500:
            self.append(f"{response.status} {response.url}")


@pytest.fixture
def browser_context(portal: str) -> Iterator[BrowserContext]:
    """A fresh browser profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(base_url=portal, viewport={"width": 1280, "height": 900})
        context.set_default_timeout(15_000)
        yield context
        connections.close_all()  # those the test opened beside Playwright's loop are others than pytest-django closes
        context.close()
        browser.close()


@pytest.fixture
def tab(browser_context: BrowserContext) -> Iterator[Page]:
    """A page that fails the test for whatever the browser complains about."""
    page = browser_context.new_page()
    complaints = Complaints()
    complaints.watch(page)
    yield page
    page.close()
    assert not complaints, complaints

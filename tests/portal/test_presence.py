"""Since when the portal has been receiving, asked over a real socket."""

from __future__ import annotations

import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from portal import presence, tasks
from portal.models import PortalPresence

if TYPE_CHECKING:
    from collections.abc import Iterator

    import time_machine

pytestmark = pytest.mark.django_db


class Web:
    """A web entry point that answers with a status of choice."""

    def __init__(self) -> None:
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the standard library's name
                self.send_response(outer.status)
                self.send_header("Location", "http://127.0.0.1:1/")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/healthz"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        """End it."""
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def web(settings: Any) -> Iterator[Web]:
    """The portal, as the presence task reaches it."""
    server = Web()
    settings.PRESENCE_URL = server.url
    yield server
    server.close()


def test_nothing_is_known_before_the_first_answer() -> None:
    assert presence.receiving_since() is None


def test_a_portal_that_answers_is_receiving_since_the_first_answer(
    web: Web, time_machine: time_machine.TimeMachineFixture
) -> None:
    start = timezone.now()
    for seconds in (0, 10, 20, 40, 70):
        time_machine.move_to(start + timedelta(seconds=seconds), tick=False)
        tasks.note_presence()
    assert presence.receiving_since() == start
    assert PortalPresence.objects.get().seen_at == start + timedelta(seconds=70)


def test_a_break_of_more_than_thirty_seconds_starts_anew(
    web: Web, time_machine: time_machine.TimeMachineFixture
) -> None:
    start = timezone.now()
    time_machine.move_to(start, tick=False)
    tasks.note_presence()
    time_machine.move_to(start + timedelta(seconds=31), tick=False)
    assert presence.receiving_since() is None
    tasks.note_presence()
    assert presence.receiving_since() == start + timedelta(seconds=31)


@pytest.mark.parametrize("status", [503, 500, 302, 404])
def test_an_answer_that_is_not_ok_does_not_count(web: Web, status: int, caplog: pytest.LogCaptureFixture) -> None:
    web.status = status
    if status == 302:
        assert presence.look()  # a redirect was received, and followed nowhere
        return
    tasks.note_presence()
    assert not PortalPresence.objects.exists()
    assert "does not answer" in caplog.text


def test_a_portal_that_is_away_leaves_the_row_as_it_was(web: Web, settings: Any) -> None:
    tasks.note_presence()
    before = PortalPresence.objects.values().get()
    settings.PRESENCE_URL = "http://127.0.0.1:1/healthz"
    tasks.note_presence()
    assert PortalPresence.objects.values().get() == before


def test_a_clock_set_back_does_not_move_the_row_back(web: Web) -> None:
    now = timezone.now()
    presence.note(now)
    presence.note(now - timedelta(minutes=5))
    assert PortalPresence.objects.get().seen_at == now

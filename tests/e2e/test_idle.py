"""Idleness on a live Lessor: what the agent measures, the portal decides and the renter reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig

WINDOW_S = 8


def test_a_lease_that_nothing_uses_is_warned_and_released_while_one_that_computes_runs_on(  # case D01, case D02
    stack: Stack, desk: Desk, renter: Renter, rent: Rent
) -> None:
    busy, idle = (rent(renter, inactive_timeout_s=WINDOW_S) for _ in range(2))
    # Both have a session open in which nobody types; behind one of them something computes.
    with busy.terminal(rows=24, cols=80) as session, idle.terminal(rows=24, cols=80) as terminal:
        session.type("/.lease/bin/busybox yes >/dev/null\n")
        told = terminal.read_until("unless it is used.")
        over = desk.ended(renter, idle.id)
        runs = renter.call("GET", f"leases/{busy.id}")

    assert re.search(r"Idle for \d+ s: this lease is released at \d\d:\d\d UTC", told)
    assert over["end_reason"] == "idle"
    assert desk.codes(renter, idle.id).count("idle_warning") == 1
    assert {signal["state"] for signal in over["activity"]["signals"]} == {"idle"}
    desk.assert_gone(idle.id)

    assert (runs["state"], runs["activity"]["release_at"]) == ("running", None)
    assert runs["activity"]["signal"] == "cpu"

    stack.wait("both mails", lambda: len(mails_about(stack, idle.id)) == 2)
    warning, end = mails_about(stack, idle.id)
    assert f"{stack.portal.url}/keep/" in warning
    assert "it was idle" in end
    assert mails_about(stack, busy.id) == []


def mails_about(stack: Stack, lease_id: str) -> list[str]:
    """The mails that name a lease, in order."""
    files = sorted((stack.portal.var / "mail").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    texts = [path.read_text().replace("=\n", "").replace("\n ", " ") for path in files]
    return [text for text in texts if re.search(f"^Subject:.*{lease_id}", text, re.MULTILINE)]

"""What only the clock ends. Last by name: its lease has run beside the other tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk

pytestmark = pytest.mark.rig


def test_the_node_stops_at_the_maximum_duration_and_no_second_more_is_charged(
    desk: Desk, neighbour: Renter, one_minute: dict[str, Any]
) -> None:
    neighbour.follow(one_minute["id"], "ready_at", since=time.monotonic())
    over = desk.ended(neighbour, one_minute["id"])

    assert over["end_reason"] == "max_duration"
    receipt = neighbour.call("GET", f"leases/{one_minute['id']}/receipt")
    assert 0 < receipt["seconds"] <= 60
    assert receipt["ledger_ticks"] == receipt["seconds"] * over["price_micros_per_hour"]
    desk.assert_gone(one_minute["id"])

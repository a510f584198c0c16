"""A node that says what its leases do, in simulated time, and short looks at what became of a lease."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.test import Client

from rental import tasks
from tests import make

if TYPE_CHECKING:
    import time_machine

    from nodes.models import Node
    from rental.models import Lease

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUIET: dict[str, Any] = {
    "covers_s": 15.0, "gpu_percent": 0.0, "cpu_percent": 0.4, "network_bytes_per_s": 120, "ssh_input": False,
}  # fmt: skip


class World:
    """A node that tells what its leases do, and the sweep after each heartbeat, in simulated time."""

    def __init__(self, node: Node, moment: time_machine.Traveller) -> None:
        self.node, self.moment = node, moment
        self.http = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})

    def beat(self, *leases: Lease, **values: Any) -> Any:
        """One heartbeat; each lease did nothing but ``values``."""
        said = [
            {
                "id": lease.pk,
                "generation": 1,
                "phase": "running",
                "container_id": lease.container_id,
                "activity": {**QUIET, **values},
            }
            for lease in leases
        ]
        return self.send(said)

    def send(self, leases: list[dict[str, Any]]) -> Any:
        body = {"boot_id": "b", "agent_run": "r", "clock": "", "leases": leases, "gpus": []}
        answer = self.http.post("/api/node/v1/heartbeat", json.dumps(body), content_type="application/json")
        assert answer.status_code == 200, answer.content
        return answer.json()

    def quiet(self, lease: Lease, minutes: float, **values: Any) -> None:
        """So long of nothing but ``values``, told in as few heartbeats as an agent that was cut off would."""
        left = int(minutes * 60)
        while left:
            seconds = next(step for step in (150, 60, 15) if step <= left)
            left -= seconds
            self.moment.shift(seconds)
            self.beat(lease, **{"covers_s": seconds, **values})
            tasks.sweep_idle()


def state(lease: Lease) -> tuple[str, str]:
    lease.refresh_from_db()
    return lease.state, lease.end_reason


def codes(lease: Lease) -> list[str]:
    return [code for code in lease.events.values_list("code", flat=True) if code.startswith(("idle", "kept"))]

"""Idleness with real threads on PostgreSQL: a sample, a keep and a stop at the moment of the release."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from portal.actor import Actor
from rental import activity, idle_services, services
from rental.models import Lease, LeaseActivity, LeaseEvent
from rental.states import EndReason, State
from tests import make
from tests.rental.test_races import at_once

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite lets one writer in at a time"),
]

SWEEP = Actor.system("idle")
QUIET: dict[str, Any] = {
    "covers_s": 15.0, "gpu_percent": 0, "cpu_percent": 0, "network_bytes_per_s": 0, "ssh_input": False,
}  # fmt: skip


def over(number: int) -> list[Lease]:
    """Leases of one node whose release is due now."""
    user = make.make_user()
    now = timezone.now()
    since = now - timedelta(seconds=700)
    moments: dict[str, Any] = {"ready_at": now - timedelta(hours=1), "inactive_timeout_s": 600}
    node = make.make_node(gpus=number)
    leases = [make.make_lease(make.tenant_of(user), node=node, **moments) for _ in range(number)]
    LeaseActivity.objects.bulk_create(
        LeaseActivity(
            lease=lease, sampled_at=now, active_at=since, warned_for=since, warned_at=now - timedelta(seconds=300)
        )
        for lease in leases
    )
    assert idle_services.due(timezone.now()) == sorted(lease.pk for lease in leases)
    return leases


def test_a_keep_and_the_release_in_one_moment_have_one_winner() -> None:
    for lease in over(6):
        kept, _ = at_once(
            partial(services.keep_lease, lease=lease, actor=SWEEP),
            partial(idle_services.settle, lease_id=lease.pk, actor=SWEEP),
        )
        lease.refresh_from_db()
        if kept == "illegal_state":
            assert (lease.state, lease.end_reason, lease.kept_at) == (State.STOPPING, EndReason.IDLE, None)
        else:
            assert (lease.state, lease.end_reason) == (State.RUNNING, "")


def test_two_sweeps_at_once_release_each_lease_once_while_samples_come_in() -> None:
    leases = over(6)

    def sweep() -> None:
        for lease in leases:
            idle_services.settle(lease_id=lease.pk, actor=SWEEP)

    def beats() -> None:
        for _ in range(10):
            activity.record(dict.fromkeys(leases, QUIET), timezone.now())

    at_once(sweep, sweep, beats, beats)
    assert Lease.objects.filter(state=State.STOPPING, end_reason=EndReason.IDLE).count() == 6
    assert LeaseEvent.objects.filter(code="idle").count() == 6


def test_two_heartbeats_at_once_lose_no_use() -> None:
    (lease,) = over(1)
    now = timezone.now()
    at_once(
        lambda: activity.record({lease: {**QUIET, "gpu_percent": 90}}, now),
        lambda: activity.record({lease: QUIET}, now),
    )
    assert LeaseActivity.objects.get(lease=lease).active_at == now

"""What nodes say leases did: kept once per heartbeat, read by the sweep, the page and the API.

Nothing is decided here; the policy is rental/idle.py, what follows from it rental/idle_services.py.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import transaction

from rental import idle
from rental.models import Lease, LeaseActivity
from rental.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

WAY_S = 5  # of a sample to us, beside the wait for its heartbeat
LOOKS_S = 30  # two looks of an agent: when nothing newer comes, what happens now is not known
ENFORCE, SHADOW = "enforce", "shadow"  # of IDLE_MODE; the third is off
WRITTEN = ("sampled_at", "uncovered_s", "active_at", "active_signal", "active_known", "signals")


@transaction.atomic
def record(samples: Mapping[Lease, Mapping[str, Any]], now: datetime) -> None:
    """Keep what a heartbeat said of running leases (with ``ready_at``). Two queries, however many leases.

    The rows are locked, so of two heartbeats at once the later one builds on the earlier.
    """
    if not samples:
        return
    rows = LeaseActivity.objects.select_for_update().filter(lease__in=[lease.pk for lease in samples])
    before = {row.lease_id: clock(row) for row in rows.order_by("lease_id")}
    after = [
        _row(lease, _advanced(before.get(lease.pk), lease, sample, now))
        for lease, sample in sorted(samples.items(), key=lambda item: item[0].pk)
    ]
    LeaseActivity.objects.bulk_create(
        after, update_conflicts=True, unique_fields=["lease"], update_fields=list(WRITTEN)
    )


def _advanced(before: idle.Clock | None, lease: Lease, sample: Mapping[str, Any], now: datetime) -> idle.Clock:
    slack_s = settings.HEARTBEAT_S + WAY_S
    return idle.advance(before, sample, now=now, ready_at=lease.ready_at or now, slack_s=slack_s, limits=limits())


def _row(lease: Lease, after: idle.Clock) -> LeaseActivity:
    return LeaseActivity(
        lease=lease,
        sampled_at=after.sampled_at,
        uncovered_s=after.uncovered_s,
        active_at=after.active_at,
        active_signal=after.signal or "",
        active_known=after.known,
        signals={
            signal: {
                "value": seen.value,
                "state": seen.state,
                "active_at": seen.active_at.isoformat() if seen.active_at else None,
            }
            for signal, seen in after.signals.items()
        },
    )


def clock(row: LeaseActivity) -> idle.Clock:
    """What a row says, as the policy takes it."""
    return idle.Clock(
        sampled_at=row.sampled_at,
        active_at=row.active_at,
        signal=idle.Signal(row.active_signal) if row.active_signal else None,
        known=row.active_known,
        uncovered_s=row.uncovered_s,
        signals={idle.Signal(name): _seen(facts) for name, facts in row.signals.items()},
    )


def _seen(facts: Mapping[str, Any]) -> idle.Seen:
    at = facts["active_at"]
    return idle.Seen(facts["value"], idle.Reading(facts["state"]), datetime.fromisoformat(at) if at else None)


def of(lease: Lease) -> LeaseActivity | None:
    """The row of a lease; None before its first sample. No query where it was selected with the lease."""
    try:
        return lease.activity
    except ObjectDoesNotExist:
        return None


def limits() -> idle.Limits:
    """From where on a signal counts as use, as the operator set it."""
    return idle.Limits(
        gpu_percent=settings.IDLE_GPU_PERCENT,
        cpu_percent=settings.IDLE_CPU_PERCENT,
        network_bytes_per_s=settings.IDLE_NETWORK_BYTES_PER_S,
    )


def rule(window_s: int) -> idle.Rule:
    """The rule for a lease with this idle limit."""
    return idle.Rule(
        window_s=window_s,
        exempt_s=settings.IDLE_EXEMPT_S,
        warn_before_s=settings.IDLE_WARN_BEFORE_S,
        fresh_s=settings.HEARTBEAT_S + LOOKS_S,
    )


def verdict(lease: Lease, row: LeaseActivity | None, now: datetime) -> idle.Verdict | None:
    """Where a running lease with an idle limit stands; None for every other, and before the first sample."""
    if row is None or lease.state != State.RUNNING or lease.ready_at is None or lease.inactive_timeout_s is None:
        return None
    person = idle.Person(lease.ready_at, lease.kept_at, row.warned_for, row.warned_at)
    return idle.judge(clock(row), rule(lease.inactive_timeout_s), person, now)


def signals(row: LeaseActivity) -> list[dict[str, Any]]:
    """Each signal of the last sample: ``{"name", "value", "limit", "state", "last_active_at"}``."""
    least, said = limits(), row.signals
    return [
        {
            "name": signal.value,
            "value": said[signal]["value"],
            "limit": least.of(signal),
            "state": said[signal]["state"],
            "last_active_at": said[signal]["active_at"],
        }
        for signal in idle.Signal
        if signal in said
    ]

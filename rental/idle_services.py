"""What follows from idleness: a warning, its withdrawal, a release; or, in shadow mode, only a line of history.

The sweep finds what is due without a lock; settle() looks again under the lease's lock, so a sample or a keep that came
in between counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from rental import activity, idle, lifecycle, notices
from rental.models import Lease, LeaseActivity
from rental.services import IDLE_WARNING, stop_lease
from rental.states import EndReason, State

if TYPE_CHECKING:
    from datetime import datetime

    from portal.actor import Actor

WARNED, RELEASED, SHADOWED = "idle_warning", "idle_released", "idle_shadow"  # codes of the history


def due(now: datetime) -> list[str]:
    """Ids of running leases with which something is to be done. One query; locks nothing."""
    rows = LeaseActivity.objects.filter(lease__state=State.RUNNING, lease__inactive_timeout_s__isnull=False)
    return [row.lease_id for row in rows.select_related("lease").order_by("lease_id") if _is_due(row, now)]


def _is_due(row: LeaseActivity, now: datetime) -> bool:
    verdict = activity.verdict(row.lease, row, now)
    if verdict is None:
        return False
    if settings.IDLE_MODE == activity.ENFORCE:
        return verdict.warn or verdict.release or verdict.taken_back
    return row.warned_for is not None or _to_shadow(row, verdict)


def _to_shadow(row: LeaseActivity, verdict: idle.Verdict) -> bool:
    return settings.IDLE_MODE == activity.SHADOW and verdict.over and row.shadowed_for != verdict.idle_since


@transaction.atomic
def settle(*, lease_id: str, actor: Actor) -> Lease:
    """Do what is due with a lease: take a warning back, warn, release, or note that it would have been released."""
    lease = Lease.objects.select_for_update(of=("self",)).select_related("tenant", "node").get(pk=lease_id)
    row = LeaseActivity.objects.filter(lease=lease).first()
    now = timezone.now()
    verdict = activity.verdict(lease, row, now)
    if row is None or verdict is None:
        return lease
    enforced = settings.IDLE_MODE == activity.ENFORCE
    if verdict.taken_back or (row.warned_for is not None and not enforced):
        notices.take_back(lease=lease, prefix=IDLE_WARNING)
        _mark(row, warned_for=None, warned_at=None)
    if enforced and verdict.release:
        return _release(lease, row, verdict, actor)
    if enforced and verdict.warn:
        _warn(lease, row, verdict, actor, now)
    elif _to_shadow(row, verdict):
        lifecycle.note(lease_id=lease_id, code=SHADOWED, actor=actor, data=facts(lease, row, verdict, now))
        _mark(row, shadowed_for=verdict.idle_since)
    return lease


def _warn(lease: Lease, row: LeaseActivity, verdict: idle.Verdict, actor: Actor, now: datetime) -> None:
    key = f"{IDLE_WARNING}{verdict.idle_since.isoformat()}"
    notices.tell(lease=lease, kind=WARNED, key=key, actor=actor, data=facts(lease, row, verdict, now))
    _mark(row, warned_for=verdict.idle_since, warned_at=now)


def _release(lease: Lease, row: LeaseActivity, verdict: idle.Verdict, actor: Actor) -> Lease:
    data = facts(lease, row, verdict, timezone.now())
    window_s = lease.inactive_timeout_s or 0
    detail = (
        f"Nothing used it for {window_s} seconds." if window_s % 60 else f"Nothing used it for {window_s // 60} min."
    )
    stopped = stop_lease(lease=lease, actor=actor, reason=EndReason.IDLE, detail=detail, data=data)
    notices.tell(
        lease=stopped, kind=RELEASED, key=f"{RELEASED}:{verdict.idle_since.isoformat()}", actor=actor, data=data
    )
    return stopped


def _mark(row: LeaseActivity, **values: datetime | None) -> None:
    """Only the sweep's own columns: a heartbeat may be writing the others."""
    for name, value in values.items():
        setattr(row, name, value)
    row.save(update_fields=list(values))


def facts(lease: Lease, row: LeaseActivity, verdict: idle.Verdict, now: datetime) -> dict[str, Any]:
    """What is kept with a warning or an end, and read by rental/idle_words.py."""
    return {
        "window_s": lease.inactive_timeout_s,
        "idle_s": int((now - verdict.idle_since).total_seconds()),
        "idle_since": verdict.idle_since.isoformat(),
        "release_at": verdict.release_at.isoformat() if verdict.release_at else None,
        "since": verdict.since,
        "signal": row.active_signal,
        "known": row.active_known,
        "signals": activity.signals(row),
    }

"""What people and programs are told of a lease's use: one set of facts for the page and the API. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from rental import activity, idle, idle_words
from rental.states import EndReason, State

if TYPE_CHECKING:
    from rental.models import Lease

NEVER_S: Final = 1_000_000_000  # stands for the window of a lease without an idle limit


@dataclass(frozen=True)
class Shown:
    """Where a lease stands. Of one that does not run any more: what its last sample said.

    ``state`` is a Reading, None when it does not run; ``idle_since`` and ``release_at`` are there while it is idle, the
    second only where idle leases are released. The clock runs from ``last_at``: ``last`` is ``use`` of ``signal``
    (empty: no sample covered that stretch; not ``known``: it could not be read), ``kept`` or ``ready``.
    ``signals`` are ``{"name", "value", "limit", "state", "last_active_at"}``.
    """

    state: str | None
    idle_since: datetime | None
    release_at: datetime | None
    last: str
    last_at: datetime
    signal: str
    known: bool
    sampled_at: datetime
    warned: bool
    signals: list[dict[str, Any]]


def shown(lease: Lease, now: datetime) -> Shown | None:
    """The facts; None before the node's first sample. No query when ``activity`` was selected with the lease."""
    row = activity.of(lease) if lease.ready_at else None
    if row is None or lease.ready_at is None:
        return None
    window_s = lease.inactive_timeout_s
    person = idle.Person(lease.ready_at, lease.kept_at, row.warned_for, row.warned_at)
    verdict = idle.judge(activity.clock(row), activity.rule(window_s or NEVER_S), person, now)
    runs = lease.state == State.RUNNING
    idles = runs and verdict.state == idle.Reading.IDLE
    enforced = window_s is not None and settings.IDLE_MODE == activity.ENFORCE
    return Shown(
        state=verdict.state if runs else None,
        idle_since=verdict.idle_since if idles and verdict.idle_since <= now else None,
        release_at=verdict.release_at if idles and enforced else None,
        last=verdict.since,
        last_at=verdict.idle_since,
        signal=row.active_signal,
        known=row.active_known,
        sampled_at=row.sampled_at,
        warned=idles and row.warned_for == verdict.idle_since,
        signals=[{**said, "last_active_at": _moment(said["last_active_at"])} for said in activity.signals(row)],
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def end_facts(lease: Lease) -> dict[str, Any]:
    """For the receipt of a lease that was released because it was idle: the sentence and what was measured last."""
    event = lease.events.filter(code=EndReason.IDLE).first() if lease.end_reason == EndReason.IDLE else None
    if event is None:
        return {}
    return {"idle_why": idle_words.why(event.data), "use_lines": idle_words.lines(event.data["signals"])}


def facts(lease: Lease, now: datetime) -> dict[str, Any]:
    """The page's context: ``use``, its signals as rows in words, how long it has been idle, the portal's mode."""
    use = shown(lease, now)
    return {
        "use": use,
        "use_lines": idle_words.lines(use.signals) if use else [],
        "idle_unix": int(use.idle_since.timestamp()) if use and use.idle_since else None,
        "used_by": idle_words.used_by(use.last, use.signal, known=use.known) if use else "",
        "window": None if lease.inactive_timeout_s is None else idle_words.span(lease.inactive_timeout_s),
        "idle_mode": settings.IDLE_MODE,
    }

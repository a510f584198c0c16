"""The only writer of a lease's state. One call is one step of the table in rental/states.py and one line of history.

Everything that must hold together with a step happens in its transaction: charging begins and ends, capacity and money
are given back. Locks are taken in one order everywhere: lease, slots, node, account (docs/concurrency.md).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from billing.services import release_hold
from nodes.models import GpuSlot
from portal.errors import IllegalTransition
from portal.ready import Ready
from rental import gaps, live, metering
from rental.models import Allocation, Lease, LeaseEvent
from rental.states import NEXT, EndReason, Gap, State

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from django.db.models import QuerySet

    from portal.actor import Actor

# What a caller of move() may set along with a step; the rest of a lease is decided by the step itself.
SETTABLE = frozenset(
    {
        "node", "generation", "container_id", "cpus_milli", "memory_bytes", "workspace_bytes", "evidence", "progress",
        "end_reason", "end_detail", "started_at",
    }
)  # fmt: skip
WRITTEN = (
    *SETTABLE, "state", "assigned_at", "ready_at", "deadline_at", "confirmed_at", "stop_requested_at", "ended_at",
)  # fmt: skip


def _locking(lease: str) -> QuerySet[Lease]:
    return Lease.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=lease)


_LOCKING: Final = Ready(_locking, lease="?lease")


def lock(*, lease_id: str) -> Lease:
    """The lease with its tenant, its row locked until the transaction ends. Raises Lease.DoesNotExist."""
    found: list[Lease] = _LOCKING.rows(lease=lease_id)
    if not found:
        raise Lease.DoesNotExist
    return found[0]


def begin(**facts: Any) -> Lease:
    """A new lease in the first state; ``facts`` are what was ordered. The same transaction goes on to assign()."""
    return Lease.objects.create(state=State.REQUESTED, **facts)


@transaction.atomic(savepoint=False)
def assign(*, lease: Lease, actor: Actor, **changes: Any) -> Lease:
    """The step after begin(), in the same transaction, with the first two lines of history; ``changes`` as in move().

    Nobody has seen the lease yet, and its row is this transaction's: it is not read and locked once more.
    """
    before, now = lease.state, timezone.now()
    if State.ASSIGNED not in NEXT[before]:
        raise IllegalTransition(f"{lease.pk}: {before} -> {State.ASSIGNED}", extra={"state": before})
    ordered = _line(lease, "", code="requested", actor=actor, at=lease.requested_at)
    _change(lease, changes)
    lease.state = State.ASSIGNED
    _enter(lease, lease.state, now)
    lease.save(update_fields=[*changes, "state", "assigned_at"])
    LeaseEvent.objects.bulk_create([ordered, _line(lease, before, code="assigned", actor=actor, at=now)])
    live.publish(lease)
    return lease


@transaction.atomic
def move(
    *,
    lease_id: str,
    to: str,
    code: str,
    actor: Actor,
    detail: str = "",
    data: dict[str, Any] | None = None,
    expect: Collection[str] | None = None,
    keep_capacity: bool = False,
    gpu_well_until: datetime | None = None,
    locked: Lease | None = None,
    **changes: Any,
) -> Lease:
    """Take one step and return the lease as it is after it.

    ``code`` names what happened in the history, ``expect`` the states the caller counts on; ``changes`` are fields of
    SETTABLE, ``evidence`` is merged. ``keep_capacity`` ends a lease whose node has not said that its devices are clean:
    they stay taken until free_capacity(). ``gpu_well_until``: what comes after is not charged, for a GPU that failed.
    ``locked`` is the lease where this transaction has read and locked its row (see lock()).
    Raises IllegalTransition for a step that is not in the table or not expected.
    """
    lease = locked or lock(lease_id=lease_id)
    before = lease.state
    if to not in NEXT[before] or (expect is not None and before not in expect):
        raise IllegalTransition(f"{lease_id}: {before} -> {to}", extra={"state": before})
    now = timezone.now()
    _change(lease, changes)
    lease.state = to
    if before == State.RUNNING:
        _end_charging(lease, to, now, gpu_well_until)
    _leave(lease, to, now, keep_capacity=keep_capacity)
    _enter(lease, to, now)
    lease.save(update_fields=WRITTEN)
    _record(lease, before, code=code, actor=actor, detail=detail, data=data, at=now)
    live.publish(lease)
    return lease


@transaction.atomic
def note(
    *,
    lease_id: str,
    code: str,
    actor: Actor,
    detail: str = "",
    data: dict[str, Any] | None = None,
    locked: Lease | None = None,
    **changes: Any,
) -> Lease:
    """A line of history without a step; ``changes`` and ``locked`` as in move(), and ``kept_at``."""
    lease = locked or lock(lease_id=lease_id)
    kept_at = changes.pop("kept_at", None)
    _change(lease, changes)
    fields = set(changes)
    if kept_at is not None:
        lease.kept_at = kept_at
        fields.add("kept_at")
    if fields:
        lease.save(update_fields=fields)
    _record(lease, lease.state, code=code, actor=actor, detail=detail, data=data, at=timezone.now())
    live.publish(lease)
    return lease


@transaction.atomic
def show_progress(*, lease_id: str, progress: str) -> Lease:
    """How far the image is, for who is watching; it changes too often for the history."""
    lease = Lease.objects.select_for_update().get(pk=lease_id)
    changed, lease.progress, lease.pulled_at = lease.progress != progress, progress, timezone.now()
    lease.save(update_fields=["progress", "pulled_at"])
    if changed:
        live.publish(lease)
    return lease


@transaction.atomic
def bridge(*, lease_id: str, actor: Actor) -> Lease:
    """The node vouches again after more silence than is confirmed afterwards: that stretch becomes a gap, not charged.

    Happens when it was the portal that was away, or its clock that jumped; a silent node's leases are lost before.
    """
    lease = lock(lease_id=lease_id)
    now = timezone.now()
    last = lease.confirmed_at
    if lease.state != State.RUNNING or last is None or now - last <= timedelta(seconds=settings.SILENCE_S):
        return lease
    _bridge(lease, last, now)
    lease.confirmed_at = now
    lease.deadline_at = metering.deadline(lease)
    lease.save(update_fields=["confirmed_at", "deadline_at"])
    silent_s = (now - last) // timedelta(seconds=1)
    _record(lease, lease.state, code="node_heard", actor=actor, at=now, data={"silent_s": silent_s})
    live.publish(lease)
    return lease


def _bridge(lease: Lease, last: datetime, now: datetime) -> None:
    gap = gaps.opened(lease)
    if gap is None:
        metering.pause_segment(lease, last)
        gaps.record(lease, Gap.NODE_SILENT, last, now)
        metering.open_segment(lease, now)
        return
    # Silence takes over from another gap, which goes on when the node is heard again: nothing says that it is over.
    turn = max(last, gap.start)
    gaps.end(gap, turn)
    gaps.record(lease, Gap.NODE_SILENT, turn, now)
    gaps.begin(lease, gap.reason, now, gap.detail)


@transaction.atomic
def interrupt(*, lease_id: str, reason: str, since: datetime, actor: Actor, detail: str = "") -> Lease:
    """Charging pauses at ``since``, for this reason, until resume(); ``reason`` is the code in the history too.

    ``since`` is not before the lease was charged. Time before it for which nobody vouched is not charged either.
    Nothing changes for a lease that does not run, is in a gap already, or is past its deadline.
    """
    lease = lock(lease_id=lease_id)
    now, segment = timezone.now(), metering.opened(lease)
    over = lease.deadline_at is not None and lease.deadline_at <= now
    if lease.state != State.RUNNING or segment is None or over:
        return lease
    start = max(segment.start, min(since, now))
    vouched = max(segment.start, metering.charged_until(lease, now))
    metering.pause_segment(lease, min(start, vouched))
    gaps.record(lease, Gap.NODE_SILENT, vouched, start)
    gaps.begin(lease, reason, start, detail)
    lease.deadline_at = metering.deadline(lease)
    lease.save(update_fields=["deadline_at"])
    data = {"since": start.isoformat(), "generation": lease.generation}
    _record(lease, lease.state, code=reason, actor=actor, detail=detail, data=data, at=now)
    live.publish(lease)
    return lease


@transaction.atomic
def resume(*, lease_id: str, reason: str, code: str, actor: Actor, detail: str = "") -> Lease:
    """The gap of this reason is over, and charging goes on. Nothing changes for a lease that is in none such."""
    lease = lock(lease_id=lease_id)
    gap = gaps.opened(lease)
    if lease.state != State.RUNNING or gap is None or gap.reason != reason:
        return lease
    now = timezone.now()
    at = max(now, gap.start)
    gaps.end(gap, at)
    metering.open_segment(lease, at)
    lease.confirmed_at = max(at, lease.confirmed_at or at)
    lease.deadline_at = metering.deadline(lease)
    lease.save(update_fields=["confirmed_at", "deadline_at"])
    seconds = (at - gap.start) // timedelta(seconds=1)
    _record(lease, lease.state, code=code, actor=actor, detail=detail, data={"seconds": seconds}, at=now)
    live.publish(lease)
    return lease


@transaction.atomic
def limit(*, lease_id: str, actor: Actor, code: str, max_duration_s: int, spend_cap_micros: int | None) -> Lease:
    """Other limits for a lease that is not over; its deadline moves with them. Whoever calls has judged them."""
    lease = Lease.objects.select_for_update(of=("self",)).select_related("tenant", "node").get(pk=lease_id)
    data = {
        "max_duration_s": [lease.max_duration_s, max_duration_s],
        "spend_cap_micros": [lease.spend_cap_micros, spend_cap_micros],
    }
    lease.max_duration_s, lease.spend_cap_micros = max_duration_s, spend_cap_micros
    if lease.state == State.RUNNING:
        lease.deadline_at = metering.deadline(lease)
    lease.save(update_fields=["max_duration_s", "spend_cap_micros", "deadline_at"])
    _record(lease, lease.state, code=code, actor=actor, data=data, at=timezone.now())
    live.publish(lease)
    return lease


@transaction.atomic
def free_capacity(*, lease_id: str) -> int:
    """Give back the slots of a lease that is over; returns how many. Safe to call again."""
    Lease.objects.select_for_update().get(pk=lease_id)
    return _free(lease_id, timezone.now())


def _change(lease: Lease, changes: dict[str, Any]) -> None:
    unknown = changes.keys() - SETTABLE
    if unknown:
        raise TypeError(f"not set by a step: {', '.join(sorted(unknown))}")
    evidence = changes.get("evidence")
    if evidence is not None:
        changes = {**changes, "evidence": {**lease.evidence, **evidence}}
    if lease.end_reason:  # the first reason stands: what comes later is a consequence
        changes = {name: value for name, value in changes.items() if name not in {"end_reason", "end_detail"}}
    for name, value in changes.items():
        setattr(lease, name, value)


def _end_charging(lease: Lease, to: str, now: datetime, gpu_well_until: datetime | None) -> None:
    """Close what is charged where it was last known to be well; the rest until now is a gap with its reason."""
    lost = to == State.INTERRUPTED and lease.end_reason == EndReason.NODE_LOST
    until, reason = metering.vouched_until(lease, now, lost=lost), Gap.NODE_SILENT
    if gpu_well_until is not None and gpu_well_until < until:
        until, reason = gpu_well_until, Gap.GPU_LOST
    gap = gaps.opened(lease)
    if gap is not None:
        # A gap that began after the last word of the node explains the silence as well.
        turn = until if until > gap.start else max(now, gap.start)
        gaps.end(gap, turn)
        gaps.record(lease, reason, turn, now)
        return
    segment = metering.close_segment(lease, until if lease.deadline_at is None else min(until, lease.deadline_at))
    gaps.record(lease, reason, max(until, segment.start if segment else until), now)


def _leave(lease: Lease, to: str, now: datetime, *, keep_capacity: bool) -> None:
    """What ends with the old state."""
    if to == State.ENDED and not keep_capacity:
        _free(lease.pk, now)  # before the account is touched: slots come first in the order of locks
    if to in {State.STOPPING, State.INTERRUPTED, State.ENDED}:
        release_hold(lease_id=lease.pk)  # nothing more will be charged


def _enter(lease: Lease, to: str, now: datetime) -> None:
    """What begins with the new state."""
    if to == State.ASSIGNED:
        lease.assigned_at = now
    elif to == State.RUNNING:
        lease.ready_at = lease.ready_at or now
        lease.confirmed_at = now
        lease.progress = ""
        metering.open_segment(lease, now)
        lease.deadline_at = metering.deadline(lease)
    elif to == State.STOPPING:
        lease.stop_requested_at = now
    elif to == State.REQUESTED:
        lease.node, lease.container_id, lease.end_reason = None, "", ""
    elif to == State.ENDED:
        lease.ended_at = now
        lease.progress = ""
    if to in {State.STOPPING, State.ENDED} and not lease.end_reason:
        raise TypeError(f"{lease.pk}: a step to {to} needs an end_reason")


def _free(lease_id: str, now: datetime) -> int:
    held: list[tuple[int, int]] = _HELD.rows(lease=lease_id)
    for milli in {milli for _, milli in held}:  # one, but for shares of several sizes; those of other leases stay
        mine = GpuSlot.objects.filter(pk__in=[slot for slot, taken in held if taken == milli])
        mine.update(used_milli=F("used_milli") - milli)
    if not held:
        return 0
    return Allocation.objects.filter(lease_id=lease_id, released_at__isnull=True).update(released_at=now)


def _held(lease: str) -> QuerySet[GpuSlot, tuple[int, int]]:
    """The slots that a lease has, locked by id, with how much of each."""
    slots = GpuSlot.objects.filter(allocations__lease=lease, allocations__released_at__isnull=True)
    return slots.select_for_update(of=("self",)).order_by("pk").values_list("pk", "allocations__milli")


_HELD: Final = Ready(_held, lease="?lease")


def _record(lease: Lease, before: str, **facts: Any) -> None:
    _line(lease, before, **facts).save(force_insert=True)


def _line(
    lease: Lease,
    before: str,
    *,
    code: str,
    actor: Actor,
    at: datetime,
    detail: str = "",
    data: dict[str, Any] | None = None,
) -> LeaseEvent:
    return LeaseEvent(
        lease=lease,
        at=at,
        from_state=before,
        to_state=lease.state,
        code=code,
        detail=detail[:500],
        actor_label=actor.label,
        data=data or {},
    )

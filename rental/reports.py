"""What nodes say about leases, and what follows. Every event has a defined answer in every state.

A report may come late, twice, or in any order. What a lease already left behind changes nothing; nothing a node says
about time or money is used; what it says about devices and keys is compared with what was ordered.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from nodes import broker
from nodes import services as nodes
from portal.actor import Actor
from portal.errors import DomainError, NotFound
from rental import access, activity, lifecycle, metering, payloads
from rental.models import Allocation, Lease, device_uuids
from rental.states import BEFORE_READY, LIVE, EndReason, Gap, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nodes.models import Node

WANT = {
    State.ASSIGNED: "run",
    State.STARTING: "run",
    State.RUNNING: "run",
    State.STOPPING: "stop",
}  # in any other state nothing of the lease is expected on a node: none


class StaleGeneration(DomainError):
    """Another container of this lease is the current one."""

    code = "stale_generation"


# A gap may begin before its report, but not much: what was confirmed a minute ago worked.
MOST_BEFORE_REPORT: Final = timedelta(seconds=120)
MOST_BEFORE_CONFIRMED: Final = timedelta(seconds=60)


def handle(*, node: Node, lease_id: str, payload: Any) -> dict[str, str]:
    """Take in one report; ``{"state", "want"}`` tells the agent where the lease stands now.

    Raises NotFound for a lease that is not this node's, ``stale_generation``, InvalidInput.
    """
    report = payloads.read(payloads.ReportIn, payload)
    with transaction.atomic():
        lease = _locked(node, lease_id)
        if lease.generation != report["generation"]:
            raise StaleGeneration(f"The current generation is {lease.generation}.", extra={"state": lease.state})
        after = HANDLERS[report["event"]](_Report(node, lease, report))
    return {"state": after.state, "want": WANT.get(State(after.state), "none")}


def _locked(node: Node, lease_id: str) -> Lease:
    try:
        lease = lifecycle.lock(lease_id=lease_id)
    except Lease.DoesNotExist:
        lease = None
    if lease is None or lease.node_id != node.pk:
        raise NotFound("No such lease on this node.")
    lease.node = node
    return lease


def confirm(
    *,
    node: Node,
    leases: Iterable[dict[str, Any]],
    now: datetime,
    settled: bool = True,
    listed_after: datetime | None = None,
) -> list[str]:
    """Note which leases the node vouches for at ``now`` and what they did; the ids it holds but should not.

    ``settled`` says that this agent has looked at its engine before: only then does a lease it does not list prove that
    nothing is left of it, and frees the devices of one that ended while the node was away. The list was made after
    ``listed_after`` (None: this moment): what ended later may have been begun on the node since it was made.
    """
    held = {lease["id"]: lease for lease in leases}
    mine = {
        lease.pk: lease
        for lease in Lease.objects.filter(pk__in=held, node=node).only(
            "state", "generation", "container_id", "confirmed_at", "ready_at"
        )
    }
    vouched = [lease for lease in mine.values() if _vouches(held[lease.pk], lease)]
    _confirm(vouched, now, actor=Actor.system(f"node {node.name}"))
    activity.record({lease: said for lease in vouched if (said := held[lease.pk].get("activity"))}, now)
    if settled:
        _free_what_is_gone(node, held, listed_after or now)
    return sorted(lease_id for lease_id in held if lease_id not in mine or mine[lease_id].state not in LIVE)


def _vouches(said: dict[str, Any], lease: Lease) -> bool:
    return (
        lease.state == State.RUNNING
        and said["phase"] == "running"
        and said["generation"] == lease.generation
        and said["container_id"] == lease.container_id
    )


def _confirm(vouched: list[Lease], now: datetime, actor: Actor) -> None:
    limit = timedelta(seconds=settings.SILENCE_S)
    for lease in vouched:
        if lease.confirmed_at is not None and now - lease.confirmed_at > limit:
            lifecycle.bridge(lease_id=lease.pk, actor=actor)
    # Never backwards: a clock that was set back takes back nothing that was confirmed.
    Lease.objects.filter(pk__in=[lease.pk for lease in vouched], state=State.RUNNING, confirmed_at__lt=now).update(
        confirmed_at=now
    )


def _free_what_is_gone(node: Node, held: Iterable[str], listed_after: datetime) -> None:
    """An order is handed out until its lease ends, and not later: a list made after the end has whatever came of it."""
    over = Allocation.objects.filter(
        lease__node=node, lease__state=State.ENDED, lease__ended_at__lte=listed_after, released_at__isnull=True
    )
    for lease_id in sorted(set(over.exclude(lease_id__in=held).values_list("lease_id", flat=True))):
        lifecycle.free_capacity(lease_id=lease_id)


class _Report:
    """One report beside the lease it is about, locked."""

    def __init__(self, node: Node, lease: Lease, said: dict[str, Any]) -> None:
        self.node = node
        self.lease = lease
        self.event: str = said["event"]
        self.detail: str = said["detail"]
        self.failure: str = said["failure"] or EndReason.FAILED_LAUNCH
        self.container_id: str = said["container_id"]
        self.evidence: dict[str, Any] = said["evidence"] or {}
        self.actor = Actor.system(f"node {node.name}")

    def move(self, to: str, code: str, **changes: Any) -> Lease:
        """One step; the report's words become its detail."""
        detail = changes.pop("detail", self.detail)
        self.lease = lifecycle.move(
            lease_id=self.lease.pk, to=to, code=code, actor=self.actor, detail=detail, locked=self.lease, **changes
        )
        return self.lease

    def note_once(self, **changes: Any) -> Lease:
        """A line of history for this event, however often it is reported."""
        if not self.lease.events.filter(code=self.event, data__generation=self.lease.generation).exists():
            self.lease = lifecycle.note(
                lease_id=self.lease.pk,
                code=self.event,
                actor=self.actor,
                detail=self.detail,
                data={"generation": self.lease.generation},
                locked=self.lease,
                **changes,
            )
        return self.lease

    def stop(self, reason: str, detail: str = "") -> Lease:
        """The lease ends for this reason; the node cleans without being told."""
        detail = detail or self.detail
        return self.move(State.STOPPING, reason, detail=detail, end_reason=reason, end_detail=detail)


def _pulling(report: _Report) -> Lease:
    if report.lease.state not in {State.ASSIGNED, State.STARTING}:
        return report.lease
    progress = (report.detail or "pulling the image")[:200]
    if report.lease.events.filter(code="pulling", data__generation=report.lease.generation).exists():
        return lifecycle.show_progress(lease_id=report.lease.pk, progress=progress)
    return report.note_once(progress=progress)


def _starting(report: _Report) -> Lease:
    if report.lease.state == State.ASSIGNED:
        return report.move(State.STARTING, "starting", progress="starting")
    return report.lease


def _started(report: _Report) -> Lease:
    lease = _starting(report)
    if lease.state != State.STARTING:
        return lease
    changes: dict[str, Any] = {"container_id": report.container_id, "progress": "checking"}
    if lease.started_at is None:
        changes["started_at"] = timezone.now()
    return report.note_once(**changes)


def _ready(report: _Report) -> Lease:
    """The node's three proofs, checked against the order before anything is charged."""
    lease = _starting(report)
    if lease.state != State.STARTING:
        return lease
    wrong_devices = _wrong_devices(lease, report.evidence)
    if wrong_devices:
        return report.stop(EndReason.FAILED_GPU, wrong_devices)
    wrong_keys = _wrong_keys(lease, report.evidence)
    if wrong_keys:
        return report.stop(EndReason.FAILED_LAUNCH, wrong_keys)
    changes: dict[str, Any] = {"evidence": {"ready": report.evidence}}
    if report.container_id:
        changes["container_id"] = report.container_id
    return report.move(State.RUNNING, "ready", **changes)


def _wrong_devices(lease: Lease, evidence: dict[str, Any]) -> str:
    expected = device_uuids([lease]).get(lease.pk, [])
    seen = sorted(evidence.get("devices_seen") or [])
    if seen == expected:
        return _hearsay(lease, evidence)
    return f"The container saw other devices than were leased: {', '.join(seen) or 'none'}."[:500]


def _hearsay(lease: Lease, evidence: dict[str, Any]) -> str:
    """A real GPU must have been seen through its driver; the environment repeats only what was asked for."""
    if evidence.get("devices_source") == "nvml" or (lease.node is not None and lease.node.simulated):
        return ""
    return "The NVIDIA driver's library did not answer inside the container."


def _wrong_keys(lease: Lease, evidence: dict[str, Any]) -> str:
    """A key that was added after the order may be missing yet: the node is being told. No other difference is right."""
    keys = access.keys_of([lease])[lease.pk]
    seen = set(evidence.get("keys_seen") or [])
    ordered_at = lease.assigned_at or lease.requested_at
    missing = [key.fingerprint for key in keys if key.created_at < ordered_at and key.fingerprint not in seen]
    extra = seen - {key.fingerprint for key in keys}
    if missing:
        return f"The gateway did not have the key {missing[0]}."
    return f"The gateway had a key that does not open this lease: {min(extra)}." if extra else ""


def _failed(report: _Report) -> Lease:
    if report.lease.state in BEFORE_READY:
        return report.stop(report.failure)
    return _exited(report)


def _exited(report: _Report) -> Lease:
    state = report.lease.state
    if state in BEFORE_READY:
        code = report.evidence.get("exit_code")
        return report.stop(
            EndReason.FAILED_LAUNCH, report.detail or f"The main process ended at once, with exit code {code}."
        )
    if state == State.RUNNING:
        return report.stop(EndReason.RELEASED, report.detail or _exit_words(report.evidence))
    return report.note_once() if state == State.STOPPING else report.lease


def _exit_words(evidence: dict[str, Any]) -> str:
    if evidence.get("oom_killed"):
        return "The main process was ended because the lease's memory was used up."
    code = evidence.get("exit_code")
    return "The main process ended." if code is None else f"The main process ended with exit code {code}."


def _deadline(report: _Report) -> Lease:
    if report.lease.state == State.RUNNING:
        return report.stop(metering.deadline_reason(report.lease))
    return report.note_once() if report.lease.state == State.STOPPING else report.lease


def _stopped(report: _Report) -> Lease:
    """Without an order to stop, an end or a deadline before it, the node gave the lease up by itself."""
    state = report.lease.state
    if state in BEFORE_READY:
        return report.stop(EndReason.FAILED_LAUNCH, report.detail or "The node gave the launch up.")
    if state == State.RUNNING:
        report.stop(EndReason.NODE_LOST, report.detail or "The node gave the lease up.")
    if report.lease.state == State.STOPPING:
        return report.note_once(evidence={"stopped": report.evidence})
    return report.lease


def _cleaned(report: _Report) -> Lease:
    if report.lease.state == State.ENDED:
        lifecycle.free_capacity(lease_id=report.lease.pk)
        return report.lease
    if report.lease.state in {State.REQUESTED, State.INTERRUPTED}:
        return report.lease
    if report.lease.state != State.STOPPING:
        _stopped(report)
    return report.move(State.ENDED, report.event, evidence={"cleaned": report.evidence})


def _cleaning_failed(report: _Report) -> Lease:
    """The devices named go out of service in the same transaction that frees the rest: nothing dirty is ever sold."""
    mine = set(device_uuids([report.lease]).get(report.lease.pk, []))
    named = report.evidence.get("quarantine") or []
    # A node that says "not clean" without saying what has all of the lease's devices examined.
    uuids = sorted(mine & set(named)) if named else sorted(mine)
    failed = [step["name"] for step in report.evidence.get("steps", []) if not step["ok"]]
    words = f"{report.lease.pk} did not come clean: {', '.join(failed) or report.detail or 'no reason given'}"
    if uuids:
        nodes.quarantine(uuids=uuids, node=report.node, note=words[:500])
    return _cleaned(report)


def _ssh_down(report: _Report) -> Lease:
    """Nobody gets in: not charged from the first look that failed; only its age is taken from the node."""
    lease, now = report.lease, timezone.now()
    if lease.state != State.RUNNING:
        return lease
    since = now - min(timedelta(seconds=report.evidence.get("since_s") or 0), MOST_BEFORE_REPORT)
    if lease.confirmed_at is not None:
        since = max(since, lease.confirmed_at - MOST_BEFORE_CONFIRMED)
    detail = report.detail or report.evidence.get("why") or ""
    paused = lifecycle.interrupt(lease_id=lease.pk, reason=Gap.SSH_DOWN, since=since, actor=report.actor, detail=detail)
    return _tell_deadline(lease, paused)


def _ssh_up(report: _Report) -> Lease:
    lease = report.lease
    resumed = lifecycle.resume(
        lease_id=lease.pk, reason=Gap.SSH_DOWN, code="ssh_up", actor=report.actor, detail=report.detail
    )
    return _tell_deadline(lease, resumed)


def _tell_deadline(before: Lease, after: Lease) -> Lease:
    """A spend cap is not used up in a gap, so the end may have moved: the node must not stop it at the old one."""
    if after.deadline_at != before.deadline_at and after.node_id:
        broker.wake(node_id=after.node_id, lease_id=after.pk)
    return after


HANDLERS: dict[str, Callable[[_Report], Lease]] = {
    "pulling": _pulling,
    "starting": _starting,
    "started": _started,
    "ready": _ready,
    "failed": _failed,
    "exited": _exited,
    "deadline": _deadline,
    "stopped": _stopped,
    "cleaned": _cleaned,
    "cleaning_failed": _cleaning_failed,
    "ssh_down": _ssh_down,
    "ssh_up": _ssh_up,
}

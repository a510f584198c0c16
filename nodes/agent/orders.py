"""The portal's newest word about one lease: what it means for a lease that is here, and what ends one."""

from dataclasses import dataclass
from typing import Literal

from nodes.agent.contact import now
from nodes.agent.desired import DesiredLease
from nodes.agent.store import LeaseRecord, Phase

EndCause = Literal["ordered", "unwanted", "superseded", "deadline", "silence", "exited"]
SAME_DEADLINE_S = 2.0
WHY: dict[EndCause, str] = {
    "ordered": "",
    "unwanted": "the portal does not expect this lease here",
    "superseded": "a newer generation of the lease is wanted",
    "deadline": "the maximum duration is over",
    "silence": "the portal was not heard for too long",
    "exited": "the main process ended",
}


@dataclass(frozen=True)
class Order:
    """The lease as wanted, or None for "should not exist here"; `deadline` by the clock of `nodes.agent.contact.now`.

    The deadline travels as seconds that are left and counts from the moment the order came in.
    """

    lease: DesiredLease | None
    deadline: float | None

    def moves(self, record: LeaseRecord) -> bool:
        """Whether it changes the deadline of a lease by more than two answers of the portal differ in passing."""
        if self.deadline is None or record.deadline is None:
            return self.deadline is not record.deadline
        return abs(self.deadline - record.deadline) > SAME_DEADLINE_S


def taken(lease: DesiredLease | None) -> Order:
    """An order that comes in now."""
    return Order(lease, None if lease is None or lease.deadline_s is None else now() + lease.deadline_s)


def new_record(lease: DesiredLease) -> LeaseRecord:
    """What an order for a lease that is not here begins."""
    phase: Phase = "starting" if lease.want == "run" else "stopping"
    return LeaseRecord(lease.id, lease.generation, phase, devices=lease.devices, desired=lease)


def deadline_of(order: Order | None, record: LeaseRecord) -> float | None:
    """When a lease has to end; what an earlier agent remembers counts only until the portal has spoken."""
    return order.deadline if order else record.deadline


def end_cause(order: Order | None, record: LeaseRecord, silent_at: float) -> EndCause | None:
    """Why a lease that is here has to end now; None: it goes on. `silent_at`: when the portal was unheard too long."""
    if order and order.lease is None:
        return "unwanted"
    if order and order.lease and order.lease.generation != record.generation:
        return "superseded"
    if order and order.lease and order.lease.want == "stop":
        return "ordered"
    deadline = deadline_of(order, record)
    if deadline is not None and now() >= deadline:
        return "deadline"
    return "silence" if now() >= silent_at else None

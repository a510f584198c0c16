"""Any sequence of orders, reports, stops, drains, silences and sweeps keeps the same truths, on both databases.

Hypothesis chooses what happens next; each example runs in a transaction of its own that is rolled back.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import time_machine
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from billing import books
from billing.models import Hold, LedgerEntry
from nodes import services as nodes
from nodes.models import GpuSlot, Node
from portal import presence
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import Tenant, User
from rental import receipts, reports, services, tasks
from rental.models import Allocation, Lease, UsageSegment
from rental.states import LIVE, State
from tests import make
from tests.rental.factories import a_quote, good_evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
ACTOR = Actor.system("machine")
# What nodes say, the likely more often.
EVENTS = (
    "starting", "started", "ready", "ready", "ready", "failed", "exited", "deadline", "stopped", "cleaned", "cleaned",
    "ssh_down", "ssh_up",
)  # fmt: skip
SWEEPS = (tasks.sweep_deadlines, tasks.sweep_unanswered, tasks.sweep_silence, tasks.sweep_holds)
NUMBER = st.integers(0, 7)


@contextmanager
def _refusals() -> Iterator[None]:
    """A refusal is an answer, and must have changed nothing; anything else is a fault."""
    try:
        with transaction.atomic():
            yield
    except DomainError:
        pass


class Rental(RuleBasedStateMachine):
    """Two nodes of two GPUs, two tenants, one clock."""

    nodes: list[Node]
    people: list[User]
    tenants: list[Tenant]

    @initialize()
    def begin(self) -> None:
        """A transaction that is thrown away, at the same moment as ever."""
        self.travel = time_machine.travel(START, tick=False)
        self.clock = self.travel.start()
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def teardown(self) -> None:
        """Undo; the real time again."""
        if hasattr(self, "atomic"):
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)
            self.travel.stop()

    @rule(who=st.integers(0, 1), count=st.integers(1, 2), hours=st.integers(1, 3), cap=st.sampled_from([None, 900_000]))
    def order(self, who: int, count: int, hours: int, cap: int | None) -> None:
        """Somebody wants GPUs; the same quote may be used twice."""
        user = self.people[who]
        tenant, actor = self.tenants[who], Actor.of_user(user)
        wanted: dict[str, Any] = {"gpu_count": count, "max_duration_s": hours * 3600}
        wanted |= {"spend_cap_micros": cap} if cap else {}
        with _refusals():
            token = a_quote(user, tenant, **wanted)
            first, _ = services.request_lease(tenant=tenant, actor=actor, quote_token=token)
            again, made = services.request_lease(tenant=tenant, actor=actor, quote_token=token)
            assert (again.pk, made) == (first.pk, False)

    @rule(which=NUMBER, event=st.sampled_from(EVENTS))
    def report(self, which: int, event: str) -> None:
        """A node says something of a lease, in or out of order, once or again."""
        lease = self._any(which)
        if lease is None or lease.node is None:
            return
        said: dict[str, Any] = {"generation": lease.generation, "event": event, "container_id": "c" * 64}
        said |= {"failure": "failed_image"} if event == "failed" else {}
        evidence = {"ready": good_evidence(lease), "ssh_down": {"since_s": 15.0, "why": "no answer"}}
        said |= {"evidence": evidence[event]} if event in evidence else {}
        with _refusals():
            reports.handle(node=lease.node, lease_id=lease.pk, payload=said)

    @rule(which=NUMBER)
    def stop(self, which: int) -> None:
        """A renter stops one of theirs."""
        lease = self._any(which)
        if lease is not None and lease.created_by is not None:
            with _refusals():
                services.stop_lease(lease=lease, actor=Actor.of_user(lease.created_by))

    @rule(which=st.integers(0, 1))
    def drain_or_undrain(self, which: int) -> None:
        """An operator."""
        node = Node.objects.get(pk=self.nodes[which].pk)
        (nodes.undrain if node.draining_since else nodes.drain)(node=node, actor=ACTOR)

    @rule(which=st.integers(0, 1), settled=st.booleans())
    def heartbeat(self, which: int, settled: bool) -> None:  # noqa: FBT001  # Hypothesis passes by name
        """A node vouches for what runs on it."""
        node = Node.objects.get(pk=self.nodes[which].pk)
        now = timezone.now()
        Node.objects.filter(pk=node.pk).update(last_seen_at=now)
        here = Lease.objects.filter(node=node, state__in=LIVE)
        said = [
            {"id": lease.pk, "generation": lease.generation, "phase": lease.state, "container_id": lease.container_id}
            for lease in here
        ]
        reports.confirm(node=node, leases=said, now=now, settled=settled)

    @rule(seconds=st.sampled_from([1, 7, 30, 61, 120, 600, 1000, 4000, -5]), heard=st.booleans())
    def time_passes(self, seconds: int, heard: bool) -> None:  # noqa: FBT001  # Hypothesis passes by name
        """The clock goes on, or is set back; nodes may be quiet meanwhile."""
        self.clock.shift(timedelta(seconds=seconds))
        if heard:
            for which in range(2):
                self.heartbeat(which, settled=True)

    @rule(sweep=st.sampled_from(SWEEPS))
    def sweep(self, sweep: Any) -> None:
        """Beat's work."""
        sweep()

    def _any(self, which: int) -> Lease | None:
        found = list(Lease.objects.select_related("node", "tenant", "created_by").order_by("requested_at", "pk"))
        return found[which % len(found)] if found else None

    @invariant()
    def slots_and_allocations_agree(self) -> None:
        """No device twice, none lost; a lease that is over and clean holds none."""
        if not hasattr(self, "atomic"):
            return
        held = Counter(Allocation.objects.filter(released_at=None).values_list("slot_id", flat=True))
        used = dict(GpuSlot.objects.values_list("pk", "used_milli"))
        assert set(held.values()) <= {1}
        assert {slot for slot, milli in used.items() if milli} == set(held)
        assert len(used) == 4  # two nodes of two GPUs
        for lease in Lease.objects.filter(state__in=LIVE):
            assert lease.allocations.filter(released_at=None).count() == lease.gpu_count

    @invariant()
    def money_agrees(self) -> None:
        """Books, segments, ledger and receipts say the same to the tick; holds stand only for what is not over."""
        if not hasattr(self, "atomic"):
            return
        assert books.faults() == []
        for lease in Lease.objects.all():
            running = lease.state == State.RUNNING
            assert Hold.objects.open().filter(lease_id=lease.pk).exists() == (
                lease.state in LIVE and lease.state != State.STOPPING
            )
            closed = UsageSegment.objects.filter(lease=lease, end__isnull=False).aggregate(n=Sum("ticks"))["n"] or 0
            posted = LedgerEntry.objects.filter(lease_id=lease.pk).aggregate(n=Sum("ticks"))["n"] or 0
            assert closed == -posted
            receipt = receipts.receipt(lease, max(timezone.now(), lease.confirmed_at or timezone.now()))
            assert sum(line.ticks for line in receipt.lines) == receipt.ticks
            assert [a.end for a in receipt.lines[:-1]] == [b.start for b in receipt.lines[1:]]
            assert running or receipt.ticks == closed
            if lease.spend_cap_micros is not None:
                assert receipt.ticks <= lease.spend_cap_micros * 3600
            if lease.ready_at is None:
                assert receipt.ticks == 0


def run(monkeypatch: pytest.MonkeyPatch, examples: int, steps: int) -> None:
    """Two nodes, two tenants and a price, made once; then as many examples."""
    monkeypatch.setattr(presence, "receiving_since", lambda: START - timedelta(days=1))
    with time_machine.travel(START, tick=False):
        make.make_price()
        Rental.nodes = [make.make_node(gpus=2) for _ in range(2)]
        Rental.people = [make.make_user() for _ in range(2)]
        Rental.tenants = [make.tenant_of(user) for user in Rental.people]
        for user, tenant in zip(Rental.people, Rental.tenants, strict=True):
            make.make_key(user)
            make.make_balance(tenant, 5_000_000)
    run_state_machine_as_test(
        Rental,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_no_sequence_of_events_loses_a_device_or_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:  # case B01, case F09
    run(monkeypatch, 8, 20)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_no_long_sequence_of_events_loses_a_device_or_a_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # case B01, case F09
    run(monkeypatch, 250, 50)

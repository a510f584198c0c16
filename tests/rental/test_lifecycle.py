"""The table of steps, its one writer, and what each step brings along."""

from __future__ import annotations

import ast
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Hold, LedgerEntry
from nodes.models import GpuSlot, Node
from portal.actor import Actor
from portal.errors import IllegalTransition, NotAllowed
from portal.models import Membership, Tenant, User
from rental import lifecycle, services
from rental.models import Lease
from rental.states import NEXT, EndReason, State
from tests import make
from tests.rental.factories import order, report, running

pytestmark = pytest.mark.django_db
ACTOR = Actor.system("test")


@pytest.mark.parametrize("before", list(State))
@pytest.mark.parametrize("to", list(State))
def test_only_the_steps_of_the_table_can_be_taken(
    renter: User, tenant: Tenant, node: Node, before: State, to: State
) -> None:
    lease = make.make_lease(tenant, state=before, node=None if before == State.REQUESTED else node)
    changes: dict[str, Any] = (
        {"end_reason": EndReason.OPERATOR} if to in {State.STOPPING, State.ENDED, State.INTERRUPTED} else {}
    )
    if to not in NEXT[before]:
        with pytest.raises(IllegalTransition):
            lifecycle.move(lease_id=lease.pk, to=to, code="test", actor=ACTOR, **changes)
        lease.refresh_from_db()
        assert lease.state == before
        assert lease.events.count() == 1
        return
    moved = lifecycle.move(lease_id=lease.pk, to=to, code="test", actor=ACTOR, detail="why", **changes)
    assert Lease.objects.get(pk=lease.pk).state == moved.state == to
    event = lease.events.last()
    assert event is not None
    assert (event.from_state, event.to_state, event.code, event.detail, event.actor_label) == (
        before, to, "test", "why", "test",
    )  # fmt: skip
    assert lease.events.count() == 2


def test_nobody_but_the_lifecycle_writes_a_state() -> None:
    root = Path(settings.BASE_DIR)
    offenders = []
    for path in [
        *root.glob("rental/*.py"),
        *root.glob("billing/*.py"),
        *root.glob("nodes/*.py"),
        *root.glob("portal/*.py"),
    ]:
        if path.name == "lifecycle.py":
            continue
        for statement in ast.walk(ast.parse(path.read_text())):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            offenders += [
                f"{path.name}:{t.lineno}" for t in targets if isinstance(t, ast.Attribute) and t.attr == "state"
            ]
    assert offenders == []


def test_an_unexpected_state_is_refused(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    with pytest.raises(IllegalTransition) as refused:
        lifecycle.move(lease_id=lease.pk, to=State.STARTING, code="x", actor=ACTOR, expect={State.RUNNING})
    assert refused.value.extra == {"state": "assigned"}


def test_a_step_cannot_set_what_is_not_its_callers_to_set(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    forbidden: list[dict[str, Any]] = [{"price_micros_per_hour": 1}, {"ready_at": timezone.now()}, {"state": "ended"}]
    for set_to in forbidden:
        with pytest.raises(TypeError, match="not set by a step"):
            lifecycle.move(lease_id=lease.pk, to=State.STARTING, code="x", actor=ACTOR, **set_to)


def test_no_lease_runs_without_a_deadline(renter: User, tenant: Tenant, node: Node) -> None:  # case D04
    lease = running(renter, tenant, max_duration_s=3600)
    assert lease.ready_at is not None
    assert lease.deadline_at == lease.ready_at + timedelta(seconds=3600)
    with pytest.raises(IntegrityError), transaction.atomic():
        Lease.objects.filter(pk=lease.pk).update(deadline_at=None)


def test_released_by_the_renter_it_ends_when_the_node_has_cleaned(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant, gpu_count=2)
    stopped = services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    assert (stopped.state, stopped.end_reason) == (State.STOPPING, EndReason.RELEASED)
    assert not Hold.objects.open().exists()  # nothing more will be charged
    assert GpuSlot.objects.filter(used_milli=1000).count() == 2  # not before they are clean
    assert report(lease, "stopped") == {"state": "stopping", "want": "stop"}
    assert report(lease, "cleaned") == {"state": "ended", "want": "none"}
    lease.refresh_from_db()
    assert lease.ended_at is not None
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()
    assert not lease.allocations.filter(released_at=None).exists()


@pytest.mark.parametrize("steps", [[], ["starting"], ["starting", "started"]])
def test_cancelled_before_it_is_ready_it_costs_nothing(
    renter: User, tenant: Tenant, node: Node, steps: list[str]
) -> None:  # case F01
    lease = order(renter, tenant)
    with time_machine.travel(timezone.now() + timedelta(minutes=10)):
        Node.objects.update(last_seen_at=timezone.now())
        for step in steps:
            report(lease, step)
        stopped = services.stop_lease(lease=lease, actor=Actor.of_user(renter))
        assert (stopped.state, stopped.end_reason) == (State.STOPPING, EndReason.CANCELLED)
        report(lease, "cleaned")
    assert LedgerEntry.objects.filter(kind="usage").count() == 0
    assert lease.segments.count() == 0
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()


def test_stopping_twice_is_stopping_once(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    events = lease.events.count()
    again = services.stop_lease(lease=lease, actor=ACTOR, reason=EndReason.OPERATOR)
    assert (again.state, again.end_reason) == (State.STOPPING, EndReason.RELEASED)
    report(lease, "cleaned")
    assert services.stop_lease(lease=lease, actor=Actor.of_user(renter)).state == State.ENDED
    assert lease.events.filter(code="released").count() == 1
    assert lease.events.count() == events + 1


def test_a_viewer_cannot_stop_or_keep(renter: User, node: Node) -> None:
    shared = make.make_tenant(members={renter: Membership.Role.OWNER})
    make.make_balance(shared)
    lease = running(renter, shared)
    viewer = make.make_user("viewer@example.test")
    Membership.objects.create(tenant=shared, user=viewer, role=Membership.Role.VIEWER)
    for verb in (services.stop_lease, services.keep_lease):
        with pytest.raises(NotAllowed):
            verb(lease=lease, actor=Actor.of_user(viewer))
    lease.refresh_from_db()
    assert lease.state == State.RUNNING


def test_an_operator_ends_it_with_the_operators_reason(
    renter: User, tenant: Tenant, node: Node, operator: User
) -> None:
    lease = running(renter, tenant)
    stopped = services.stop_lease(
        lease=lease, actor=Actor.of_user(operator), reason=EndReason.OPERATOR, detail="maintenance"
    )
    assert (stopped.end_reason, stopped.end_detail) == (EndReason.OPERATOR, "maintenance")


def test_only_a_running_lease_can_be_kept(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    with pytest.raises(IllegalTransition):
        services.keep_lease(lease=lease, actor=Actor.of_user(renter))
    ran = running(renter, tenant)
    kept = services.keep_lease(lease=ran, actor=Actor.of_user(renter))
    assert kept.kept_at is not None
    assert ran.events.filter(code="kept", from_state="running", to_state="running").count() == 1


def test_the_first_reason_stands(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    for event in ("deadline", "exited", "failed", "stopped"):
        report(lease, event)
    report(lease, "cleaned")
    lease.refresh_from_db()
    assert lease.end_reason == EndReason.RELEASED

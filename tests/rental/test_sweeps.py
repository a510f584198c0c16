"""The sweeps: deadlines, orders without an answer, silence, money; each safe to run twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core.management import call_command
from django.utils import timezone

from billing.models import Hold, LedgerEntry
from billing.services import place_hold
from nodes import broker
from nodes import services as node_services
from nodes.models import Gpu, GpuSlot, Node
from portal import presence
from portal.actor import Actor
from portal.models import Tenant, User
from portal.signals import ssh_keys_changed
from rental import reports, services, tasks
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import order, report, running

pytestmark = pytest.mark.django_db
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> Any:
    """Our own clock; starts at START and moves only by hand."""
    with time_machine.travel(START, tick=False) as traveller:
        yield traveller


@pytest.fixture
def hearing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The portal has been receiving for ever."""
    monkeypatch.setattr(presence, "receiving_since", lambda: START - timedelta(days=1))


def heartbeat(node: Node, *leases: Lease) -> list[str]:
    said = [
        {"id": lease.pk, "generation": lease.generation, "phase": "running", "container_id": lease.container_id}
        for lease in Lease.objects.filter(pk__in=[lease.pk for lease in leases])
    ]
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
    return reports.confirm(node=node, leases=said, now=timezone.now())


def state(lease: Lease) -> tuple[str, str]:
    lease.refresh_from_db()
    return lease.state, lease.end_reason


def test_a_lease_is_stopped_at_its_maximum_duration(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = running(renter, tenant, max_duration_s=120)
    clock.shift(119)
    heartbeat(node, lease)
    tasks.sweep_deadlines()
    assert state(lease) == (State.RUNNING, "")
    clock.shift(1)
    for _ in range(2):
        tasks.sweep_deadlines()
        assert state(lease) == (State.STOPPING, EndReason.MAX_DURATION)
    assert lease.events.filter(code="max_duration").count() == 1
    assert lease.segments.get().seconds == 120


def test_hundred_leases_have_hundred_deadlines_and_all_are_kept(
    renter: User, tenant: Tenant, clock: Any
) -> None:  # case D04
    make.make_price()
    make.make_balance(tenant, 1_000_000_000)
    for _ in range(13):
        make.make_node(gpus=8)
    leases = [running(renter, tenant, max_duration_s=3600) for _ in range(100)]
    assert Lease.objects.filter(state="running", deadline_at=None).count() == 0
    clock.shift(3600)
    tasks.sweep_deadlines()
    assert Lease.objects.filter(pk__in=[lease.pk for lease in leases], end_reason="max_duration").count() == 100


@pytest.mark.usefixtures("hearing")
def test_an_order_nobody_answers_fails_free_of_charge(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = order(renter, tenant)
    clock.shift(900)
    tasks.sweep_unanswered()
    assert state(lease)[0] == State.ASSIGNED
    clock.shift(1)
    for _ in range(2):
        tasks.sweep_unanswered()
        assert state(lease) == (State.STOPPING, EndReason.FAILED_LAUNCH)
    assert "15 minutes" in lease.end_detail
    assert not Hold.objects.open().exists()
    assert GpuSlot.objects.filter(used_milli=1000).count() == 1  # until the node says what is there


@pytest.mark.usefixtures("hearing")
def test_an_order_whose_image_keeps_coming_is_waited_for_but_not_for_ever(
    renter: User, tenant: Tenant, node: Node, clock: Any, settings: Any
) -> None:  # case C03
    settings.PULL_TIMEOUT_S = 3600
    lease = order(renter, tenant)
    report(lease, "starting")
    for minute in range(0, 60, 10):
        report(lease, "pulling", detail=f"pulling {minute} of 60 MB")
        clock.shift(600)
        tasks.sweep_unanswered()
        assert state(lease)[0] == State.STARTING
    report(lease, "pulling", detail="pulling 50 of 60 MB")  # the same words again: something came all the same
    clock.shift(1)
    tasks.sweep_unanswered()
    assert state(lease) == (State.STOPPING, EndReason.FAILED_LAUNCH)


@pytest.mark.usefixtures("hearing")
def test_an_order_whose_image_stands_still_fails(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = order(renter, tenant)  # case C03
    report(lease, "starting")
    for detail in ("pulling 1 of 60 MB", "pulling 2 of 60 MB"):
        report(lease, "pulling", detail=detail)
        clock.shift(800)
    tasks.sweep_unanswered()
    assert state(lease)[0] == State.STARTING
    clock.shift(101)
    tasks.sweep_unanswered()
    assert state(lease) == (State.STOPPING, EndReason.FAILED_LAUNCH)


def test_orders_do_not_time_out_because_the_portal_was_away(
    renter: User, tenant: Tenant, node: Node, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = order(renter, tenant)
    clock.shift(3600)
    monkeypatch.setattr(presence, "receiving_since", lambda: START + timedelta(seconds=3590))
    tasks.sweep_unanswered()
    assert state(lease)[0] == State.ASSIGNED
    clock.shift(81)
    tasks.sweep_unanswered()
    assert state(lease)[0] == State.STOPPING


@pytest.mark.usefixtures("hearing")
def test_a_node_that_did_not_pick_an_order_up_is_woken_again(
    renter: User, tenant: Tenant, node: Node, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[tuple[str, str]] = []
    monkeypatch.setattr(broker, "wake", lambda *, node_id, lease_id="": woken.append((node_id, lease_id)))
    lease, started = order(renter, tenant), order(renter, tenant)
    report(started, "starting")
    woken.clear()
    clock.shift(6)
    tasks.sweep_unanswered()
    assert woken == [(node.pk, lease.pk)]


@pytest.mark.usefixtures("hearing")
def test_a_silent_node_loses_its_leases_and_keeps_their_devices_until_it_reports(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:  # case G01
    ran, began = running(renter, tenant), order(renter, tenant)
    clock.shift(60)
    heartbeat(node, ran)
    clock.shift(900)
    tasks.sweep_silence()
    assert state(ran) == (State.RUNNING, "")
    clock.shift(1)
    for _ in range(2):
        tasks.sweep_silence()
        assert state(ran) == state(began) == (State.ENDED, EndReason.NODE_LOST)
    steps = list(ran.events.order_by("id").values_list("from_state", "to_state"))[-2:]
    assert steps == [("running", "interrupted"), ("interrupted", "ended")]
    assert ran.segments.get().seconds == 60
    assert not Hold.objects.open().exists()
    assert GpuSlot.objects.filter(used_milli=1000).count() == 2
    # It comes back, one container still there: told to clean it, and only what is gone is free.
    assert heartbeat(node, ran) == [ran.pk]
    assert list(GpuSlot.objects.filter(used_milli=1000).values_list("allocations__lease", flat=True)) == [ran.pk]
    report(ran, "cleaned")
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()
    assert state(ran) == (State.ENDED, EndReason.NODE_LOST)
    call_command("check_ledger")


def test_the_first_beat_of_an_agent_frees_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    services.lose_lease(lease_id=lease.pk, actor=Actor.system("test"))
    reports.confirm(node=node, leases=[], now=timezone.now(), settled=False)
    assert GpuSlot.objects.filter(used_milli=1000).count() == 1
    reports.confirm(node=node, leases=[], now=timezone.now(), settled=True)
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()


def test_silence_counts_only_while_the_portal_receives(
    renter: User, tenant: Tenant, node: Node, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = running(renter, tenant)
    clock.shift(7200)
    for since in (None, START + timedelta(seconds=7100), START + timedelta(seconds=6211)):
        monkeypatch.setattr(presence, "receiving_since", lambda since=since: since)
        tasks.sweep_silence()
        assert state(lease) == (State.RUNNING, "")
    monkeypatch.setattr(presence, "receiving_since", lambda: START + timedelta(seconds=6209))
    tasks.sweep_silence()
    assert state(lease) == (State.ENDED, EndReason.NODE_LOST)


@pytest.mark.usefixtures("hearing")
def test_a_node_that_comes_back_between_the_look_and_the_step_keeps_its_lease(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant)
    clock.shift(901)
    limit = services.silence_limit(timezone.now())
    heartbeat(node, lease)
    services.lose_lease(lease_id=lease.pk, actor=Actor.system("silence"), unheard_since=limit)
    assert state(lease) == (State.RUNNING, "")


@pytest.mark.usefixtures("hearing")
def test_a_stopping_lease_waits_for_its_silent_node(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = running(renter, tenant)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    clock.shift(10_000)
    tasks.sweep_silence()
    assert state(lease) == (State.STOPPING, EndReason.RELEASED)
    assert GpuSlot.objects.filter(used_milli=1000).count() == 1


@pytest.mark.usefixtures("hearing")
def test_the_devices_of_a_revoked_node_may_move_once_its_agent_must_have_stopped(
    renter: User, tenant: Tenant, node: Node, clock: Any, operator: User
) -> None:
    ran, stopping = running(renter, tenant), running(renter, tenant)
    services.stop_lease(lease=stopping, actor=Actor.of_user(renter))
    Node.objects.update(last_seen_at=timezone.now())
    node_services.revoke(node=node, actor=Actor.of_user(operator))
    assert Gpu.objects.present().count() == 2
    clock.shift(901)
    tasks.sweep_silence()
    assert state(ran) == (State.ENDED, EndReason.NODE_LOST)
    assert state(stopping) == (State.ENDED, EndReason.RELEASED)
    assert GpuSlot.objects.filter(used_milli=1000).count() == 2
    clock.shift(901)
    tasks.sweep_silence()
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()
    assert Gpu.objects.present().count() == 0


@pytest.mark.usefixtures("hearing")
def test_one_lease_that_cannot_be_helped_does_not_keep_the_others_waiting(
    renter: User, tenant: Tenant, node: Node, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [running(renter, tenant, max_duration_s=60) for _ in range(3)]
    broken = sorted(lease.pk for lease in leases)[1]
    end = services.end_at_deadline

    def sometimes(*, lease_id: str, actor: Actor, locked: Lease) -> Lease:
        done = end(lease_id=lease_id, actor=actor, locked=locked)
        if lease_id == broken:
            raise RuntimeError("a fault, when half of it is done")
        return done

    monkeypatch.setattr(services, "end_at_deadline", sometimes)
    clock.shift(61)
    tasks.sweep_deadlines()
    assert Lease.objects.filter(state=State.STOPPING).count() == 2
    assert Lease.objects.get(pk=broken).state == State.RUNNING
    assert LedgerEntry.objects.filter(lease_id=broken).count() == 0


# --- money ------------------------------------------------------------------------------------------------------------

RATE = 2_490_000


def run_for(lease: Lease, node: Node, clock: Any, seconds: int) -> None:
    """Time passes with heartbeats, and the sweep each minute."""
    for _ in range(seconds // 60):
        clock.shift(60)
        heartbeat(node, lease)
        tasks.sweep_holds()


def test_a_hold_rolls_forward_with_what_was_used(renter: User, tenant: Tenant, node: Node, clock: Any) -> None:
    lease = running(renter, tenant)
    run_for(lease, node, clock, 600)
    assert Hold.objects.open().get().ticks == (600 + 3600) * RATE
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    assert tenant.accounts.get().held_ticks == 0


def test_a_hold_never_covers_more_than_the_rest_of_the_lease(
    renter: User, tenant: Tenant, node: Node, clock: Any
) -> None:
    lease = running(renter, tenant, max_duration_s=1200)
    run_for(lease, node, clock, 600)
    assert Hold.objects.open().get().ticks == 1200 * RATE


def test_a_lease_runs_until_the_balance_is_used_and_not_beyond(
    user: User, tenant: Tenant, node: Node, clock: Any
) -> None:  # case F08
    make.make_key(user)
    make.make_balance(tenant, 2_490_000 + 415_000)  # an hour and ten minutes
    lease = running(user, tenant)
    run_for(lease, node, clock, 4200 - 120)
    assert state(lease) == (State.RUNNING, "")
    run_for(lease, node, clock, 300)
    assert state(lease) == (State.STOPPING, EndReason.FUNDS)
    assert 0 <= tenant.accounts.get().balance_ticks <= 60 * RATE
    call_command("check_ledger")


def test_two_leases_on_one_balance_cannot_overdraw_it(user: User, tenant: Tenant, node: Node, clock: Any) -> None:
    # case F08
    make.make_key(user)
    make.make_balance(tenant, 2 * 2_490_000 + 100_000)
    leases = [running(user, tenant), running(user, tenant)]
    for _ in range(80):
        clock.shift(60)
        heartbeat(node, *leases)
        tasks.sweep_holds()
    assert {state(lease) for lease in leases} == {(State.STOPPING, EndReason.FUNDS)}
    assert tenant.accounts.get().balance_ticks >= 0
    call_command("check_ledger")


def test_a_top_up_in_time_saves_the_lease(user: User, tenant: Tenant, node: Node, clock: Any) -> None:  # case F08
    make.make_key(user)
    make.make_balance(tenant, 2_490_000)
    lease = running(user, tenant)
    run_for(lease, node, clock, 3480)
    assert state(lease) == (State.RUNNING, "")
    make.make_balance(tenant, 10_000_000)
    run_for(lease, node, clock, 600)
    assert state(lease) == (State.RUNNING, "")


def test_other_holds_are_not_touched(user: User, tenant: Tenant, node: Node, clock: Any) -> None:
    make.make_key(user)
    make.make_balance(tenant, 2_600_000)
    lease = running(user, tenant)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-other", ticks=100_000 * 3600)
    run_for(lease, node, clock, 3660)
    assert state(lease) == (State.STOPPING, EndReason.FUNDS)
    assert Hold.objects.open().get().ticks == 100_000 * 3600


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_changed_key_wakes_the_nodes_of_the_leases_it_opens(
    renter: User, tenant: Tenant, node: Node, stranger: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, over = running(renter, tenant), running(renter, tenant)
    services.stop_lease(lease=over, actor=Actor.of_user(renter))
    woken: list[tuple[str, str]] = []
    monkeypatch.setattr(broker, "wake", lambda *, node_id, lease_id="": woken.append((node_id, lease_id)))
    ssh_keys_changed.send(sender=User, user=stranger)
    assert woken == []
    ssh_keys_changed.send(sender=User, user=renter)
    assert woken == [(node.pk, lease.pk)]

"""Races, with real threads on PostgreSQL: one GPU, one quote, one stop (cases B01, G06)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone

from billing.models import Account, Hold
from billing.services import place_hold, set_month_cap
from nodes import services as node_services
from nodes.models import GpuSlot, Node
from portal.actor import Actor
from portal.errors import DomainError
from portal.models import Tenant, User
from rental import extend, lifecycle, reports, services, tasks
from rental.models import Allocation, Lease, LeaseEvent, UsageGap, UsageSegment
from rental.states import LIVE, State
from tests import make
from tests.rental.factories import a_quote, good_evidence, order, report, running

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite lets one writer in at a time"),
]


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Run all at the same moment, each on its own connection; results in order, domain errors as their code."""
    gate = threading.Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(n: int, act: Callable[[], Any]) -> None:
        gate.wait()
        try:
            results[n] = act()
        except DomainError as error:
            results[n] = error.code
        except Exception as error:  # noqa: BLE001  # a deadlock or a broken constraint is what the test looks for
            results[n] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(n, act)) for n, act in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faults = [result for result in results if isinstance(result, Exception)]
    assert not faults, faults[0]
    return results


def ordering(user: User, tenant: Tenant, **values: Any) -> Callable[[], tuple[Lease, bool]]:
    token = a_quote(user, tenant, **values)
    return lambda: services.request_lease(tenant=tenant, actor=Actor.of_user(user), quote_token=token)


def a_renter(n: int) -> tuple[User, Tenant]:
    user = make.make_user(f"renter{n}@example.test")
    make.make_key(user)
    make.make_balance(make.tenant_of(user))
    return user, make.tenant_of(user)


def assert_books_and_slots_agree() -> None:
    taken = Counter(Allocation.objects.filter(released_at=None).values_list("slot_id", flat=True))
    assert set(taken.values()) <= {1}
    assert set(GpuSlot.objects.filter(used_milli=1000).values_list("pk", flat=True)) == set(taken)
    assert not GpuSlot.objects.exclude(used_milli__in=[0, 1000]).exists()
    call_command("check_ledger")


def test_fifty_orders_for_one_gpu_make_one_lease() -> None:  # case B01
    make.make_price()
    make.make_node(gpus=1)
    results = at_once(*(ordering(*a_renter(n)) for n in range(50)))
    assert Counter(r if isinstance(r, str) else "lease" for r in results) == {"lease": 1, "no_capacity": 49}
    assert Lease.objects.count() == Allocation.objects.count() == Hold.objects.count() == 1
    assert LeaseEvent.objects.count() == 2
    assert Account.objects.filter(held_ticks__gt=0).count() == 1
    assert_books_and_slots_agree()


def test_orders_of_several_gpus_at_once_neither_deadlock_nor_overlap() -> None:  # case B01
    make.make_price()
    for _ in range(2):
        make.make_node(gpus=8)
    results = at_once(*(ordering(*a_renter(n), gpu_count=1 + n % 4) for n in range(20)))
    assert any(not isinstance(result, str) for result in results)
    assert {result for result in results if isinstance(result, str)} <= {"no_capacity"}
    assert sum(lease.gpu_count for lease in Lease.objects.all()) == Allocation.objects.count() <= 16
    for lease in Lease.objects.all():
        assert lease.allocations.values("slot__gpu__node").distinct().count() == 1
    assert_books_and_slots_agree()


def test_a_double_click_makes_one_lease_even_for_the_last_gpu() -> None:  # case B01
    make.make_price()
    make.make_node(gpus=1)
    act = ordering(*a_renter(1))
    results = at_once(*[act] * 10)
    assert sorted(created for _, created in results) == [False] * 9 + [True]
    assert len({lease.pk for lease, _ in results}) == 1
    assert Lease.objects.count() == Hold.objects.count() == 1
    assert_books_and_slots_agree()


def test_money_for_one_lease_pays_for_one_lease() -> None:  # case F08
    make.make_price()
    make.make_node(gpus=8)
    user = make.make_user("poor@example.test")
    make.make_key(user)
    make.make_balance(make.tenant_of(user), 3_000_000)
    results = at_once(*(ordering(user, make.tenant_of(user)) for _ in range(8)))
    assert Counter(r if isinstance(r, str) else "lease" for r in results) == {"lease": 1, "insufficient_funds": 7}
    assert Lease.objects.count() == 1
    assert_books_and_slots_agree()


def test_after_a_drain_was_answered_no_lease_appears() -> None:  # case G06
    make.make_price()
    operator = Actor.of_user(make.make_user("operator@example.test", operator=True))
    for n in range(6):
        node = make.make_node(gpus=4)
        seen: list[int] = []

        def drain(node: Node = node, seen: list[int] = seen) -> None:
            node_services.drain(node=node, actor=operator)
            seen.append(Lease.objects.filter(node=node).count())

        at_once(drain, *(ordering(*a_renter(100 * n + m)) for m in range(4)))
        assert Lease.objects.filter(node=node).count() == seen[0]
        Node.objects.filter(pk=node.pk).update(preflight_ok=False)
    assert_books_and_slots_agree()


def test_a_drain_waits_for_an_order_that_has_taken_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:  # case G06
    make.make_price()
    node = make.make_node(gpus=1)
    operator = Actor.of_user(make.make_user("operator@example.test", operator=True))
    taken, drained, go_on = threading.Event(), threading.Event(), threading.Event()

    def slow_hold(**values: Any) -> Any:
        taken.set()
        assert go_on.wait(30)
        return place_hold(**values)

    def drain() -> int:
        assert taken.wait(30)
        node_services.drain(node=node, actor=operator)
        drained.set()
        return Lease.objects.filter(node=node).count()

    def let_the_order_go_on() -> None:
        assert taken.wait(30)
        while not (drained.is_set() or somebody_waits_for_a_lock()):
            pass  # the test's time limit ends this
        go_on.set()

    monkeypatch.setattr("rental.services.place_hold", slow_hold)
    _, seen, _ = at_once(ordering(*a_renter(1)), drain, let_the_order_go_on)
    assert seen == Lease.objects.filter(node=node).count() == 1


def somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


def test_a_stop_at_the_moment_it_becomes_ready_ends_either_way() -> None:
    make.make_price()
    make.make_node(gpus=8)
    user, tenant = a_renter(1)
    for _ in range(8):
        lease = order(user, tenant)
        report(lease, "started")
        evidence = good_evidence(lease)
        at_once(
            partial(report, Lease.objects.get(pk=lease.pk), "ready", evidence=evidence),
            partial(services.stop_lease, lease=lease, actor=Actor.of_user(user)),
        )
        lease.refresh_from_db()
        assert lease.state == State.STOPPING
        assert lease.end_reason == ("released" if lease.ready_at else "cancelled")
        assert lease.segments.filter(end=None).count() == 0
        assert report(lease, "cleaned")["state"] == State.ENDED
    assert_books_and_slots_agree()


def test_the_same_report_from_many_connections_counts_once() -> None:
    make.make_price()
    make.make_node(gpus=1)
    user, tenant = a_renter(1)
    lease = order(user, tenant)
    evidence = good_evidence(lease)
    at_once(*[lambda: report(Lease.objects.get(pk=lease.pk), "ready", evidence=evidence)] * 8)
    assert UsageSegment.objects.count() == 1
    at_once(*[lambda: report(Lease.objects.get(pk=lease.pk), "exited")] * 4)
    at_once(*[lambda: report(Lease.objects.get(pk=lease.pk), "cleaned")] * 8)
    assert list(lease.events.order_by("id").values_list("to_state", flat=True)) == [
        "requested", "assigned", "starting", "running", "stopping", *["stopping"] * (lease.events.count() - 6), "ended",
    ]  # fmt: skip
    assert_books_and_slots_agree()


def test_sweeps_stops_heartbeats_and_losses_at_once_leave_one_truth() -> None:
    make.make_price()
    node = make.make_node(gpus=8)
    user, tenant = a_renter(1)
    leases = [running(user, tenant, max_duration_s=60) for _ in range(8)]
    Lease.objects.update(deadline_at=timezone.now())
    said = [
        {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id} for lease in leases
    ]
    at_once(
        tasks.sweep_deadlines,
        tasks.sweep_deadlines,
        tasks.sweep_holds,
        lambda: reports.confirm(node=node, leases=said, now=timezone.now()),
        *(partial(services.stop_lease, lease=lease, actor=Actor.of_user(user)) for lease in leases[:4]),
        *(partial(services.lose_lease, lease_id=lease.pk, actor=Actor.system("x")) for lease in leases[4:]),
    )
    assert not Lease.objects.filter(state__in=set(LIVE) - {State.STOPPING}).exists()
    assert UsageSegment.objects.filter(end=None).count() == 0
    assert not Account.objects.filter(held_ticks__gt=0).exists()
    for lease in leases:
        steps = list(lease.events.exclude(to_state="").order_by("id").values_list("from_state", "to_state"))
        assert all(before[1] == after[0] for before, after in pairwise(steps))
        lifecycle.free_capacity(lease_id=lease.pk)
    assert_books_and_slots_agree()
    assert connection.vendor == "postgresql"


def test_orders_at_once_cannot_pass_the_months_cap() -> None:
    make.make_price()
    make.make_node(gpus=8)
    user, tenant = a_renter(1)
    set_month_cap(tenant=tenant, micros=6_000_000, actor=Actor.of_user(user))  # two hours and some
    results = at_once(*(ordering(user, tenant) for _ in range(8)))
    assert Counter(r if isinstance(r, str) else "lease" for r in results) == {"lease": 2, "month_cap_reached": 6}
    assert Lease.objects.count() == Hold.objects.count() == 2
    assert_books_and_slots_agree()


def test_an_extension_and_the_deadline_at_once_are_one_before_the_other() -> None:
    make.make_price()
    make.make_node(gpus=8)
    user, tenant = a_renter(1)
    for n in range(8):
        lease = running(user, tenant, max_duration_s=600)
        moment = timezone.now() + timedelta(milliseconds=20 * n)
        Lease.objects.filter(pk=lease.pk).update(ready_at=moment - timedelta(seconds=600), deadline_at=moment)

        def sweep_until_due(lease: Lease = lease, moment: datetime = moment) -> None:
            while timezone.now() < moment:
                pass
            services.end_at_deadline(lease_id=lease.pk, actor=Actor.system("deadlines"))

        extended, _ = at_once(
            partial(extend.extend_lease, lease=lease, actor=Actor.of_user(user), wanted={"max_duration_s": 7200}),
            sweep_until_due,
        )
        lease.refresh_from_db()
        if extended == "illegal_state":
            assert (lease.state, lease.max_duration_s) == (State.STOPPING, 600)
        else:
            assert (lease.state, lease.max_duration_s) == (State.RUNNING, 7200)
            assert lease.deadline_at is not None
            assert lease.deadline_at > timezone.now()
            services.stop_lease(lease=lease, actor=Actor.of_user(user))
        report(lease, "cleaned")
    assert_books_and_slots_agree()


def test_ssh_gaps_silence_and_a_stop_at_once_leave_one_account_of_the_time() -> None:
    make.make_price()
    make.make_node(gpus=8)
    user, tenant = a_renter(1)
    for _ in range(4):
        lease = running(user, tenant)
        at_once(
            *[partial(report, Lease.objects.get(pk=lease.pk), "ssh_down", evidence={"since_s": 1}) for _ in range(3)],
            *[partial(report, Lease.objects.get(pk=lease.pk), "ssh_up") for _ in range(2)],
            partial(services.stop_lease, lease=lease, actor=Actor.of_user(user)),
        )
        assert report(lease, "cleaned")["state"] == State.ENDED
        stretches: list[UsageSegment | UsageGap] = [*lease.segments.all(), *lease.gaps.all()]
        parts = sorted(stretches, key=lambda part: (part.start, part.end or part.start))
        assert all(before.end == after.start for before, after in pairwise(parts))
    assert_books_and_slots_agree()

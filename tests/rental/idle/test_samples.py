"""What heartbeats say of a lease as the portal keeps it, and the sweep that looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.test import TestCase
from django.utils import timezone

from portal.actor import Actor
from rental import activity, idle_services, services, tasks
from rental.models import Lease, LeaseActivity
from rental.states import State
from tests.rental.factories import running
from tests.rental.idle.world import QUIET, World, state

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


def test_what_came_in_since_the_sweep_looked_counts(world: World, lease: Lease) -> None:
    world.quiet(lease, 19.75)
    world.moment.shift(15)
    world.beat(lease)
    (due,) = idle_services.due(timezone.now())
    world.beat(lease, ssh_input=True)
    idle_services.settle(lease_id=due, actor=Actor.system("idle"))
    assert state(lease) == (State.RUNNING, "")


def test_a_lease_kept_in_the_same_second_stays(world: World, lease: Lease, user: User) -> None:
    world.quiet(lease, 19.75)
    world.moment.shift(15)
    world.beat(lease)
    (due,) = idle_services.due(timezone.now())
    services.keep_lease(lease=lease, actor=Actor.of_user(user))
    idle_services.settle(lease_id=due, actor=Actor.system("idle"))
    assert state(lease) == (State.RUNNING, "")


def test_a_heartbeat_keeps_the_samples_of_any_number_of_leases_in_two_queries(
    world: World, renter: User, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    leases = [running(renter, tenant) for _ in range(8)]
    for many in (leases[:1], leases, leases):
        with django_assert_num_queries(4):  # with the begin and end of the transaction
            activity.record(dict.fromkeys(many, QUIET), timezone.now())
    assert LeaseActivity.objects.count() == 8


def test_the_sweep_looks_at_any_number_of_leases_in_one_query(
    world: World, renter: User, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    leases = [running(renter, tenant) for _ in range(8)]
    activity.record(dict.fromkeys(leases, QUIET), timezone.now())
    with django_assert_num_queries(1):
        assert idle_services.due(timezone.now()) == []


@pytest.mark.parametrize(
    "said",
    [
        "nothing", [], {"covers_s": "15"}, {**QUIET, "gpu_percent": "95"}, {**QUIET, "gpu_percent": -1},
        {**QUIET, "ssh_input": "no"}, {**QUIET, "cpu_percent": True}, {**QUIET, "network_bytes_per_s": 1e300},
    ],
)  # fmt: skip
def test_nonsense_in_a_sample_is_unknown_and_costs_no_lease_its_confirmation(
    world: World, lease: Lease, said: Any
) -> None:
    world.moment.shift(15)
    held = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
    world.send([{**held, "activity": said}])
    lease.refresh_from_db()
    assert lease.confirmed_at == timezone.now()
    row = LeaseActivity.objects.get(lease=lease)
    assert (row.active_at, row.active_known) == (timezone.now(), False)


def test_samples_of_another_container_or_of_a_foreign_lease_are_not_kept(world: World, lease: Lease) -> None:
    for wrong in ({"generation": 2}, {"container_id": "d" * 64}, {"phase": "stopping"}, {"id": "ls-other"}):
        held = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id, **wrong}
        world.send([{**held, "activity": QUIET}])
    assert not LeaseActivity.objects.exists()


def test_warnings_leave_after_commit_only(world: World, lease: Lease) -> None:
    world.quiet(lease, 14.75)
    world.moment.shift(15)
    world.beat(lease)
    with TestCase.captureOnCommitCallbacks() as after:
        tasks.sweep_idle()
    assert after

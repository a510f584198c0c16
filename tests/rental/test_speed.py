"""SQL budgets: an order, a poll and a list cost a known number of statements, however much there is (case I01)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from nodes.models import GpuSlot, Node
from portal import ids
from portal.actor import Actor
from rental import activity, lifecycle
from rental.models import Allocation, Lease, LeaseEvent, UsageSegment
from rental.states import State
from tests import make
from tests.clients import ApiClient
from tests.rental.factories import a_quote, order, report, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from portal.models import Tenant, User

SIZES = (1, 50, 500)
ORDER_STATEMENTS = 23
STILL = {"covers_s": 15.0, "gpu_percent": 0.0, "cpu_percent": 0.0, "network_bytes_per_s": 0, "ssh_input": False}


@pytest.fixture
def program(renter: User) -> ApiClient:
    """A program of the renter whose token was used a moment ago: the first use notes when."""
    client = ApiClient(make.make_token(renter)[1])
    client.get("me")
    return client


def statements(act: Callable[[], Any]) -> list[str]:
    with CaptureQueriesContext(connection) as seen:
        act()
    return [query["sql"] for query in seen.captured_queries]


def copies(lease: Lease, number: int) -> None:
    """More leases like this one until there are ``number``, each with its segment, event and devices."""
    node, segment = lease.node, lease.segments.first()
    assert node is not None
    made = []
    for _ in range(number - Lease.objects.count()):
        facts = {field.attname: getattr(lease, field.attname) for field in Lease._meta.concrete_fields}
        made.append(Lease(**{**facts, "id": ids.lease_id(), "quote_id": ids.quote_id()}))
    Lease.objects.bulk_create(made)
    LeaseEvent.objects.bulk_create(LeaseEvent(lease=each, from_state="", to_state=each.state) for each in made)
    gpu = make.make_gpu(node, index=100 + number, slots=0)
    slots = GpuSlot.objects.bulk_create(GpuSlot(gpu=gpu, n=n, used_milli=1000) for n in range(len(made)))
    Allocation.objects.bulk_create(
        Allocation(lease=each, generation=1, slot=slot) for each, slot in zip(made, slots, strict=True)
    )
    if segment is not None:
        price = {"units": segment.units, "price_micros_per_hour": segment.price_micros_per_hour}
        UsageSegment.objects.bulk_create(UsageSegment(lease=each, start=segment.start, **price) for each in made)


def test_an_order_costs_few_statements_and_each_of_its_locks(
    program: ApiClient, renter: User, tenant: Tenant, node: Node
) -> None:
    order(renter, tenant)  # the account is made
    quote = a_quote(renter, tenant)
    seen = statements(lambda: program.post("leases", {"quote": quote}))
    assert Lease.objects.count() == 2
    assert len(seen) <= ORDER_STATEMENTS, "\n".join(seen)
    assert sum("SAVEPOINT" in sql and "RELEASE" not in sql for sql in seen) <= 3  # the test's own, slots, hold


def test_a_quote_that_was_used_returns_its_lease_whatever_has_changed_since(
    program: ApiClient, renter: User, tenant: Tenant, node: Node
) -> None:
    quote = a_quote(renter, tenant)
    lease_id = program.post("leases", {"quote": quote}).json()["id"]
    renter.ssh_keys.all().delete()
    again = program.post("leases", {"quote": quote})
    assert (again.status_code, again.json()["id"]) == (200, lease_id)


@pytest.mark.parametrize("state", [State.STARTING, State.RUNNING])
def test_a_poll_that_finds_nothing_new_costs_two_queries(program: ApiClient, tenant: Tenant, state: str) -> None:
    path = f"leases/{make.make_lease(tenant, state=state).pk}"
    first = program.get(path)
    seen = statements(lambda: program.get(path, **{"If-None-Match": first["ETag"]}))
    again = program.get(path, **{"If-None-Match": first["ETag"]})
    assert first["ETag"].startswith('W/"')
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    assert len(seen) == 2, "\n".join(seen)


def test_a_lease_that_was_never_ready_is_not_asked_for_its_charges(program: ApiClient, tenant: Tenant) -> None:
    lease = make.make_lease(tenant, state=State.STARTING)
    assert len(statements(lambda: program.get(f"leases/{lease.pk}"))) == 3


def test_everything_that_shows_changes_the_tag(program: ApiClient, renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    by_program = Actor.system("test")
    acts: list[Callable[[], Any]] = [
        lambda: None,
        lambda: lifecycle.show_progress(lease_id=lease.pk, progress="pulling 3 of 5"),
        lambda: report(lease, "starting"),
        lambda: report(lease, "ready"),
        lambda: _sample(lease, ssh_input=True),
        lambda: _sample(lease),
        lambda: lifecycle.note(lease_id=lease.pk, code="kept", actor=by_program),
        lambda: Node.objects.update(ssh_host="203.0.113.9"),
        lambda: Lease.objects.update(confirmed_at="2026-01-01T00:00:00Z"),  # its node does not answer
    ]
    tags = []
    for act in acts:
        act()
        tags.append(program.get(f"leases/{lease.pk}")["ETag"])
    assert len(set(tags)) == len(acts)


def test_a_heartbeat_without_news_does_not_change_the_tag(
    program: ApiClient, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant)
    before = program.get(f"leases/{lease.pk}")["ETag"]
    assert lease.confirmed_at is not None
    Lease.objects.update(confirmed_at=lease.confirmed_at + (lease.confirmed_at - lease.requested_at))
    assert program.get(f"leases/{lease.pk}")["ETag"] == before


def test_a_lease_that_is_over_has_no_tag(program: ApiClient, tenant: Tenant) -> None:
    assert not program.get(f"leases/{make.make_lease(tenant, state=State.ENDED).pk}").has_header("ETag")


def test_lists_cost_the_same_queries_at_1_50_and_500_leases(
    program: ApiClient, renter: User, tenant: Tenant, operator: User
) -> None:
    browser, desk = Client(), Client()
    browser.force_login(renter)
    desk.force_login(operator)
    acts: dict[str, Callable[[], Any]] = {
        "API": lambda: program.get("leases?limit=200"),
        "page": lambda: browser.get(reverse("leases")),
        "admin": lambda: desk.get(reverse("admin:rental_lease_changelist")),
    }
    lease = make.make_lease(tenant)
    costs: dict[str, list[int]] = {name: [] for name in acts}
    for size in SIZES:
        copies(lease, size)
        for name, act in acts.items():
            costs[name].append(len(statements(act)))
    assert all(len(set(seen)) == 1 for seen in costs.values()), costs
    assert costs["API"][0] <= 4


def test_the_catalog_costs_two_queries_at_1_50_and_500_nodes(db: None) -> None:
    model = make.make_node(gpus=1)
    facts = {field.attname: getattr(model, field.attname) for field in Node._meta.concrete_fields}
    for size in SIZES:
        more = [Node(**{**facts, "id": ids.node_id(), "name": f"n{size}-{n}"}) for n in range(size - 1)]
        for each in Node.objects.bulk_create(more):
            make.make_gpu(each)
        for path in ("/", "/api/v1/offers"):
            seen = statements(lambda path=path: Client().get(path))  # type: ignore[misc]
            assert len(seen) == 2, "\n".join(seen)


def _sample(lease: Lease, **values: bool) -> None:
    """What a heartbeat brings of a lease's use."""
    lease.refresh_from_db()
    activity.record({lease: {**STILL, **values}}, timezone.now())

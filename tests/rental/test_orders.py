"""Quotes and orders: what is promised, what is taken, what a refusal leaves behind."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from billing.models import Account, Hold
from nodes import services as node_services
from nodes.models import GpuSlot, Node
from portal.actor import Actor
from portal.errors import InsufficientFunds, InvalidInput, NoCapacity, NotAllowed, OfferChanged
from portal.models import AuditEvent, Membership, Tenant, User
from rental import placement, quotes, services
from rental.models import Allocation, Lease, LeaseEvent
from rental.states import State
from tests import make
from tests.rental.factories import a_quote, a_request, order

pytestmark = pytest.mark.django_db


def assert_nothing_is_left() -> None:
    assert Lease.objects.count() == 0
    assert LeaseEvent.objects.count() == 0
    assert Allocation.objects.count() == 0
    assert Hold.objects.count() == 0
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()
    assert not Account.objects.filter(held_ticks__gt=0).exists()


def test_an_order_takes_devices_and_money_and_says_so_in_its_history(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant, gpu_count=2, name="training", max_duration_s=7200)
    assert lease.state == State.ASSIGNED
    assert (lease.node, lease.generation, lease.name, lease.units) == (node, 1, "training", 2)
    assert (lease.price_micros_per_hour, lease.total_micros_per_hour) == (2_490_000, 4_980_000)
    assert (lease.cpus_milli, lease.memory_bytes) == ((64_000 - 500) * 2 // 8, ((512 << 30) - (1 << 30)) * 2 // 8)
    assert list(lease.events.values_list("from_state", "to_state", "code")) == [
        ("", "requested", "requested"),
        ("requested", "assigned", "assigned"),
    ]
    assert GpuSlot.objects.filter(used_milli=1000).count() == 2
    assert lease.allocations.count() == 2
    assert Hold.objects.open().get(lease_id=lease.pk).ticks == 3600 * 2 * 2_490_000
    assert AuditEvent.objects.filter(action="lease.requested", object_id=lease.pk, actor=renter).exists()


def test_the_hold_is_no_more_than_the_lease_can_cost(renter: User, tenant: Tenant, node: Node) -> None:
    assert Hold.objects.get(lease_id=order(renter, tenant, max_duration_s=600).pk).ticks == 600 * 2_490_000
    capped = order(renter, tenant, spend_cap_micros=498_000)
    assert Hold.objects.get(lease_id=capped.pk).ticks == 720 * 2_490_000


def test_a_quote_used_twice_returns_its_lease(renter: User, tenant: Tenant, node: Node) -> None:
    token, actor = a_quote(renter, tenant), Actor.of_user(renter)
    first, created = services.request_lease(tenant=tenant, actor=actor, quote_token=token)
    again, created_again = services.request_lease(tenant=tenant, actor=actor, quote_token=token)
    assert (created, created_again) == (True, False)
    assert again == first
    assert Hold.objects.count() == Allocation.objects.count() == 1
    with time_machine.travel(timezone.now() + timedelta(hours=1)):  # a late retry of a client is still the same order
        assert services.request_lease(tenant=tenant, actor=actor, quote_token=token) == (first, False)


def test_nothing_free_is_refused_with_reasons_and_leaves_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    GpuSlot.objects.filter(gpu__index__lt=5).update(used_milli=1000)
    token = a_quote(renter, tenant, gpu_count=4)
    with pytest.raises(NoCapacity) as refused:
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert refused.value.detail == "4 x H100 SXM cannot be had now: the largest free group is 3; 5 are leased."
    assert refused.value.extra["reasons"] == [
        {"code": "free_group_too_small", "count": 3, "text": "the largest free group is 3"},
        {"code": "leased", "count": 5, "text": "5 are leased"},
    ]
    GpuSlot.objects.update(used_milli=0)
    assert_nothing_is_left()


def test_too_little_money_is_refused_and_leaves_nothing(user: User, tenant: Tenant, node: Node) -> None:
    make.make_key(user)
    make.make_balance(tenant, 2_000_000)
    token = a_quote(user, tenant)
    with pytest.raises(InsufficientFunds) as refused:
        services.request_lease(tenant=tenant, actor=Actor.of_user(user), quote_token=token)
    assert refused.value.extra["needed_micros"] == 2_490_000
    assert refused.value.extra["available_micros"] == 2_000_000
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"draining_since": datetime(2026, 1, 1, tzinfo=UTC)}, "8 are on nodes that take no new leases"),
        ({"last_seen_at": datetime(2026, 1, 1, tzinfo=UTC)}, "8 are on nodes that do not answer"),
        ({"preflight_ok": False}, "8 are on nodes that are not ready yet"),
        ({"revoked_at": datetime(2026, 1, 1, tzinfo=UTC)}, "there is no such GPU in the fleet"),
    ],
)
def test_a_node_that_does_not_sell_gets_no_lease(
    renter: User, tenant: Tenant, node: Node, change: dict[str, Any], reason: str
) -> None:
    token = a_quote(renter, tenant)
    Node.objects.update(**change)
    with pytest.raises(NoCapacity, match=reason):
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert_nothing_is_left()


def test_a_node_that_starts_to_drain_between_snapshot_and_taking_is_not_used(
    renter: User, tenant: Tenant, node: Node, monkeypatch: pytest.MonkeyPatch, operator: User
) -> None:  # case G06
    place = placement.place
    drained: list[None] = []

    def drain_then_place(*arguments: Any) -> Any:
        if not drained:
            drained.append(None)
            node_services.drain(node=node, actor=Actor.of_user(operator))
            Node.objects.filter(pk=node.pk).update(draining_since=None)  # the snapshot still sees it selling
            decision = place(*arguments)
            Node.objects.filter(pk=node.pk).update(draining_since=timezone.now())
            return decision
        return place(*arguments)

    monkeypatch.setattr(placement, "place", drain_then_place)
    with pytest.raises(NoCapacity, match="take no new leases"):
        order(renter, tenant)
    assert_nothing_is_left()


def test_an_unexpired_quote_keeps_its_price_and_an_expired_one_names_the_new_one(
    renter: User, tenant: Tenant, node: Node
) -> None:  # case B03
    early, late = a_quote(renter, tenant), a_quote(renter, tenant)
    make.make_price(on_demand=5_000_000)
    lease, _ = services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=early)
    assert lease.price_micros_per_hour == 2_490_000
    with time_machine.travel(timezone.now() + timedelta(seconds=301)), pytest.raises(OfferChanged) as refused:
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=late)
    assert refused.value.extra["price_micros_per_hour"] == 5_000_000
    assert Lease.objects.count() == Hold.objects.count() == 1


def test_a_board_with_less_memory_than_was_quoted_does_not_serve_the_order(
    renter: User, tenant: Tenant, node: Node
) -> None:  # case B03
    token = a_quote(renter, tenant)
    for gpu in node.gpus.all():
        gpu.memory_bytes = 40 << 30
        gpu.save(update_fields=["memory_bytes"])
    with pytest.raises(NoCapacity):
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert_nothing_is_left()


@pytest.mark.parametrize("spoil", ["", "x", "a:b:c", "x" * 20_000, "tampered"])
def test_a_token_that_is_no_quote_of_ours_is_refused(renter: User, tenant: Tenant, node: Node, spoil: str) -> None:
    token = a_quote(renter, tenant)
    middle = len(token) // 2
    other = "A" if token[middle] != "A" else "B"
    bad = token[:middle] + other + token[middle + 1 :] if spoil == "tampered" else spoil
    with pytest.raises(InvalidInput) as refused:
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=bad)
    assert refused.value.code == "invalid_quote"


def test_a_quote_of_another_tenant_is_refused(renter: User, tenant: Tenant, node: Node, stranger: User) -> None:
    token = a_quote(renter, tenant)
    with pytest.raises(InvalidInput) as refused:
        services.request_lease(tenant=make.tenant_of(stranger), actor=Actor.of_user(stranger), quote_token=token)
    assert refused.value.code == "invalid_quote"
    assert_nothing_is_left()


def test_without_an_ssh_key_nothing_is_quoted_or_ordered(user: User, tenant: Tenant, node: Node) -> None:
    make.make_balance(tenant)
    with pytest.raises(InvalidInput) as refused:
        a_quote(user, tenant)
    assert "ssh_key_ids" in refused.value.errors
    key = make.make_key(user)
    token = a_quote(user, tenant)
    key.delete()
    with pytest.raises(InvalidInput):
        services.request_lease(tenant=tenant, actor=Actor.of_user(user), quote_token=token)
    assert_nothing_is_left()


def test_keys_of_others_cannot_be_named(renter: User, tenant: Tenant, node: Node, stranger: User) -> None:
    foreign = make.make_key(stranger)
    with pytest.raises(InvalidInput) as refused:
        a_quote(renter, tenant, ssh_key_ids=[foreign.pk])
    assert foreign.pk in refused.value.errors["ssh_key_ids"][0]


@pytest.mark.parametrize("role", [Membership.Role.VIEWER, Membership.Role.BILLING])
def test_a_role_that_does_not_lease_is_refused(renter: User, node: Node, role: str) -> None:
    shared = make.make_tenant(members={renter: role})
    with pytest.raises(NotAllowed):
        a_quote(renter, shared)


def test_a_suspended_tenant_orders_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    token = a_quote(renter, tenant)
    Tenant.objects.update(suspended_at=timezone.now())
    with pytest.raises(NotAllowed) as refused:
        services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert refused.value.code == "tenant_suspended"
    assert_nothing_is_left()


def test_making_a_quote_writes_nothing(renter: User, tenant: Tenant, node: Node) -> None:
    with CaptureQueriesContext(
        connection,
    ) as queries:
        quote = services.build_quote(tenant=tenant, user=renter, request=a_request(gpu_count=2))
    assert all(query["sql"].startswith("SELECT") for query in queries)
    assert len(queries) <= 5
    assert quote.available
    assert quote.total_micros_per_hour == 4_980_000
    read = quotes.read(quote.token, tenant=tenant)
    assert (read.id, read.request, read.expires_at) == (quote.id, quote.request, quote.expires_at)


def test_what_a_quote_refuses_names_the_field(renter: User, tenant: Tenant, node: Node) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"gpu_model": "NVIDIA Unheard"}, "gpu_model"),
        ({"gpu_count": 9}, "gpu_count"),
        ({"gpu_memory_gb": 81}, "gpu_memory_gb"),
        ({"cuda_min": "13.0"}, "cuda_min"),
        ({"spend_cap_micros": 41_499}, "spend_cap_micros"),
    ]
    for values, field in wrong:
        with pytest.raises(InvalidInput) as refused:
            a_quote(renter, tenant, **values)
        assert list(refused.value.errors) == [field]
    a_quote(renter, tenant, gpu_memory_gb=80, cuda_min="12.4", spend_cap_micros=41_500)
    with pytest.raises(Exception, match="above your limit") as above:
        a_quote(renter, tenant, max_price_micros_per_hour=2_489_999)
    assert above.value.code == "price_above_limit"  # type: ignore[attr-defined]


def test_an_order_needs_few_queries_whatever_the_fleet(renter: User, tenant: Tenant, node: Node) -> None:
    counts = []
    for _ in range(2):
        token = a_quote(renter, tenant)
        with CaptureQueriesContext(connection) as queries:
            services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
        counts.append(len([q for q in queries if "SAVEPOINT" not in q["sql"]]))
        for _ in range(20):
            make.make_node(gpus=8)
    assert counts[0] == counts[1]
    assert counts[0] <= 25, counts

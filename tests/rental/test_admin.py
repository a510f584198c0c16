"""Operators' pages of leases: everything to read, nothing to edit, buttons that go through the services."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.urls import reverse

from nodes import broker
from portal.models import AuditEvent
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import running

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from nodes.models import Node
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(operator: User) -> Client:
    """The operator's browser."""
    client = Client()
    client.force_login(operator)
    return client


def change_page(client: Client, lease: Lease) -> str:
    """The page of a lease."""
    answer = client.get(reverse("admin:rental_lease_change", args=[lease.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_lease_shows_its_history_money_and_slots_and_no_field(
    desk: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant, gpu_count=2)
    shown = change_page(desk, lease)
    assert node.name in shown
    assert shown.count("GPU-") >= 2
    assert "assigned" in shown
    assert '<input type="text"' not in shown
    assert "<select" not in shown.split('id="content"')[1]
    assert 'name="_save"' not in shown


def test_the_operator_stops_a_lease_with_a_reason_the_renter_reads(
    desk: Client, renter: User, tenant: Tenant, node: Node, page: Client
) -> None:
    lease = running(renter, tenant)
    url = reverse("admin:rental_lease_stop", args=[lease.pk])
    assert "Charging ends now." in desk.get(url).content.decode()
    assert "This field is required." in desk.post(url).content.decode()
    desk.post(url, {"reason": "The machine room is hot."})
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.OPERATOR)
    assert AuditEvent.objects.filter(action="lease.stopped", object_id=lease.pk, actor_label="operator@example.test")
    assert "The machine room is hot." in page.get(reverse("lease", args=[lease.pk])).content.decode()


def test_stopping_what_is_over_changes_nothing(desk: Client, tenant: Tenant) -> None:
    lease = make.make_lease(tenant, state=State.ENDED)
    desk.post(reverse("admin:rental_lease_stop", args=[lease.pk]), {"reason": "late"})
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.ENDED, EndReason.RELEASED)
    assert "Stop now" not in change_page(desk, lease)


def test_the_node_is_woken_once_and_it_is_written_down(
    desk: Client, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(broker, "wake", lambda *, node_id, lease_id: woken.append(lease_id))
    lease = make.make_lease(tenant)
    desk.post(reverse("admin:rental_lease_wake", args=[lease.pk]))
    assert woken == [lease.pk]
    assert AuditEvent.objects.filter(action="lease.woken", object_id=lease.pk).count() == 1


def test_buttons_need_the_right_to_change_leases(stranger: User, tenant: Tenant) -> None:
    stranger.is_staff = True
    stranger.save(update_fields=["is_staff"])
    client = Client()
    client.force_login(stranger)
    lease = make.make_lease(tenant)
    for name in ("stop", "wake"):
        url = reverse(f"admin:rental_lease_{name}", args=[lease.pk])
        assert client.post(url, {"reason": "because"}).status_code == 403
    assert Lease.objects.get().state == State.RUNNING


@pytest.mark.parametrize("words", ["maya@example.test", "finetune"])
def test_leases_are_found_by_name_and_by_who_ordered(desk: Client, tenant: Tenant, words: str) -> None:
    lease = make.make_lease(tenant, name="finetune")
    assert lease.pk in desk.get(reverse("admin:rental_lease_changelist"), {"q": words}).content.decode()
    assert lease.pk in desk.get(reverse("admin:rental_lease_changelist"), {"q": lease.pk}).content.decode()


def test_the_list_costs_the_same_queries_for_any_number(
    desk: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    url = reverse("admin:rental_lease_changelist")
    node = make.make_node(gpus=8)
    make.make_lease(tenant, node=node)
    desk.get(url)
    with django_assert_num_queries(10):
        desk.get(url)
    for _number in range(4):
        make.make_lease(tenant, node=node)
    with django_assert_num_queries(10):
        desk.get(url)

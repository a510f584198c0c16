"""Pages of the catalog and of leases: what a reader finds in each state, and what a page costs."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import Membership
from rental import words
from rental.models import Lease, UsageSegment
from rental.states import EndReason, Gap, State
from tests import make
from tests.rental.factories import order, report, running

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from nodes.models import Node
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


def text(client: Client, path: str, status: int = 200) -> str:
    """The page at a path."""
    answer = client.get(path)
    assert answer.status_code == status, answer.content.decode()[:300]
    return unescape(answer.content.decode())


def lease_page(client: Client, lease: Lease) -> str:
    """The page of a lease."""
    return text(client, reverse("lease", args=[lease.pk]))


# --- catalog ----------------------------------------------------------------------------------------------------------


def test_a_visitor_sees_prices_what_is_free_and_where_the_charge_stops(node: Node) -> None:
    page = text(Client(), "/")
    assert "Billed from ready" in page
    assert "<b>$2.49<small> / h</small></b><span>$0.000692 / s</span>" in page
    assert "8 of 8 free" in page
    assert "Before ready" in page
    assert f"{reverse('rent')}?gpu_model=NVIDIA%20H100%2080GB%20HBM3&gpu_count=1" in page


def test_the_table_can_be_filtered_without_javascript(node: Node) -> None:
    assert "H100 SXM</b>" not in text(Client(), "/?gpu_count=8&gpu_memory_gb=141")
    assert "Nothing fits these filters" in text(Client(), "/?gpu_count=9")
    assert "H100 SXM</b>" in text(Client(), "/?gpu_count=8&only_free=1")


def test_a_filter_that_makes_no_sense_is_as_good_as_none(node: Node) -> None:
    assert "H100 SXM</b>" in text(Client(), "/?gpu_count=many&gpu_memory_gb=-1&gpu_model=")


def test_an_offer_with_nothing_free_says_why_and_has_no_button(renter: User, tenant: Tenant, node: Node) -> None:
    order(renter, tenant, gpu_count=8)
    page = text(Client(), "/")
    assert "Why no H100 SXM can be rented now" in page
    assert "8 are leased" in page
    assert "?gpu_model=" not in page


def test_without_a_node_a_visitor_is_told_so_and_an_operator_what_to_do(db: None, operator: User) -> None:
    assert "has not connected a machine yet" in text(Client(), "/")
    client = Client()
    client.force_login(operator)
    assert reverse("admin:nodes_node_add") in text(client, "/")


def test_simulated_gpus_are_called_simulated(db: None) -> None:
    make.make_price()
    make.make_node(gpus=1, simulated=True)
    page = text(Client(), "/")
    assert "Some GPUs here are simulated" in page
    assert ">simulated</span>" in page


def test_the_catalog_costs_the_same_queries_for_any_fleet(
    node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _number in range(3):
        make.make_node(gpus=4)
    with django_assert_num_queries(2):
        Client().get("/")


# --- list -------------------------------------------------------------------------------------------------------------


def test_a_new_tenant_is_shown_the_first_three_steps(page: Client, user: User, tenant: Tenant) -> None:
    shown = text(page, reverse("leases"))
    assert "No leases yet" in shown
    assert "Done." not in shown
    make.make_key(user)
    make.make_balance(tenant)
    assert text(page, reverse("leases")).count("Done.") == 2


def test_open_leases_come_first_with_their_cost_and_ended_ones_with_their_reason(page: Client, tenant: Tenant) -> None:
    make.make_lease(tenant, name="finetune", gpu_count=2)
    make.make_lease(tenant, state=State.ENDED, end_reason=EndReason.FAILED_IMAGE, name="typo")
    shown = text(page, reverse("leases"))
    assert shown.index("finetune") < shown.index("typo")
    assert "1 running, $4.98 per hour." in shown
    assert "the image could not be had" in shown


def test_the_list_costs_the_same_queries_for_any_number(
    page: Client, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _number in range(3):
        make.make_lease(tenant)
        make.make_lease(tenant, state=State.ENDED)
    with django_assert_num_queries(9):
        page.get(reverse("leases"))
    for _number in range(3):
        make.make_lease(tenant)
        make.make_lease(tenant, state=State.ENDED)
    with django_assert_num_queries(9):
        page.get(reverse("leases"))


def test_ended_leases_are_read_page_by_page(page: Client, tenant: Tenant) -> None:
    for number in range(26):
        make.make_lease(tenant, state=State.ENDED, name=f"run-{number:02}")
    assert "Page 1 of 2" in text(page, reverse("leases"))
    assert text(page, reverse("leases") + "?page=2").count(">Receipt</a>") == 1
    assert "Page 2 of 2" in text(page, reverse("leases") + "?page=99")


# --- one lease --------------------------------------------------------------------------------------------------------


def test_before_it_is_ready_the_page_shows_the_steps_and_that_nothing_is_charged(
    page: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = order(renter, tenant)
    report(lease, "starting")
    report(lease, "pulling", detail="12 of 29 layers")
    shown = lease_page(page, lease)
    assert "12 of 29 layers" in shown
    assert "Not charged until it is ready" in shown
    assert "Ready: charging begins" in shown
    assert "Cancel, free of charge" in shown
    assert "ssh -p" not in shown


def test_while_it_runs_the_page_has_the_ssh_lines_the_cost_and_the_devices(
    page: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant, gpu_count=2, spend_cap_micros=60_000_000)
    shown = lease_page(page, lease)
    assert f"ssh -p 2222 {lease.pk}@127.0.0.1" in shown
    assert f"[127.0.0.1]:2222 {node.ssh_host_key}" in shown
    assert f"Host {lease.pk}\n  HostName 127.0.0.1\n  Port 2222\n  User {lease.pk}" in shown
    assert f"scp -P 2222 ./data.tar {lease.pk}@127.0.0.1:/workspace/" in shown
    assert "-L 8888:127.0.0.1:8888" in shown
    assert 'data-ticker="4980000"' in shown
    assert "of $60.00" in shown
    assert shown.count("GPU-") == 2
    assert "Everything in the container is deleted" in shown


def test_an_ended_lease_says_why_what_it_cost_and_offers_the_same_again(page: Client, tenant: Tenant) -> None:
    lease = make.make_lease(
        tenant, state=State.ENDED, end_reason=EndReason.MAX_DURATION, image="debian:12", end_detail="24 h are over."
    )
    start = timezone.now() - timedelta(minutes=5)
    UsageSegment.objects.create(
        lease=lease, start=start, end=start + timedelta(seconds=270), units=1, price_micros_per_hour=2_490_000,
        seconds=270, ticks=672_300_000,
    )  # fmt: skip
    shown = lease_page(page, lease)
    assert "Maximum duration reached." in shown
    assert "24 h are over." in shown
    assert "Charged $0.1868 for 4 min 30 s." in shown
    assert "gpu_model=NVIDIA%20H100%2080GB%20HBM3&gpu_count=1&plan=on_demand&image=debian%3A12" in shown
    assert "hx-sse:connect" not in shown


def test_the_meter_stands_still_while_the_node_does_not_answer(page: Client, tenant: Tenant) -> None:
    lease = make.make_lease(tenant, confirmed_at=timezone.now() - timedelta(minutes=3))
    shown = lease_page(page, lease)
    assert "The node does not answer at the moment." in shown
    assert "data-ticker" not in shown


def test_a_viewer_looks_and_has_no_button(stranger: User) -> None:
    tenant = make.make_tenant(members={stranger: Membership.Role.VIEWER})
    lease = make.make_lease(tenant)
    client = Client()
    client.force_login(stranger)
    assert "Stop and release" not in lease_page(client, lease)
    client.post(reverse("lease-stop", args=[lease.pk]))
    lease.refresh_from_db()
    assert lease.state == State.RUNNING


def test_a_lease_page_costs_the_same_queries_whatever_happened(
    page: Client, renter: User, tenant: Tenant, node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    lease = running(renter, tenant, gpu_count=4)
    with django_assert_num_queries(13):
        lease_page(page, lease)
    bare = make.make_lease(tenant)
    with django_assert_num_queries(13):
        lease_page(page, bare)


def test_no_page_speaks_of_what_is_not_built(page: Client, tenant: Tenant, node: Node) -> None:
    lease = make.make_lease(tenant)
    pages = [text(page, "/"), text(page, reverse("rent")), text(page, reverse("leases")), lease_page(page, lease)]
    for shown in [text(Client(), "/"), *pages]:
        assert not re.search(r"\b(volume|queue|reserv\w+|snapshot|terminal)\b", re.sub(r"<[^>]*>", " ", shown), re.I)


# --- stop and receipt -------------------------------------------------------------------------------------------------


def test_stop_asks_on_a_page_of_its_own_and_then_stops(page: Client, renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    url = reverse("lease-stop", args=[lease.pk])
    assert "The charge ends the moment you confirm." in text(page, url)
    for _click in range(2):
        assert page.post(url)["Location"] == reverse("lease", args=[lease.pk])
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason) == (State.STOPPING, EndReason.RELEASED)
    assert page.get(url).status_code == 302


def test_the_receipt_shows_every_stretch_in_utc_and_its_sum(
    page: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    lease = running(renter, tenant)
    began = timezone.now() - timedelta(seconds=100)
    Lease.objects.filter(pk=lease.pk).update(requested_at=began - timedelta(seconds=20), ready_at=began)
    lease.segments.update(start=began)
    page.post(reverse("lease-stop", args=[lease.pk]))
    report(lease, "stopped")
    report(lease, "cleaned")
    shown = text(page, reverse("lease-receipt", args=[lease.pk]))
    assert "Order, image and start: free until it is ready" in shown
    assert f"{began:%Y-%m-%d %H:%M:%S} UTC" in shown
    assert "Charged: 1 × $2.49 / h" in shown
    assert shown.count("$0.069167") == 2
    assert "Released by the renter" in shown


def test_a_receipt_of_a_running_lease_is_called_provisional(page: Client, tenant: Tenant) -> None:
    lease = make.make_lease(tenant)
    assert ">provisional</span>" in text(page, reverse("lease-receipt", args=[lease.pk]))


# --- words ------------------------------------------------------------------------------------------------------------


def test_everything_that_can_happen_has_words(tenant: Tenant) -> None:
    lease = make.make_lease(tenant)
    codes: list[Any] = [*EndReason.values, "requested", "assigned", "pulling", "starting", "started", "ready", "exited"]
    codes += ["deadline", "stopped", "cleaned", "cleaning_failed", "ended", "kept", "node_heard"]
    for code in codes:
        lease.events.create(from_state=lease.state, to_state=lease.state, code=code)
    titles = {entry.title for entry in words.history(lease, lease.events.all())}
    assert not titles & {code.replace("_", " ").capitalize() for code in EndReason.values}
    assert all(words.gap(gap) != gap for gap in Gap.values)

"""The rent form: the price on the screen is what is ordered, once, and every refusal says what helps."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import SshKey
from rental import quotes
from rental.models import Lease
from tests import make
from tests.rental.factories import a_request, order

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer
    from pytest_django import DjangoAssertNumQueries

    from nodes.models import Node
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db


def said(answer: Answer) -> str:
    """What the reader sees."""
    return unescape(answer.content.decode())


def form(**values: Any) -> dict[str, Any]:
    """The form as a browser sends it, every key chosen."""
    chosen = {
        "gpu_model": make.H100, "gpu_count": "1", "plan": "on_demand", "image": "", "max_hours": "24", "spend_cap": "",
        "name": "", "ssh_keys": list(SshKey.objects.values_list("pk", flat=True)),
    }  # fmt: skip
    return {**chosen, **values}


def quote_in(answer: Answer) -> str:
    """The signed price on the page."""
    found = re.search(r'name="quote" value="([^"]+)"', answer.content.decode())
    assert found, said(answer)
    return found[1]


def test_the_form_opens_with_the_price_of_the_cheapest_free_gpu(page: Client, renter: User, node: Node) -> None:
    make.make_price("NVIDIA L40S", on_demand=990_000, spot=297_000)
    make.make_node(gpus=2, gpu_model="NVIDIA L40S")
    shown = said(page.get(reverse("rent")))
    assert "Start for $0.99 / h" in shown
    assert "$0.99 held at start" in shown


def test_a_link_fills_the_form_in(page: Client, renter: User, node: Node) -> None:
    shown = said(page.get(reverse("rent"), {"gpu_model": make.H100, "gpu_count": "4", "plan": "spot", "name": "again"}))
    assert "Start for $1.992 / h" in shown
    assert 'value="again"' in shown


def test_a_link_to_what_is_gone_says_so(page: Client, renter: User, node: Node) -> None:
    assert "Select a valid choice" in said(page.get(reverse("rent"), {"gpu_model": "NVIDIA L4"}))


def test_every_change_gets_a_new_price(page: Client, renter: User, node: Node) -> None:
    answer = page.post(reverse("quote-panel"), form(gpu_count="2", spend_cap="10.00"))
    assert answer.status_code == 200
    assert "Start for $4.98 / h" in said(answer)
    assert "2 h 00 min 28 s" in said(answer)
    assert not Lease.objects.exists()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("image", "Debian", "lower case"),
        ("max_hours", "0", "greater than or equal to 0.02"),
        ("max_hours", "25", "less than or equal to 24"),
        ("spend_cap", "1.500,00", "Write an amount such as 20.00"),
        ("spend_cap", "0.01", "This does not pay for one minute of the lease."),
        ("gpu_count", "3000", "Select a valid choice"),
        ("ssh_keys", [], "name at least one key"),
        ("name", "x" * 81, "at most 80"),
    ],
)
def test_a_wrong_field_is_named_in_the_panel_and_in_the_form(
    page: Client, renter: User, node: Node, field: str, value: Any, sentence: str
) -> None:
    panel = page.post(reverse("quote-panel"), form(**{field: value}))
    assert panel.status_code == 200
    assert sentence in said(panel)
    whole = page.post(reverse("rent"), form(**{field: value, "do": "price"}))
    assert whole.status_code == 400
    assert sentence in said(whole)


def test_start_orders_what_the_price_was_for(page: Client, renter: User, tenant: Tenant, node: Node) -> None:
    asked = form(gpu_count="2", plan="spot", image="debian:12", max_hours="1.5", spend_cap="1.00", name="finetune")
    token = quote_in(page.post(reverse("quote-panel"), asked))
    answer = page.post(reverse("rent"), {**asked, "quote": token, "do": "start"})
    lease = Lease.objects.get()
    assert answer["Location"] == reverse("lease", args=[lease.pk])
    assert (lease.gpu_count, lease.plan, lease.image, lease.name) == (2, "spot", "debian:12", "finetune")
    assert (lease.max_duration_s, lease.spend_cap_micros, lease.ssh_key_ids) == (5400, 1_000_000, None)
    assert (lease.tenant, lease.created_by) == (tenant, renter)


def test_some_of_the_keys_open_only_what_they_were_chosen_for(page: Client, renter: User, node: Node) -> None:
    other = make.make_key(renter)
    asked = form(ssh_keys=[other.pk])
    token = quote_in(page.post(reverse("quote-panel"), asked))
    page.post(reverse("rent"), {**asked, "quote": token})
    assert Lease.objects.get().ssh_key_ids == [other.pk]


def test_a_double_click_yields_one_lease(page: Client, renter: User, node: Node) -> None:
    token = quote_in(page.post(reverse("quote-panel"), form()))
    first, second = (page.post(reverse("rent"), form(quote=token)) for _click in range(2))
    assert first["Location"] == second["Location"] == reverse("lease", args=[Lease.objects.get().pk])


def test_a_form_that_was_changed_after_the_price_gets_a_new_price_and_no_lease(
    page: Client, renter: User, node: Node
) -> None:
    token = quote_in(page.post(reverse("quote-panel"), form()))
    answer = page.post(reverse("rent"), form(gpu_count="8", quote=token))
    assert "The price was made anew." in said(answer)
    assert "Start for $19.92 / h" in said(answer)
    assert not Lease.objects.exists()


def test_an_expired_price_is_made_anew(page: Client, renter: User, tenant: Tenant, node: Node) -> None:
    request = a_request(inactive_timeout_s=None)
    old = quotes.make(tenant=tenant, request=request, now=timezone.now() - timedelta(minutes=6))
    make.make_price(on_demand=3_000_000)
    answer = page.post(reverse("rent"), form(quote=old.token))
    assert "The price was made anew." in said(answer)
    assert quote_in(answer) != old.token
    assert not Lease.objects.exists()


@pytest.mark.parametrize("token", ["made-up", "a" * 9000])
def test_a_price_that_is_not_ours_orders_nothing(page: Client, renter: User, node: Node, token: str) -> None:
    assert "The price was made anew." in said(page.post(reverse("rent"), form(quote=token)))
    assert not Lease.objects.exists()


def test_without_javascript_show_price_comes_before_start(page: Client, renter: User, node: Node) -> None:
    shown = page.post(reverse("rent"), form(gpu_count="2", do="price"))
    assert shown.status_code == 200
    assert not Lease.objects.exists()
    assert page.post(reverse("rent"), form(gpu_count="2", do="start", quote=quote_in(shown))).status_code == 302


def test_too_little_money_says_what_is_needed_and_how_to_top_up(page: Client, user: User, node: Node) -> None:
    make.make_key(user)
    make.make_balance(make.tenant_of(user), 1_000_000)
    shown = page.post(reverse("quote-panel"), form())
    assert "This lease holds $2.49 at start; $1.00 is available." in said(shown)
    assert "Start for" not in said(shown)
    answer = page.post(reverse("rent"), form(quote=quote_in(shown)))
    assert answer.status_code == 402
    assert "Nothing was ordered." in said(answer)
    assert not Lease.objects.exists()


def test_whoever_comes_second_is_told_why_nothing_is_free(
    page: Client, renter: User, tenant: Tenant, node: Node
) -> None:
    token = quote_in(page.post(reverse("quote-panel"), form(gpu_count="8")))
    order(renter, tenant, gpu_count=1)
    answer = page.post(reverse("rent"), form(gpu_count="8", quote=token))
    assert answer.status_code == 409
    assert "Somebody was faster" in said(answer)
    assert "the largest free group is 7" in said(answer)
    assert Lease.objects.count() == 1


def test_without_a_key_the_page_asks_for_one_first(page: Client, user: User, node: Node) -> None:
    shown = said(page.get(reverse("rent")))
    assert "Add an SSH key first." in shown
    assert "Start for" not in shown


def test_without_a_price_there_is_nothing_to_rent(page: Client, renter: User) -> None:
    make.make_node(gpus=1)
    assert "Nothing to rent yet" in said(page.get(reverse("rent")))


def test_the_panel_costs_the_same_queries_for_any_fleet(
    page: Client, renter: User, node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    asked = form()
    page.post(reverse("quote-panel"), asked)
    for _number in range(3):
        make.make_node(gpus=4)
        make.make_key(renter)
    with django_assert_num_queries(11):
        page.post(reverse("quote-panel"), asked)

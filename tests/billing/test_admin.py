"""The operators' pages of money. Case B05: an amount two people could read differently never reaches the books."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from billing.models import Account, LedgerEntry, PriceVersion, TopUp
from billing.services import account_for, book_top_up, current_prices, post, set_price
from tests import make

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.actor import Actor
    from portal.models import Tenant, User

pytestmark = pytest.mark.usefixtures("sound_books")
MISREAD = ["1,5", "1.500,00", "9.999,99", "1 000", "1\u00a0000", "9.999", "1,000", "-5", "0"]


@pytest.fixture
def desk(operator: User) -> Client:
    """The operator's browser."""
    client = Client()
    client.force_login(operator)
    return client


def top_up_url(tenant: Tenant) -> str:
    return reverse("admin:billing_top_up", args=[tenant.pk])


def test_a_top_up_is_confirmed_with_the_amount_as_understood_and_then_booked_once(desk: Client, tenant: Tenant) -> None:
    typed = {"amount": "1500.50", "reference": "transfer 7"}
    asked = desk.post(top_up_url(tenant), typed).content.decode()
    assert "$1,500.50" in asked
    assert "transfer 7" in asked
    assert not TopUp.objects.exists()
    for sentence in ("is on the balance", "nothing was added"):
        done = desk.post(top_up_url(tenant), {**typed, "confirm": "1"}, follow=True)
        assert sentence in done.content.decode()
    assert account_for(tenant).balance_ticks == 1_500_500_000 * 3600
    assert TopUp.objects.get().booked_by is not None


@pytest.mark.parametrize("language", ["de", "fr", "zh-hans"])
def test_an_amount_that_could_be_misread_is_refused_with_an_example(
    desk: Client, tenant: Tenant, language: str
) -> None:
    for amount in MISREAD:
        typed = {"amount": amount, "reference": "transfer 7", "confirm": "1"}
        answer = desk.post(top_up_url(tenant), typed, headers={"Accept-Language": language})
        assert answer.status_code == 200
        assert "1500.50" in answer.content.decode()
        assert answer.context["form"].errors["amount"], amount
    assert not TopUp.objects.exists()


def test_a_reference_that_was_booked_is_pointed_out_before_anything_is_pressed(
    desk: Client, tenant: Tenant, actor: Actor
) -> None:
    book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)
    said = desk.post(top_up_url(tenant), {"amount": "5", "reference": "transfer 7"}).content.decode()
    assert "Booking it again adds nothing" in said
    said = desk.post(top_up_url(tenant), {"amount": "50", "reference": "transfer 7"}).content.decode()
    assert "another amount" in said
    assert "Book $" not in said


def test_a_top_up_in_another_currency_is_read_by_its_decimals(desk: Client, tenant: Tenant) -> None:
    typed = {"amount": "500", "reference": "transfer 7", "currency": "JPY"}
    assert "¥500" in desk.post(top_up_url(tenant), typed).content.decode()
    desk.post(top_up_url(tenant), {**typed, "confirm": "1"})
    assert account_for(tenant, "JPY").balance_ticks == 500_000_000 * 3600
    wrong = desk.post(top_up_url(tenant), {**typed, "amount": "500.00"})
    assert wrong.context["form"].errors["amount"]
    assert desk.get(top_up_url(tenant), {"currency": "XXX"}).status_code == 404


def test_a_new_price_is_shown_by_plan_and_then_made(desk: Client) -> None:
    url = reverse("admin:billing_new_price")
    typed = {"gpu_model": make.H100, "base_price": "1.66", "on_demand": "1.5", "reserved": "0.7", "spot": "0.3"}
    asked = desk.post(url, typed).content.decode()
    for price in ("$1.66", "$2.49", "$1.162", "$0.498"):
        assert price in asked
    assert not PriceVersion.objects.exists()
    desk.post(url, {**typed, "confirm": "1"})
    assert current_prices()[make.H100]["on_demand"].micros_per_hour == 2_490_000


def test_the_price_form_starts_from_the_price_that_stands(desk: Client, actor: Actor) -> None:
    set_price(gpu_model=make.H100, base_micros_per_hour=1_234_567, actor=actor, factors_milli={"spot": 250})
    said = desk.get(reverse("admin:billing_new_price"), {"gpu_model": make.H100}).content.decode()
    for value in ("1.234567", "1.5", "0.7", "0.25"):
        assert f'value="{value}"' in said


@pytest.mark.parametrize(
    "wrong", [{"base_price": "2,49"}, {"base_price": "0"}, {"spot": "0,3"}, {"spot": "0"}, {"gpu_model": ""}]
)
def test_a_price_that_could_be_misread_is_refused(desk: Client, wrong: dict[str, str]) -> None:
    typed = {"gpu_model": make.H100, "base_price": "1.66", "on_demand": "1.5", "reserved": "0.7", "spot": "0.3"}
    answer = desk.post(reverse("admin:billing_new_price"), {**typed, **wrong, "confirm": "1"})
    assert answer.status_code == 200
    assert answer.context["form"].errors
    assert not PriceVersion.objects.exists()


def test_staff_without_the_right_can_neither_book_nor_price(tenant: Tenant) -> None:
    looker = make.make_user("looker@example.test")
    looker.is_staff = True
    looker.save(update_fields=["is_staff"])
    client = Client()
    client.force_login(looker)
    for url in (top_up_url(tenant), reverse("admin:billing_new_price")):
        assert client.get(url).status_code == 403
        assert client.post(url, {"amount": "5", "reference": "x", "confirm": "1"}).status_code == 403
    assert not TopUp.objects.exists()


def test_renters_and_strangers_are_sent_away(page: Client, client: Client, tenant: Tenant) -> None:
    for browser in (page, client):
        answer = browser.post(top_up_url(tenant), {"amount": "5", "reference": "x", "confirm": "1"})
        assert answer.status_code in {302, 403}
    assert not TopUp.objects.exists()


@pytest.mark.parametrize("name", ["sku", "priceversion", "account", "ledgerentry", "hold", "topup"])
def test_money_is_looked_at_and_never_edited(desk: Client, tenant: Tenant, actor: Actor, name: str) -> None:
    set_price(gpu_model=make.H100, base_micros_per_hour=1_660_000, actor=actor)
    book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)
    make.make_hold(Account.objects.get(), "ls-1", 1)
    listed = desk.get(reverse(f"admin:billing_{name}_changelist"), {"q": "a"})
    assert listed.status_code == 200
    row = desk.get(reverse(f"admin:billing_{name}_changelist")).context["cl"].result_list[0]
    url = reverse(f"admin:billing_{name}_change", args=[row.pk])
    assert desk.get(url).status_code == 200
    assert desk.post(url, {"balance_ticks": "1", "memo": "x"}).status_code == 403
    assert desk.post(reverse(f"admin:billing_{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    assert desk.get(reverse(f"admin:billing_{name}_add")).status_code == 403


def test_lists_show_the_sums_of_what_is_filtered(desk: Client, tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10_000_000)
    make.make_balance(make.make_tenant(), 5_000_000)
    post(account=account, kind="usage", ticks=-3600 * 2_000_000, source="segment:1", lease_id="ls-1")
    make.make_hold(account, "ls-1", 1_000_000)

    def sums(name: str, **filters: str) -> list[str]:
        answer = desk.get(reverse(f"admin:billing_{name}_changelist"), filters)
        return [amount for _, amount in answer.context["totals"]]

    assert sums("ledgerentry") == ["$15.0000", "\u2212$2.0000"]
    assert sums("ledgerentry", q=tenant.pk, kind__exact="top_up") == ["$10.0000"]
    assert sums("account") == ["$13.0000", "$1.0000"]
    assert sums("hold") == ["$1.0000"]


def test_tenants_show_their_balance_and_a_button(desk: Client, tenant: Tenant) -> None:
    make.make_balance(tenant, 182_400_000)
    assert "$182.40" in desk.get(reverse("admin:portal_tenant_changelist")).content.decode()
    said = desk.get(reverse("admin:portal_tenant_change", args=[tenant.pk])).content.decode()
    assert top_up_url(tenant) in said


@pytest.mark.parametrize(
    "name", ["billing_sku", "billing_account", "billing_ledgerentry", "billing_hold", "billing_topup", "portal_tenant"]
)
def test_lists_cost_the_same_queries_for_any_number_of_rows(
    desk: Client, actor: Actor, name: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    url = reverse(f"admin:{name}_changelist")

    def grow(start: int, count: int) -> None:
        for number in range(start, start + count):
            tenant = make.make_tenant(f"Tenant {number}")
            set_price(gpu_model=f"GPU {number}", base_micros_per_hour=1_660_000, actor=actor)
            book_top_up(tenant=tenant, amount_micros=5_000_000, reference="transfer 7", actor=actor)
            make.make_hold(account_for(tenant), f"ls-{number}", 1)

    grow(0, 2)
    desk.get(url)
    with CaptureQueriesContext(connection) as few:
        desk.get(url)
    grow(2, 10)
    with django_assert_num_queries(len(few)):
        desk.get(url)
    assert LedgerEntry.objects.count() == 12


def test_links_that_lead_to_a_refusal_are_not_shown(tenant: Tenant, actor: Actor) -> None:
    set_price(gpu_model=make.H100, base_micros_per_hour=1_660_000, actor=actor)
    make.make_balance(tenant)
    looker = make.make_user("looker@example.test")
    looker.is_staff = True
    looker.save(update_fields=["is_staff"])
    looker.user_permissions.set(Permission.objects.filter(codename__in=["view_account", "view_sku"]))
    client = Client()
    client.force_login(looker)
    for name, words in (("account", "Top up"), ("sku", "New price")):
        url = reverse(f"admin:billing_{name}_changelist")
        row = client.get(url).context["cl"].result_list[0]
        assert words not in client.get(url).content.decode()
        assert words not in client.get(reverse(f"admin:billing_{name}_change", args=[row.pk])).content.decode()

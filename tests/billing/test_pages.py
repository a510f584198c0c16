"""The billing page of renters."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from billing import charts, statements
from billing.models import LedgerEntry
from billing.services import account_for, post
from portal.models import Membership
from tests import make

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.models import Tenant, User

pytestmark = pytest.mark.usefixtures("sound_books")


def body(client: Client, query: str = "") -> str:
    answer = client.get(reverse("balance") + query)
    assert answer.status_code == 200
    return answer.content.decode()


def booked(tenant: Tenant, count: int, *, first: int = 0) -> None:
    account = account_for(tenant)
    for number in range(first, first + count):
        post(
            account=account, kind="usage", ticks=-3_600_000_000, source=f"segment:{number}", lease_id=f"ls-{number:04}"
        )


def test_a_new_tenant_is_told_how_to_top_up(page: Client, tenant: Tenant) -> None:
    said = body(page)
    assert "No money yet" in said
    assert "$0.00" in said
    assert tenant.pk in said
    assert not tenant.accounts.exists()


def test_the_page_shows_balance_available_held_and_for_which_lease(page: Client, tenant: Tenant) -> None:
    make.make_hold(make.make_balance(tenant, 182_400_000), "ls-abc", 46_680_000)
    said = body(page)
    assert "$182.40" in said
    assert "$135.72 available · $46.68 held" in said
    assert "ls-abc" in said


def test_the_pill_shows_what_is_available(page: Client, tenant: Tenant) -> None:
    make.make_hold(make.make_balance(tenant, 182_400_000), "ls-abc", 46_680_000)
    pill = re.search(r'class="pill".*?</a>', body(page), re.S)
    assert pill
    assert "$135.72" in pill[0]


def test_spend_of_the_last_thirty_days_is_drawn_and_told_in_numbers(page: Client, tenant: Tenant) -> None:
    make.make_balance(tenant, 10_000_000)
    booked(tenant, 3)
    said = body(page)
    assert said.count("<rect x=") >= 30
    assert "30 days: $3.00" in said
    assert "$3.0000" in said


def test_lines_are_paged_and_each_is_shown_once(page: Client, tenant: Tenant) -> None:
    make.make_balance(tenant)
    booked(tenant, 120)
    seen: list[str] = []
    query = ""
    for _ in range(4):
        said = body(page, query)
        seen += re.findall(r"<code>(ls-\d{4})</code>", said)
        booked(tenant, 1, first=1000 + len(seen))
        older = re.search(r'href="/billing/(\?before=\d+)#lines"', said)
        if older is None:
            break
        query = older[1]
    assert sorted(seen) == [f"ls-{number:04}" for number in range(120)]


@pytest.mark.parametrize("before", ["x", "-1", "1e9", "9" * 30, "\u0661"])
def test_a_page_that_cannot_be_is_not_found(page: Client, before: str) -> None:
    assert page.get(reverse("balance"), {"before": before}).status_code == 404


def test_a_page_before_the_first_line_is_empty(page: Client, tenant: Tenant) -> None:
    make.make_balance(tenant)
    assert "No older lines" in body(page, "?before=1")


@pytest.mark.parametrize("role", list(Membership.Role))
def test_members_see_the_balance_and_who_pays_sees_the_lines(stranger: User, role: str) -> None:
    tenant = make.make_tenant(members={stranger: role})
    make.make_balance(tenant, 182_400_000)
    booked(tenant, 1)
    client = Client()
    client.force_login(stranger)
    session = client.session
    session["tenant"] = tenant.pk
    session.save()
    said = body(client)
    assert "$181.40" in said
    assert ("ls-0000" in said) == (role in {"owner", "admin", "billing"})
    assert ("Your role shows the balance" in said) == (role in {"member", "viewer"})


def test_money_of_others_is_not_shown(page: Client, stranger: User) -> None:
    make.make_balance(make.tenant_of(stranger), 182_400_000)
    booked(make.tenant_of(stranger), 1)
    said = body(page)
    assert "182" not in said
    assert "ls-0000" not in said


def test_nobody_sees_money_without_signing_in(client: Client) -> None:
    answer = client.get(reverse("balance"))
    assert answer.status_code == 302
    assert answer.url.startswith(reverse("account_login"))  # type: ignore[attr-defined]


def test_the_page_costs_the_same_queries_for_any_number_of_lines(
    page: Client, tenant: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    account = make.make_balance(tenant)
    booked(tenant, 60)
    for number in range(10):
        make.make_hold(account, f"ls-{number}", 1)
    body(page)
    with django_assert_max_num_queries(10):
        body(page)


def test_a_page_without_the_pill_asks_nothing_about_money(
    page: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(1) as asked:
        page.get(reverse("healthz"))
    assert not any("billing_account" in query["sql"] for query in asked.captured_queries)


def test_a_day_begins_at_midnight_of_the_reader(tenant: Tenant) -> None:
    account = make.make_balance(tenant)
    line = LedgerEntry(
        account=account, kind="usage", ticks=-7, source="segment:1", at=timezone.now().replace(hour=23, minute=30)
    )
    line.save(force_insert=True)
    account.__class__.objects.update(balance_ticks=account.balance_ticks - 7)
    for zone, shift in (("UTC", 0), ("Pacific/Auckland", 1)):
        with timezone.override(zone):
            spend = dict(statements.daily_spend(account, days=3, today=line.at.date() + timedelta(days=1)))
        assert spend[line.at.date() + timedelta(days=shift)] == 7


@pytest.mark.parametrize(
    ("ticks", "currency", "top"),
    [
        (0, "USD", 100_000),
        (3600 * 890_000_000, "USD", 1_000_000_000),
        (3600 * 23, "USD", 100_000),
        (0, "JPY", 10_000_000),
    ],
)
def test_the_scale_ends_at_a_round_amount(ticks: int, currency: str, top: int) -> None:
    today = timezone.localdate()
    bars, scale = charts.bars([(today, ticks)], currency)
    assert scale[-1].micros == top
    assert 0 <= float(bars[0].height) <= charts.BASE - charts.TOP

"""The balance and the ledger by API."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.utils import timezone

from billing.models import LedgerEntry
from billing.services import post
from portal.models import Membership
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.models import Tenant, User

pytestmark = pytest.mark.usefixtures("sound_books")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def usage(tenant: Tenant, count: int, **values: Any) -> list[LedgerEntry]:
    """Lines at one moment each, so that only the id tells them apart."""
    account = make.make_balance(tenant)
    return [
        post(account=account, kind="usage", ticks=-number - 1, source=f"segment:{number}", lease_id="ls-1", **values)
        for number in range(count)
    ]


def test_a_new_tenant_has_nothing_and_asking_makes_no_account(api: ApiClient, tenant: Tenant) -> None:
    answer = api.get("balance")
    assert answer.json() == {
        "tenant": tenant.pk,
        "currency": "USD",
        "balance_micros": 0,
        "held_micros": 0,
        "available_micros": 0,
        "balance_ticks": 0,
        "held_ticks": 0,
        "available_ticks": 0,
        "month": f"{timezone.now():%Y-%m}",
        "month_used_micros": 0,
        "month_cap_micros": None,
        "holds": [],
    }
    assert not tenant.accounts.exists()


def test_micros_are_rounded_against_the_tenant_and_ticks_are_exact(api: ApiClient, tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    post(account=account, kind="usage", ticks=-1, source="segment:1")
    make.make_hold(account, "ls-1", 1)
    said = api.get("balance").json()
    assert (said["balance_micros"], said["held_micros"], said["available_micros"]) == (9, 1, 8)
    assert (said["balance_ticks"], said["held_ticks"], said["available_ticks"]) == (35_999, 3600, 32_399)
    assert said["holds"] == [{"lease": "ls-1", "micros": 1, "ticks": 3600}]


def test_a_released_hold_is_not_shown(api: ApiClient, tenant: Tenant) -> None:
    hold = make.make_hold(make.make_balance(tenant), "ls-1")
    hold.account.holds.update(released_at=NOON)
    hold.account.__class__.objects.update(held_ticks=0)
    assert api.get("balance").json()["holds"] == []


def test_lines_come_newest_first_and_sum_to_the_balance(api: ApiClient, tenant: Tenant) -> None:
    usage(tenant, 3)
    said = api.get("ledger").json()
    assert [line["ticks"] for line in said["results"]] == [-3, -2, -1, 360_000_000_000]
    assert said["results"][0]["lease"] == "ls-1"
    assert said["results"][0]["micros"] == -1
    assert said["results"][-1] == {
        "id": said["results"][-1]["id"],
        "at": said["results"][-1]["at"],
        "kind": "top_up",
        "currency": "USD",
        "ticks": 360_000_000_000,
        "micros": 100_000_000,
        "lease": None,
        "memo": "",
    }
    assert sum(line["ticks"] for line in said["results"]) == api.get("balance").json()["balance_ticks"]


def test_paging_shows_each_line_once_while_lines_arrive(api: ApiClient, tenant: Tenant) -> None:
    before = {line.pk for line in usage(tenant, 23)} | {
        LedgerEntry.objects.order_by("pk").values_list("pk", flat=True)[0]
    }
    seen: list[int] = []
    path, number = "ledger?limit=5", 100
    while path:
        said = api.get(path).json()
        seen += [line["id"] for line in said["results"]]
        account = tenant.accounts.get()
        post(account=account, kind="usage", ticks=-1, source=f"segment:{number}")
        number += 1
        path = f"ledger?limit=5&cursor={quote(said['next'])}" if said["next"] else ""
    assert sorted(seen) == sorted(before)


def test_filters_narrow_by_lease_kind_currency_and_time(api: ApiClient, tenant: Tenant) -> None:
    usage(tenant, 2)
    euro = make.make_balance(tenant, 5, currency="EUR")
    LedgerEntry.objects.bulk_create([])
    assert len(api.get("ledger?lease=ls-1").json()["results"]) == 2
    assert len(api.get("ledger?kind=top_up").json()["results"]) == 2
    assert [line["ticks"] for line in api.get("ledger?currency=EUR").json()["results"]] == [euro.balance_ticks]
    hour = timedelta(hours=1)
    now = LedgerEntry.objects.latest("pk").at
    early, late = quote((now - hour).isoformat()), quote((now + hour).isoformat())
    assert len(api.get(f"ledger?since={early}&until={late}").json()["results"]) == 4
    assert api.get(f"ledger?since={late}").json()["results"] == []
    assert api.get(f"ledger?until={early}").json()["results"] == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("since=yesterday", "since"),
        ("kind=gift", "kind"),
        ("currency=XXX", "currency"),
        ("user=B", "user"),
        ("limit=10000", "limit"),
        ("limit=-1", "limit"),
        ("cursor=abc", "cursor"),
        ("lease=" + "x" * 33, "lease"),
    ],
)
def test_a_filter_that_means_nothing_is_refused_by_name(api: ApiClient, query: str, name: str) -> None:
    answer = api.get(f"ledger?{query}")
    assert answer.status_code == 400
    assert name in answer.json()["errors"]


def test_the_money_of_others_is_not_told(api: ApiClient, stranger: User) -> None:
    usage(make.tenant_of(stranger), 2)
    assert api.get("balance").json()["balance_ticks"] == 0
    assert api.get("ledger").json()["results"] == []
    assert api.get("ledger?lease=ls-1").json()["results"] == []


@pytest.mark.parametrize("role", list(Membership.Role))
def test_every_member_sees_the_balance_and_who_pays_sees_the_lines(stranger: User, role: str) -> None:
    tenant = make.make_tenant(members={stranger: role})
    usage(tenant, 1)
    member = ApiClient(make.make_token(stranger, tenant=tenant)[1])
    assert member.get("balance").json()["balance_ticks"] == 360_000_000_000 - 1
    answer = member.get("ledger")
    if role in {"owner", "admin", "billing"}:
        assert len(answer.json()["results"]) == 2
    else:
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")


def test_a_token_without_the_scope_sees_no_money(user: User) -> None:
    api = ApiClient(make.make_token(user, scopes=["leases:read"])[1])
    for path in ("balance", "ledger"):
        assert (api.get(path).status_code, api.get(path).json()["code"]) == (403, "scope_missing")
        assert ApiClient(None).get(path).status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_money_cannot_be_changed_by_the_api(api: ApiClient, method: str) -> None:
    for path in ("balance", "ledger"):
        refused = api.send(method, path, {"balance_ticks": 10**9})
        assert refused.status_code == (400 if (method, path) == ("PATCH", "balance") else 405)


def test_lists_cost_the_same_queries_for_any_number_of_rows(
    user: User, tenant: Tenant, api: ApiClient, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    account = make.make_balance(tenant)
    usage(tenant, 30)
    for number in range(10):
        make.make_hold(account, f"ls-{number}", 1)
    api.get("balance")  # notes the token's use, once a minute
    with django_assert_max_num_queries(5):
        assert len(api.get("balance").json()["holds"]) == 10
    with django_assert_max_num_queries(4):
        assert len(api.get("ledger").json()["results"]) == 32

"""The books on one connection. What needs two is in test_races.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from billing import money
from billing.models import Account, Hold, LedgerEntry
from billing.services import account_for, place_hold, post, release_hold, set_hold
from portal.errors import DomainError, InsufficientFunds, InvalidInput, NotFound
from tests import make

if TYPE_CHECKING:
    from portal.models import Tenant

pytestmark = pytest.mark.usefixtures("sound_books")


def fresh(account: Account) -> tuple[int, int]:
    account.refresh_from_db()
    return account.balance_ticks, account.held_ticks


def test_a_line_moves_the_balance_by_exactly_its_ticks(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 1_000_000)
    post(account=account, kind="usage", ticks=-1, source="segment:1", lease_id="ls-1")
    assert fresh(account) == (3_600_000_000 - 1, 0)


def test_the_same_source_is_booked_once(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 1_000_000)
    first = post(account=account, kind="usage", ticks=-7, source="segment:1", lease_id="ls-1")
    again = post(account=account, kind="usage", ticks=-7, source="segment:1", lease_id="ls-1")
    assert again.pk == first.pk
    assert fresh(account) == (3_600_000_000 - 7, 0)


def test_the_same_source_with_another_amount_is_an_error_and_books_nothing(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 1_000_000)
    post(account=account, kind="usage", ticks=-7, source="segment:1")
    with pytest.raises(DomainError) as refused:
        post(account=account, kind="usage", ticks=-8, source="segment:1")
    assert refused.value.code == "source_conflict"
    assert fresh(account) == (3_600_000_000 - 7, 0)


def test_a_line_of_zero_is_refused(tenant: Tenant) -> None:
    with pytest.raises(InvalidInput):
        post(account=account_for(tenant), kind="usage", ticks=0, source="segment:1")


@pytest.mark.parametrize("ticks", [money.MAX_TICKS, 2**63, 2**70])
def test_a_balance_never_leaves_the_range_of_the_books(tenant: Tenant, ticks: int) -> None:
    account = make.make_balance(tenant, 1)
    with pytest.raises(InvalidInput) as refused:
        post(account=account, kind="top_up", ticks=ticks, source="top_up:1")
    assert list(refused.value.errors) == ["amount"]
    assert fresh(account) == (3600, 0)


def test_an_account_holds_one_currency_and_another_currency_is_another_account(tenant: Tenant) -> None:
    yen = account_for(tenant, "JPY")
    assert yen.pk != account_for(tenant).pk
    assert account_for(tenant, "JPY").pk == yen.pk
    with pytest.raises(InvalidInput) as refused:
        account_for(tenant, "XXX")
    assert list(refused.value.errors) == ["currency"]


def test_money_in_another_currency_covers_no_hold(tenant: Tenant) -> None:
    make.make_balance(tenant, 1_000_000, currency="EUR")
    with pytest.raises(InsufficientFunds):
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=1)


def test_a_hold_takes_from_what_is_available_and_not_from_the_balance(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=30_000)
    assert fresh(account) == (36_000, 30_000)
    assert account.available_ticks == 6000


def test_a_hold_that_is_one_tick_too_large_is_refused_with_both_amounts(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    with pytest.raises(InsufficientFunds) as refused:
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=36_001)
    assert refused.value.status == 402
    assert refused.value.extra == {"needed_micros": 11, "available_micros": 10, "currency": "USD"}
    assert fresh(account) == (36_000, 0)
    assert not Hold.objects.exists()


def test_a_hold_may_take_all_there_is(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=36_000)
    assert account_for(tenant).available_ticks == 0
    assert fresh(account) == (36_000, 36_000)


def test_a_hold_may_be_larger_than_thirty_two_bits(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 2_490_000)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=2_490_000 * 3600 - 1)
    assert set_hold(lease_id="ls-1", ticks=2_490_000 * 3600)
    assert fresh(account) == (2_490_000 * 3600, 2_490_000 * 3600)


@pytest.mark.parametrize("ticks", [2**63 - 1, 2**63, 2**80])
def test_a_hold_beyond_every_balance_is_refused_as_too_little_money(tenant: Tenant, ticks: int) -> None:
    make.make_balance(tenant, 10)
    with pytest.raises(InsufficientFunds):
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=ticks)


def test_a_lease_has_one_open_hold(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=1)
    with pytest.raises(DomainError) as refused:
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=1)
    assert refused.value.code == "hold_conflict"
    assert fresh(account) == (36_000, 1)


def test_a_hold_grows_only_as_far_as_money_goes_and_shrinks_always(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=10_000)
    assert set_hold(lease_id="ls-1", ticks=36_000)
    assert not set_hold(lease_id="ls-1", ticks=36_001)
    assert fresh(account) == (36_000, 36_000)
    post(account=account, kind="usage", ticks=-40_000, source="segment:1")
    assert set_hold(lease_id="ls-1", ticks=5)
    assert fresh(account) == (-4000, 5)


@pytest.mark.parametrize("ticks", [-1, -(2**63)])
def test_a_hold_is_never_negative(tenant: Tenant, ticks: int) -> None:
    make.make_balance(tenant, 10)
    with pytest.raises(InvalidInput):
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=ticks)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=5)
    with pytest.raises(InvalidInput):
        set_hold(lease_id="ls-1", ticks=ticks)


def test_releasing_gives_back_once_and_may_be_repeated(tenant: Tenant) -> None:
    account = make.make_balance(tenant, 10)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=5)
    release_hold(lease_id="ls-1")
    release_hold(lease_id="ls-1")
    release_hold(lease_id="ls-unknown")
    assert fresh(account) == (36_000, 0)
    with pytest.raises(NotFound):
        set_hold(lease_id="ls-1", ticks=1)


def test_a_lease_may_hold_again_after_release(tenant: Tenant) -> None:
    make.make_balance(tenant, 10)
    for _ in range(2):
        place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=36_000)
        release_hold(lease_id="ls-1")
    assert LedgerEntry.objects.count() == 1
    assert Hold.objects.filter(released_at__isnull=False).count() == 2

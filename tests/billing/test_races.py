"""Money under parallel hands: real threads, each with a connection of its own. SQLite lets one writer in at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, transaction

from billing import books
from billing.models import Hold, LedgerEntry, TopUp
from billing.services import account_for, book_top_up, place_hold, post, release_hold, set_hold, set_price
from portal.actor import Actor
from portal.errors import DomainError, InsufficientFunds
from tests import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has two writers at once"),
]
THREADS = 50


@pytest.fixture(autouse=True)
def _sound_books_after() -> Iterator[None]:
    yield
    assert books.faults() == []


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0) … work(count-1)`` in threads that start together; a DomainError is returned, not raised."""
    gate = Barrier(count)

    def one(number: int) -> Any:
        try:
            connection.ensure_connection()
            gate.wait(30)
            return work(number)
        except DomainError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_fifty_parallel_holds_for_the_money_of_one_give_exactly_one() -> None:
    tenant = make.make_tenant()
    make.make_balance(tenant, 2_490_000)

    def hold(number: int) -> Hold:
        return place_hold(tenant=tenant, currency="USD", lease_id=f"ls-{number}", ticks=2_490_000 * 3600)

    outcomes = at_once(THREADS, hold)
    assert sum(isinstance(outcome, Hold) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, InsufficientFunds) for outcome in outcomes) == THREADS - 1
    assert account_for(tenant).available_ticks == 0


def test_parallel_posts_of_one_source_make_one_line() -> None:
    account = make.make_balance(make.make_tenant(), 1_000_000)
    lines = at_once(20, lambda _: post(account=account, kind="usage", ticks=-5, source="segment:1").pk)
    assert len(set(lines)) == 1
    account.refresh_from_db()
    assert account.balance_ticks == 3_600_000_000 - 5


def test_parallel_posts_of_many_sources_lose_none() -> None:
    account = make.make_balance(make.make_tenant(), 1_000_000)
    at_once(20, lambda number: post(account=account, kind="usage", ticks=-5, source=f"segment:{number}"))
    account.refresh_from_db()
    assert account.balance_ticks == 3_600_000_000 - 100


def test_a_payment_booked_by_many_operators_at_once_is_booked_once() -> None:
    tenant = make.make_tenant()

    def book(_: int) -> str:
        actor = Actor.system("test")
        return book_top_up(tenant=tenant, amount_micros=1_000_000, reference="transfer 7", actor=actor).pk

    assert len(set(at_once(20, book))) == 1
    assert TopUp.objects.count() == LedgerEntry.objects.count() == 1


def test_first_holds_and_first_accounts_at_once_make_one_account() -> None:
    tenant = make.make_tenant()
    assert len(set(at_once(20, lambda _: account_for(tenant).pk))) == 1


def test_a_hold_that_is_changed_and_released_at_once_leaves_nothing_held() -> None:
    tenant = make.make_tenant()
    account = make.make_balance(tenant, 1_000_000)
    place_hold(tenant=tenant, currency="USD", lease_id="ls-1", ticks=100)

    def change(number: int) -> object:
        return release_hold(lease_id="ls-1") if number % 5 == 0 else set_hold(lease_id="ls-1", ticks=number)

    at_once(20, change)
    account.refresh_from_db()
    assert account.held_ticks == 0


def test_booking_a_line_and_releasing_a_hold_in_one_transaction_never_deadlocks() -> None:
    tenant = make.make_tenant()
    account = make.make_balance(tenant, 1_000_000)
    for number in range(20):
        place_hold(tenant=tenant, currency="USD", lease_id=f"ls-{number}", ticks=100)

    def close(number: int) -> None:
        with transaction.atomic():
            if number % 2:
                post(account=account, kind="usage", ticks=-5, source=f"segment:{number}")
                release_hold(lease_id=f"ls-{number}")
            else:
                set_hold(lease_id=f"ls-{number}", ticks=50)
                post(account=account, kind="usage", ticks=-5, source=f"segment:{number}")

    assert at_once(20, close) == [None] * 20
    account.refresh_from_db()
    assert (account.balance_ticks, account.held_ticks) == (3_600_000_000 - 100, 500)


def test_two_new_prices_at_once_get_two_numbers() -> None:
    def price(number: int) -> int:
        actor = Actor.system("test")
        return set_price(gpu_model=make.H100, base_micros_per_hour=1_000_000 + number, actor=actor).number

    assert sorted(at_once(10, price)) == list(range(1, 11))

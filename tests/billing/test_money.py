"""Arithmetic of money. Case F04: nothing is lost by rounding at each step instead of once; case F05: decimals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing import money
from portal.currencies import CURRENCIES

PRICES = st.integers(min_value=1, max_value=money.MAX_PRICE_MICROS)
SECONDS = st.integers(min_value=0, max_value=86_400 * 31)
UNITS = st.integers(min_value=1, max_value=16)
TICKS = st.integers(min_value=-money.MAX_TICKS, max_value=money.MAX_TICKS)


@settings(max_examples=10_000, deadline=None)
@given(price=PRICES, units=UNITS, pieces=st.lists(st.integers(min_value=0, max_value=600), max_size=8))
def test_metering_in_pieces_costs_what_metering_at_the_end_costs(price: int, units: int, pieces: list[int]) -> None:
    # case F04
    assert sum(money.ticks(piece, units, price) for piece in pieces) == money.ticks(sum(pieces), units, price)


@pytest.mark.parametrize("price", ["19.99", "8.29", "0.067", "0.36"])
def test_thirty_days_metered_every_ten_seconds_lose_nothing(price: str) -> None:  # case F04
    micros = money.parse_price(price)
    month = 86_400 * 30
    assert sum(money.ticks(10, 1, micros) for _ in range(month // 10)) == money.ticks(month, 1, micros)
    assert money.ticks(month, 1, micros) == micros * 720 * money.TICKS_PER_MICRO


def test_fifty_five_units_at_a_price_below_a_tenth_cost_exactly_fifty_five_times_one() -> None:  # case F04
    assert money.ticks(3600, 55, money.parse_price("0.067")) == money.from_micros(3_685_000)


@pytest.mark.parametrize(("seconds", "micros"), [(1, 691), (59, 40_808), (3600, 2_490_000), (3601, 2_490_691)])
def test_whole_micros_of_a_charge_are_rounded_down_for_whoever_has_them(seconds: int, micros: int) -> None:
    assert money.micros_floor(money.ticks(seconds, 1, 2_490_000)) == micros


@given(amount=TICKS)
def test_rounding_never_moves_an_amount_by_a_whole_micro(amount: int) -> None:
    low, high = money.micros_floor(amount), money.micros_ceil(amount)
    assert low * money.TICKS_PER_MICRO <= amount <= high * money.TICKS_PER_MICRO
    assert high - low == (amount % money.TICKS_PER_MICRO != 0)


@given(base=PRICES, factor=st.integers(min_value=0, max_value=money.MAX_FACTOR_MILLI))
def test_a_plan_price_is_the_nearest_whole_micro_and_a_half_goes_up(base: int, factor: int) -> None:
    doubled = 2 * (money.plan_price(base, factor) * 1000 - base * factor)
    assert -1000 < doubled <= 1000


def test_a_plan_price_that_ends_in_a_half_goes_up() -> None:
    assert [money.plan_price(base, 1500) for base in (1, 2, 3)] == [2, 3, 5]


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_nothing_negative_can_be_charged(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="never negative"):
        money.ticks(*arguments)


@pytest.mark.parametrize(
    ("currency", "coins", "text"),
    [
        ("JPY", 500, "500"),
        ("KRW", 500, "500"),
        ("EUR", 50_000, "500.00"),
        ("KWD", 500_000, "500.000"),
        ("BHD", 1, "0.001"),
    ],
)
def test_coins_of_each_kind_of_currency_convert_both_ways(currency: str, coins: int, text: str) -> None:  # case F05
    amount = money.ticks_from_minor(coins, currency)
    assert money.minor_from_ticks(amount, currency) == (coins, 0)
    assert money.amount_text(money.micros_floor(amount), currency) == text
    assert money.parse_amount(text, currency) == money.micros_floor(amount)


@given(amount=st.integers(min_value=0, max_value=money.MAX_TICKS), currency=st.sampled_from(sorted(CURRENCIES)))
def test_what_does_not_make_a_whole_coin_is_carried(amount: int, currency: str) -> None:
    coins, rest = money.minor_from_ticks(amount, currency)
    assert money.ticks_from_minor(coins, currency) + rest == amount
    assert 0 <= rest < money.ticks_from_minor(1, currency)


@pytest.mark.parametrize("currency", ["usd", "", "XXX", "US", "DOLLAR"])
def test_an_unknown_currency_is_refused(currency: str) -> None:  # case F05
    with pytest.raises(money.UnknownCurrencyError):
        money.minor_digits(currency)


@given(
    micros=st.integers(min_value=0, max_value=money.MAX_UNITS * 100), currency=st.sampled_from(["USD", "JPY", "KWD"])
)
def test_an_amount_reads_back_as_it_was_written(micros: int, currency: str) -> None:
    whole = micros * money.micros_per_coin(currency)
    if whole <= money.MAX_MICROS:
        assert money.parse_amount(money.amount_text(whole, currency), currency) == whole


@pytest.mark.parametrize(
    "text",
    ["1,5", "1.500,00", "9.999,99", "1 000", "1\u00a0000", "1,000.00", "1.500", "9.999", "-5", "+5", "1e3", "", ".",
     ".5", "5.", "0x10", "١٢", "12\n", "NaN", "$5", "1_000"],
)  # fmt: skip
def test_an_amount_two_people_could_read_differently_is_refused(text: str) -> None:
    with pytest.raises(money.UnreadableAmountError):
        money.parse_amount(text, "USD")


def test_an_amount_beyond_the_books_is_refused() -> None:
    assert money.parse_amount("2000000000.00", "USD") == money.MAX_MICROS
    assert money.from_micros(money.MAX_MICROS) < 2**63
    with pytest.raises(money.AmountTooLargeError):
        money.parse_amount("2000000000.01", "USD")

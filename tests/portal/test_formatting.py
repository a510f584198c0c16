"""What a reader sees of money and time. The values come from the price table and receipts of the design language."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal import formatting as f

GERMAN = f.Style(decimal=",", group=".")
CHINESE = f.Style(hours="{h} 小时 {m} 分 {s} 秒", symbols={**f.SYMBOLS, "CNY": "¥", "JPY": "JP¥"})


@pytest.mark.parametrize(
    ("micros", "currency", "text"),
    [
        (182_400_000, "USD", "$182.40"),
        (1_500_000_000, "USD", "$1,500.00"),
        (0, "USD", "$0.00"),
        (5_000, "USD", "$0.01"),
        (4_999, "USD", "$0.00"),
        (-5_000_000, "EUR", "\u2212€5.00"),
        (-4_999, "USD", "$0.00"),
        (1_500_000_000, "JPY", "¥1,500"),
        (500_000, "JPY", "¥1"),
        (1_234_500, "KWD", "KWD\u00a01.235"),
        (-1_000_000, "CHF", "\u2212CHF\u00a01.00"),
    ],
)
def test_money_has_the_decimals_of_its_currency_and_rounds_half_away_from_zero(
    micros: int, currency: str, text: str
) -> None:
    assert f.money(micros, currency) == text


@pytest.mark.parametrize(
    ("extra", "usd", "jpy", "kwd"),
    [
        (0, "$18.45", "¥18", "KWD\u00a018.451"),
        (2, "$18.4509", "¥18.45", "KWD\u00a018.45090"),
        (4, "$18.450900", "¥18.4509", "KWD\u00a018.4509000"),
    ],
)
def test_ticks_are_seconds_times_the_hourly_price(extra: int, usd: str, jpy: str, kwd: str) -> None:
    ticks = 13_338 * 4_980_000
    assert [f.ticks_money(ticks, c, extra=extra) for c in ("USD", "JPY", "KWD")] == [usd, jpy, kwd]


@pytest.mark.parametrize(
    ("micros", "currency", "hour", "second"),
    [
        (2_490_000, "USD", "$2.49", "$0.000692"),
        (385_000, "USD", "$0.385", "$0.000107"),
        (1, "USD", "$0.000001", "$0.000000"),
        (250_000_000, "JPY", "¥250", "¥0.0694"),
        (760_500, "KWD", "KWD\u00a00.7605", "KWD\u00a00.0002113"),
    ],
)
def test_an_hourly_price_is_never_rounded_for_show(micros: int, currency: str, hour: str, second: str) -> None:
    assert (f.price_per_hour(micros, currency), f.price_per_second(micros, currency)) == (hour, second)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min 00 s"),
        (700, "11 min 40 s"),
        (13_338, "3 h 42 min 18 s"),
        (3_600, "1 h 00 min 00 s"),
        (2_592_000, "720 h 00 min 00 s"),
    ],
)
def test_a_duration_keeps_every_second(seconds: int, text: str) -> None:
    assert f.duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (86_399, "23 h ago"),
        (86_400, "1 day ago"),
        (61 * 86_400, "61 days ago"),
    ],
)
def test_an_age_is_told_in_its_largest_unit_rounded_down(seconds: int, text: str) -> None:
    assert f.ago(seconds) == text


def test_separators_and_words_follow_the_style() -> None:
    assert f.money(1_500_500_000, "EUR", GERMAN) == "€1.500,50"
    assert f.duration(13_338, CHINESE) == "3 小时 42 分 18 秒"
    assert f.money(9_000_000, "CNY", CHINESE) == "¥9.00"
    assert f.money(9_000_000, "CNY") == "CN¥9.00"


@pytest.mark.parametrize("currency", ["", "usd", "US", "USDT", "U$D"])
def test_a_currency_that_is_not_a_code_is_refused(currency: str) -> None:
    with pytest.raises(ValueError, match="ISO 4217"):
        f.money(1, currency)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1), st.integers(min_value=0, max_value=9))
def test_decimals_are_within_half_a_unit_of_the_exact_amount(ticks: int, digits: int) -> None:
    denominator = f.TICKS_PER_MICRO * f.MICROS_PER_UNIT
    shown = int(f.decimal(ticks, denominator, digits).replace(",", "").replace(".", "").replace("\u2212", "-"))
    assert abs(shown * denominator - ticks * 10**digits) * 2 <= denominator


@pytest.mark.parametrize(
    ("ticks", "currency", "have", "need"),
    [
        (49_995_850_000 * 3600 // 1000, "USD", "$49.99", "$50.00"),
        (50_000_000 * 3600, "USD", "$50.00", "$50.00"),
        (1, "JPY", "¥0", "¥1"),
        (-1, "USD", "\N{MINUS SIGN}$0.01", "$0.00"),
        (1_234_000 * 3600 + 1, "KWD", "KWD\N{NO-BREAK SPACE}1.234", "KWD\N{NO-BREAK SPACE}1.235"),
    ],
)
def test_a_balance_is_rounded_down_and_what_is_needed_up(ticks: int, currency: str, have: str, need: str) -> None:
    assert (f.have_money(ticks, currency), f.need_money(ticks, currency)) == (have, need)

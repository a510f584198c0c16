"""How numbers are written: money, durations, ages. Pure functions: no clock, no settings, no active language.

Amounts arrive as integers, either in micros (µ, a millionth of the currency's main unit) or in ticks
(seconds times micros per hour, so 3600 ticks = 1 µ). Nothing here passes through a float. A `Style` carries what a
language changes; `portal.templatetags.lessor` builds it from the active one, the API does not format at all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

TICKS_PER_MICRO = 3600
MICROS_PER_UNIT = 1_000_000
_MICRO_DIGITS = 6

# Minor digits by ISO 4217 where they are not 2.
_MINOR_DIGITS: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "BIF",
            "CLP",
            "DJF",
            "GNF",
            "ISK",
            "JPY",
            "KMF",
            "KRW",
            "PYG",
            "RWF",
            "UGX",
            "VND",
            "VUV",
            "XAF",
            "XOF",
            "XPF",
        ),
        0,
    ),
    **dict.fromkeys(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"), 3),
}
# A symbol only where it is not shared; "kr" or "R$" would leave the reader guessing.
SYMBOLS: Mapping[str, str] = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "CNY": "CN¥", "KRW": "₩", "INR": "₹"}

_CURRENCY = re.compile(r"[A-Z]{3}")
_MINUS = "\u2212"
_NO_BREAK = "\u00a0"


@dataclass(frozen=True, slots=True)
class Style:
    """What a language changes. Sentences take `{h}`, `{m}`, `{s}` or `{n}`; a part after a larger one has 2 digits."""

    decimal: str = "."
    group: str = ","
    hours: str = "{h} h {m} min {s} s"
    minutes: str = "{m} min {s} s"
    seconds: str = "{s} s"
    seconds_ago: str = "{n} s ago"
    minutes_ago: str = "{n} min ago"
    hours_ago: str = "{n} h ago"
    day_ago: str = "1 day ago"
    days_ago: str = "{n} days ago"
    symbols: Mapping[str, str] = field(default_factory=lambda: SYMBOLS)


ENGLISH = Style()


def minor_digits(currency: str) -> int:
    """Decimals of the currency's smallest coin: 2 for USD, 0 for JPY, 3 for KWD. ValueError if it is no ISO code."""
    if not _CURRENCY.fullmatch(currency):
        raise ValueError(f"{currency!r} is not an ISO 4217 currency code")
    return _MINOR_DIGITS.get(currency, 2)


def integer(value: int, style: Style = ENGLISH) -> str:
    """`13338` as `13,338`."""
    return decimal(value, 1, 0, style)


def decimal(numerator: int, denominator: int, digits: int, style: Style = ENGLISH) -> str:
    """`numerator / denominator` with exactly `digits` decimals, grouped, rounded half away from zero."""
    scaled, rest = divmod(abs(numerator) * 10**digits, denominator)
    scaled += rest * 2 >= denominator
    whole, fraction = divmod(scaled, 10**digits)
    text = f"{whole:,}".replace(",", style.group)
    if digits:
        text += f"{style.decimal}{fraction:0{digits}d}"
    return f"{_MINUS}{text}" if numerator < 0 and scaled else text


def with_currency(number: str, currency: str, style: Style = ENGLISH) -> str:
    """Puts `$` between sign and number; a currency without a symbol of its own is written as `KWD 1.500`."""
    sign, number = (_MINUS, number[1:]) if number.startswith(_MINUS) else ("", number)
    symbol = style.symbols.get(currency)
    return f"{sign}{symbol}{number}" if symbol else f"{sign}{currency}{_NO_BREAK}{number}"


def money(micros: int, currency: str, style: Style = ENGLISH, *, extra: int = 0) -> str:
    """Micros with the currency's decimals plus `extra`. Balances, invoices and headers use `extra=0`."""
    digits = minor_digits(currency) + extra
    return with_currency(decimal(micros, MICROS_PER_UNIT, digits, style), currency, style)


def ticks_money(ticks: int, currency: str, style: Style = ENGLISH, *, extra: int = 0) -> str:
    """As `money`, from ticks. `extra=2` for what a lease costs so far, `extra=4` for a line of a receipt."""
    digits = minor_digits(currency) + extra
    return with_currency(decimal(ticks, TICKS_PER_MICRO * MICROS_PER_UNIT, digits, style), currency, style)


def _coin_ticks(currency: str) -> int:
    return int(TICKS_PER_MICRO * MICROS_PER_UNIT // 10 ** minor_digits(currency))


def have_money(ticks: int, currency: str, style: Style = ENGLISH) -> str:
    """Money somebody has: whole coins, rounded down, so that nothing is shown that cannot be spent."""
    coin = _coin_ticks(currency)
    return ticks_money(ticks // coin * coin, currency, style)


def need_money(ticks: int, currency: str, style: Style = ENGLISH) -> str:
    """Money that is asked for or set aside: whole coins, rounded up, so that what is shown is enough."""
    coin = _coin_ticks(currency)
    return ticks_money(-(-ticks // coin) * coin, currency, style)


def price_per_hour(micros: int, currency: str, style: Style = ENGLISH) -> str:
    """A price must not be rounded for show: as many decimals as it has, at least those of the currency."""
    digits = minor_digits(currency)
    while digits < _MICRO_DIGITS and micros * 10**digits % MICROS_PER_UNIT:
        digits += 1
    return with_currency(decimal(micros, MICROS_PER_UNIT, digits, style), currency, style)


def price_per_second(micros_per_hour: int, currency: str, style: Style = ENGLISH) -> str:
    """The hourly price divided by 3600, four decimals beyond the currency's own: `$0.000692`."""
    return ticks_money(micros_per_hour, currency, style, extra=4)


def duration(seconds: int, style: Style = ENGLISH) -> str:
    """`18 s`, `11 min 40 s`, `3 h 42 min 18 s`. Bills count hours, so they are not folded into days. Negative is 0."""
    minutes, s = divmod(max(0, seconds), 60)
    h, m = divmod(minutes, 60)
    if h:
        return style.hours.format(h=integer(h, style), m=f"{m:02d}", s=f"{s:02d}")
    if m:
        return style.minutes.format(m=m, s=f"{s:02d}")
    return style.seconds.format(s=s)


def ago(seconds: int, style: Style = ENGLISH) -> str:
    """The age of something, in its largest unit, rounded down. For anything that costs money use `duration`."""
    seconds = max(0, seconds)
    for limit, unit, pattern in (
        (60, 1, style.seconds_ago),
        (3600, 60, style.minutes_ago),
        (86400, 3600, style.hours_ago),
    ):
        if seconds < limit:
            return pattern.format(n=seconds // unit)
    days = seconds // 86400
    return style.day_ago if days == 1 else style.days_ago.format(n=integer(days, style))

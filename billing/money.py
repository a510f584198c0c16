"""Arithmetic of money: integers in named types, no float, no clock, no Django. Everything that rounds is here.

A tick is what one second costs at 1 µ (a millionth of the currency's main unit) per hour. So ``seconds * units * µ per
hour`` is an amount in ticks without any rounding, and 3600 ticks are 1 µ. What is kept is kept in ticks; rounding
happens once, where an amount leaves the books.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final, NewType

from portal import formatting
from portal.currencies import CURRENCIES

Ticks = NewType("Ticks", int)

TICKS_PER_MICRO: Final = 3600
MICROS_PER_UNIT: Final = 1_000_000
MICRO_DIGITS: Final = 6
# Two thousand million of any currency stay below 2**63 ticks; no amount and no balance may go beyond.
MAX_UNITS: Final = 2_000_000_000
MAX_MICROS: Final = MAX_UNITS * MICROS_PER_UNIT
MAX_TICKS: Final = Ticks(MAX_MICROS * TICKS_PER_MICRO)
# A million an hour: sixteen such GPUs for a day still fit in a ledger line.
MAX_PRICE_MICROS: Final = 1_000_000 * MICROS_PER_UNIT
MILLI: Final = 1000
MAX_FACTOR_MILLI: Final = 100 * MILLI

_AMOUNT = re.compile(r"[0-9]{1,12}(?:\.([0-9]+))?", re.ASCII)


class UnknownCurrencyError(ValueError):
    """Not the code of a currency in use, so nobody knows how many decimals its amounts have."""


class UnreadableAmountError(ValueError):
    """Not a plain decimal number, or with more decimals than may be written."""


class AmountTooLargeError(ValueError):
    """A plain number, but beyond what the books can hold."""


def ticks(seconds: int, units: int, price_micros_per_hour: int) -> Ticks:
    """What ``units`` cost for ``seconds`` at that price, exactly. ValueError below zero."""
    if seconds < 0 or units < 0 or price_micros_per_hour < 0:
        raise ValueError("Seconds, units and price are never negative.")
    return Ticks(seconds * units * price_micros_per_hour)


def from_micros(micros: int) -> Ticks:
    """An amount in µ as ticks, exactly."""
    return Ticks(micros * TICKS_PER_MICRO)


def micros_floor(amount: int) -> int:
    """Ticks in whole µ, rounded down: what somebody has. -1 tick is -1 µ."""
    return amount // TICKS_PER_MICRO


def micros_ceil(amount: int) -> int:
    """Ticks in whole µ, rounded up: what somebody needs."""
    return -(-amount // TICKS_PER_MICRO)


def plan_price(base_micros: int, factor_milli: int) -> int:
    """``base * factor / 1000`` in whole µ per hour, a half goes up. Rounded here once, when a price is made."""
    if base_micros < 0 or factor_milli < 0:
        raise ValueError("Price and factor are never negative.")
    return (base_micros * factor_milli * 2 + MILLI) // (2 * MILLI)


def minor_digits(currency: str) -> int:
    """Decimals of the smallest coin: 2 for USD, 0 for JPY, 3 for KWD. UnknownCurrencyError for anything else."""
    if currency not in CURRENCIES:
        raise UnknownCurrencyError(f"{currency!r} is not a currency in use (ISO 4217, three capital letters).")
    return formatting.minor_digits(currency)


def micros_per_coin(currency: str) -> int:
    """µ in the smallest coin: 10000 for USD, 1000000 for JPY, 1000 for KWD."""
    return int(10 ** (MICRO_DIGITS - minor_digits(currency)))


def minor_from_ticks(amount: int, currency: str) -> tuple[int, Ticks]:
    """Whole coins of an amount that is not negative, and the ticks left over for the next invoice."""
    if amount < 0:
        raise ValueError("Only an amount that is not negative is paid in coins.")
    coins, rest = divmod(amount, micros_per_coin(currency) * TICKS_PER_MICRO)
    return coins, Ticks(rest)


def ticks_from_minor(coins: int, currency: str) -> Ticks:
    """Coins as a payment provider counts them (500 is JPY 500 or USD 5.00) as ticks, exactly."""
    return Ticks(coins * micros_per_coin(currency) * TICKS_PER_MICRO)


def parse_amount(text: str, currency: str) -> int:
    """µ of an amount typed by a person: digits, one dot, at most the currency's decimals.

    No comma, no blank, no sign, no exponent: ``1.500,00`` is two different amounts to two people and is refused.
    Raises UnreadableAmountError or AmountTooLargeError.
    """
    return _parse(text, minor_digits(currency))


def parse_price(text: str) -> int:
    """µ per hour of a price typed by a person: as an amount, with up to six decimals (0.067)."""
    return _parse(text, MICRO_DIGITS)


def _parse(text: str, digits: int) -> int:
    match = _AMOUNT.fullmatch(text)
    if match is None or len(match[1] or "") > digits:
        raise UnreadableAmountError("Not a plain number with that many decimals.")
    micros = int(Decimal(text).scaleb(MICRO_DIGITS))
    if micros > MAX_MICROS:
        raise AmountTooLargeError(f"More than {MAX_UNITS}.")
    return micros


def amount_text(micros: int, currency: str) -> str:
    """The inverse of parse_amount: ``1500.00`` for USD, ``1500`` for JPY; more decimals only where there are more."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    whole, fraction = divmod(micros, MICROS_PER_UNIT)
    digits, least = f"{fraction:0{MICRO_DIGITS}d}", minor_digits(currency)
    decimals = digits[:least] + digits[least:].rstrip("0")
    return f"{sign}{whole}.{decimals}" if decimals else f"{sign}{whole}"

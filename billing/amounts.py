"""Amounts as people type them, with the sentence that helps when one cannot be read. The arithmetic is in money.py."""

from __future__ import annotations

from billing import money
from portal.errors import InvalidInput


def read_amount(text: str, currency: str, *, field: str = "amount") -> int:
    """µ of a typed amount in a currency; InvalidInput naming ``field`` and an example of what can be read."""
    try:
        return money.parse_amount(text.strip(), currency)
    except money.UnknownCurrencyError as error:
        raise InvalidInput.field("currency", str(error)) from error
    except money.AmountTooLargeError as error:
        raise InvalidInput.field(field, f"At most {money.MAX_UNITS} {currency}.") from error
    except money.UnreadableAmountError as error:
        sentence = f"Write digits with a dot before the decimals, for example {example(currency)}: no comma, no blank."
        raise InvalidInput.field(field, sentence) from error


def example(currency: str) -> str:
    """One thousand and a half, as it must be written: 1500.50 for USD, 1500 for JPY."""
    micros = 1_500_500_000 if money.minor_digits(currency) else 1_500_000_000
    return money.amount_text(micros, currency)


def read_price(text: str, *, field: str = "base_price") -> int:
    """µ per hour of a typed price, up to six decimals."""
    try:
        return money.parse_price(text.strip())
    except money.AmountTooLargeError as error:
        raise InvalidInput.field(field, f"At most {money.MAX_UNITS}.") from error
    except money.UnreadableAmountError as error:
        sentence = "Write digits with a dot before the decimals, for example 2.49: no comma, at most six decimals."
        raise InvalidInput.field(field, sentence) from error


def read_factor(text: str, *, field: str = "factors") -> int:
    """Thousandths of a typed factor: ``1.5`` is 1500. At most three decimals."""
    try:
        micros = money.parse_price(text.strip())
    except ValueError as error:
        raise InvalidInput.field(field, _FACTOR) from error
    milli, rest = divmod(micros, money.MICROS_PER_UNIT // money.MILLI)
    if rest:
        raise InvalidInput.field(field, _FACTOR)
    return milli


_FACTOR = "Write a factor such as 1.5: digits with a dot, at most three decimals."

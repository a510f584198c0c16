"""The verbs of billing, for the other apps. Each is atomic; callers join them into their own transaction."""

from billing.ledger import account_for, lower_hold, place_hold, post, release_hold, set_hold
from billing.prices import PriceQuote, current_prices, set_price
from billing.top_ups import book_top_up

__all__ = [
    "PriceQuote",
    "account_for",
    "book_top_up",
    "current_prices",
    "lower_hold",
    "place_hold",
    "post",
    "release_hold",
    "set_hold",
    "set_price",
]

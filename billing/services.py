"""The verbs of billing, for the other apps. Each is atomic; callers join them into their own transaction."""

from billing.caps import MonthUse, booked_ticks, month_start, month_use, room_ticks
from billing.ledger import MonthCapReached, account_for, lower_hold, place_hold, post, release_hold, set_hold
from billing.limits import set_month_cap
from billing.prices import PriceQuote, current_prices, set_price
from billing.top_ups import book_top_up

__all__ = [
    "MonthCapReached",
    "MonthUse",
    "PriceQuote",
    "account_for",
    "book_top_up",
    "booked_ticks",
    "current_prices",
    "lower_hold",
    "month_start",
    "month_use",
    "place_hold",
    "post",
    "release_hold",
    "room_ticks",
    "set_hold",
    "set_month_cap",
    "set_price",
]

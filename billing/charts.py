"""The drawing of spend by day: where each bar stands, in SVG units. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from billing import money

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

WIDTH: Final = 880
HEIGHT: Final = 210
LEFT: Final = 56  # room for the amounts
TOP: Final = 10
BASE: Final = 186  # the line of zero; days are written below
GAP: Final = 6
LABEL_EVERY: Final = 5
LEAST_COINS: Final = 10  # of the smallest coin at the top of the scale, so that half of it can be written


@dataclass(frozen=True, slots=True)
class Bar:
    """A day: position and size as SVG attributes, its middle, and whether the day is written below."""

    day: date
    ticks: int
    x: str
    y: str
    width: str
    height: str
    middle: str
    labelled: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the scale, with its amount in µ."""

    micros: int
    y: str


def bars(spend: Sequence[tuple[date, int]], currency: str) -> tuple[list[Bar], list[Line]]:
    """Bars for ``[(day, ticks)]`` and the three lines behind them. The last day and each fifth before it are named."""
    top = _round_up(money.micros_ceil(max((ticks for _, ticks in spend), default=0)), currency)
    step = (WIDTH - LEFT) / max(1, len(spend))
    drawn = []
    for number, (day, ticks) in enumerate(spend):
        height = (BASE - TOP) * max(0, ticks) / (top * money.TICKS_PER_MICRO)
        x = LEFT + number * step
        drawn.append(
            Bar(
                day=day,
                ticks=ticks,
                x=f"{x + GAP / 2:.1f}",
                y=f"{BASE - height:.1f}",
                width=f"{step - GAP:.1f}",
                height=f"{height:.1f}",
                middle=f"{x + step / 2:.1f}",
                labelled=(len(spend) - 1 - number) % LABEL_EVERY == 0,
            )
        )
    return drawn, [Line(top * part // 2, f"{BASE - (BASE - TOP) * part / 2:.1f}") for part in range(3)]


def _round_up(micros: int, currency: str) -> int:
    """The next 1, 2 or 5 with zeros, in µ."""
    scale = LEAST_COINS * money.micros_per_coin(currency)
    while True:
        for digit in (1, 2, 5):
            if digit * scale >= micros:
                return digit * scale
        scale *= 10

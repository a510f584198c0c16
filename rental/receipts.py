"""The receipt of a lease: what was charged, second by second, and why the rest was not. Reads only.

Its lines follow each other without a hole; the charged ones are the segments, and their sum is what the ledger has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Sum
from django.utils import timezone

from billing import money
from billing.models import LedgerEntry
from rental import metering
from rental.models import Lease, UsageGap, UsageSegment, whole_seconds
from rental.states import EndReason, Gap, State

if TYPE_CHECKING:
    from datetime import datetime

MICRO_DIGITS = 6


@dataclass(frozen=True)
class Line:
    """A stretch ``[start, end)``. ``gap`` is empty when it was charged, else the reason why not; times are ours, UTC.

    ``price_micros_per_hour`` is per unit; ``ticks`` is exact. ``provisional`` lines are still growing.
    """

    start: datetime
    end: datetime
    seconds: int
    gap: str = ""
    units: int = 0
    price_micros_per_hour: int = 0
    ticks: int = 0
    provisional: bool = False

    @property
    def micros(self) -> str:
        """The amount in µ, with six decimals, rounded half up."""
        return micros_text(self.ticks)


@dataclass(frozen=True)
class Receipt:
    """All lines of a lease; ``ticks`` is their sum, ``ledger_ticks`` what has been posted: equal once it is final."""

    lease_id: str
    currency: str
    lines: tuple[Line, ...]
    seconds: int
    ticks: int
    ledger_ticks: int
    provisional: bool

    @property
    def micros(self) -> str:
        """The sum in µ, with six decimals, rounded half up once."""
        return micros_text(self.ticks)


def micros_text(ticks: int) -> str:
    """Ticks as a decimal number of µ: 3600 are ``1.000000``."""
    scaled = (ticks * 10**MICRO_DIGITS * 2 + money.TICKS_PER_MICRO) // (2 * money.TICKS_PER_MICRO)
    return f"{scaled // 10**MICRO_DIGITS}.{scaled % 10**MICRO_DIGITS:0{MICRO_DIGITS}d}"


def receipt(lease: Lease, now: datetime | None = None) -> Receipt:
    """The receipt as it stands at ``now``; provisional while the lease runs. Three queries."""
    now = now or timezone.now()
    charged = _charged(lease, list(lease.segments.all()), now)
    lines = _with_gaps(lease, charged, [_gap(gap, now) for gap in lease.gaps.all()], now)
    posted = LedgerEntry.objects.filter(lease_id=lease.pk, kind=LedgerEntry.Kind.USAGE).aggregate(total=Sum("ticks"))
    return Receipt(
        lease_id=lease.pk,
        currency=lease.currency,
        lines=lines,
        seconds=sum(line.seconds for line in charged),
        ticks=sum(line.ticks for line in charged),
        ledger_ticks=-(posted["total"] or 0),
        provisional=any(line.provisional for line in lines),
    )


def _charged(lease: Lease, segments: list[UsageSegment], now: datetime) -> list[Line]:
    lines: list[Line] = []
    for segment in segments:
        if segment.end is None:
            end = max(segment.start, metering.charged_until(lease, now))
            seconds, ticks = metering.cost(lease, segment, end, sum(line.ticks for line in lines))
        else:
            end, seconds, ticks = segment.end, segment.seconds or 0, segment.ticks or 0
        lines.append(
            Line(
                start=segment.start,
                end=end,
                seconds=seconds,
                units=segment.units,
                price_micros_per_hour=segment.price_micros_per_hour,
                ticks=ticks,
                provisional=segment.end is None,
            )
        )
    return lines


def _gap(gap: UsageGap, now: datetime) -> Line:
    end = max(gap.start, gap.end or now)
    seconds = whole_seconds(gap.start, end)
    return Line(start=gap.start, end=end, seconds=seconds, gap=gap.reason, provisional=gap.end is None)


def _with_gaps(lease: Lease, charged: list[Line], recorded: list[Line], now: datetime) -> tuple[Line, ...]:
    """Charged and recorded stretches in order, with what is free before the first and after the last of them."""
    lines: list[Line] = []
    at = lease.requested_at
    for line in sorted([*charged, *recorded], key=lambda line: (line.start, line.end)):
        # Between two of them there is no hole; a lease from before gaps were recorded has its silence there.
        _add_gap(lines, at, line.start, str(Gap.NODE_SILENT if lines else Gap.STARTING))
        if line.gap and not line.provisional:
            _add_gap(lines, max(at, line.start), line.end, line.gap)
        else:
            lines.append(line)
        at = max(at, line.end)
    if lease.state != State.RUNNING:
        _add_gap(lines, at, lease.ended_at or now, _last_reason(lease))
    return tuple(lines)


def _last_reason(lease: Lease) -> str:
    if lease.end_reason == EndReason.NODE_LOST and lease.stop_requested_at is None:
        return str(Gap.NODE_SILENT)
    return str(Gap.STOPPING if lease.ready_at or lease.state == State.STOPPING else Gap.STARTING)


def _add_gap(lines: list[Line], start: datetime, end: datetime, reason: str) -> None:
    """An uncharged line; it continues the line before where that has the same reason."""
    if lines and lines[-1].gap == reason and not lines[-1].provisional and lines[-1].end == start:
        start = lines.pop().start
    if end > start:
        lines.append(Line(start=start, end=end, seconds=whole_seconds(start, end), gap=reason))

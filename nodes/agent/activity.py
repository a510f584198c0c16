"""What a lease did, in the words of the heartbeat, and how it is kept until the portal has it. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass

# A number, or whether something happened; None is a signal that was expected and could not be read.
Signal = float | bool | None


@dataclass(frozen=True)
class Activity:
    """A stretch of a lease's life: how long, in seconds of the agent's clock, and what each signal was in it.

    `signals` are named as in the node protocol; numbers are the highest of any sample. A name that is missing is a
    signal that this lease cannot give.
    """

    covers_s: float
    signals: Mapping[str, Signal]

    def merge(self, other: "Activity") -> "Activity":
        """Both stretches as one."""
        names = [*self.signals, *(name for name in other.signals if name not in self.signals)]
        return Activity(
            self.covers_s + other.covers_s,
            {name: _stronger(_values(name, self, other)) for name in names},
        )

    def as_json(self) -> dict[str, object]:
        """The object in the heartbeat."""
        return {"covers_s": round(self.covers_s, 3), **self.signals}


class Unsent:
    """The activity of one lease that the portal may not know yet. Not safe for several threads."""

    def __init__(self) -> None:
        self._fresh: Activity | None = None  # measured after the last offer
        self._offered: Activity | None = None  # in a heartbeat without an answer so far

    def add(self, activity: Activity) -> None:
        """A stretch was measured."""
        self._fresh = _both(self._fresh, activity)

    def offer(self) -> Activity | None:
        """All that the next heartbeat must carry; None when the portal knows everything."""
        self._offered, self._fresh = _both(self._offered, self._fresh), None
        return self._offered

    def answered(self) -> None:
        """The portal has what was offered last. What was measured since then stays."""
        self._offered = None


def _both(one: Activity | None, other: Activity | None) -> Activity | None:
    return one.merge(other) if one and other else one or other


def _values(name: str, *activities: Activity) -> list[Signal]:
    return [activity.signals[name] for activity in activities if name in activity.signals]


def _stronger(values: list[Signal]) -> Signal:
    # That something happened is certain whatever else could not be read; a number is only the highest when all were.
    if any(value is True for value in values):
        return True
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None

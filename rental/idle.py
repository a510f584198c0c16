"""When a lease is idle: what counts as use, since when nothing did, what follows. Pure: no Django, no clock, no I/O.

A sample of the node speaks of a stretch of time and carries one value per signal. Whatever a sample does not speak of,
and a signal that was expected and could not be read, counts as use: silence never makes a lease idle. Moments are our
own, at receipt; of the node's times only the length of the stretch is used, and only to see what no sample covers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Signal(StrEnum):
    """What can show that a lease is used, the most telling first."""

    SSH_INPUT = "ssh_input"
    APP_REQUEST = "app_request"
    JOB = "job"
    GPU = "gpu"
    MIG_PROCESSES = "mig_processes"
    MIG_MEMORY = "mig_memory"
    CPU = "cpu"
    NETWORK = "network"


class Reading(StrEnum):
    """What a signal says of a stretch. Unknown: it was expected and could not be read; it counts as use."""

    ACTIVE = "active"
    IDLE = "idle"
    UNKNOWN = "unknown"


# The fields of a node's sample (docs/node-protocol.md).
FIELDS: Final[Mapping[Signal, str]] = {
    Signal.SSH_INPUT: "ssh_input",
    Signal.APP_REQUEST: "app_request",
    Signal.JOB: "job",
    Signal.GPU: "gpu_percent",
    Signal.MIG_PROCESSES: "mig_processes",
    Signal.MIG_MEMORY: "mig_memory_bytes",
    Signal.CPU: "cpu_percent",
    Signal.NETWORK: "network_bytes_per_s",
}
EVENTS: Final = frozenset({Signal.SSH_INPUT, Signal.APP_REQUEST, Signal.JOB})  # they happened or not
CHANGES: Final = frozenset({Signal.MIG_PROCESSES, Signal.MIG_MEMORY})  # compared with the sample before
ALWAYS: Final = frozenset({Signal.SSH_INPUT, Signal.CPU, Signal.NETWORK})
WHOLE_GPU: Final = ALWAYS | {Signal.GPU}
MIG_SLICE: Final = ALWAYS | CHANGES
WHERE_THERE_IS_ONE: Final = frozenset({Signal.APP_REQUEST, Signal.JOB})

Value = float | bool | None


@dataclass(frozen=True)
class Limits:
    """From where on a signal counts as use: per cent, bytes per second, and bytes by which a slice's memory changes."""

    gpu_percent: float = 5
    cpu_percent: float = 5
    network_bytes_per_s: float = 50_000
    mig_memory_bytes: float = 1 << 20  # the driver's own bookkeeping stays below

    def of(self, signal: Signal) -> float | None:
        """The limit of a signal; None where happening at all is use."""
        return {
            Signal.GPU: self.gpu_percent,
            Signal.CPU: self.cpu_percent,
            Signal.NETWORK: self.network_bytes_per_s,
            Signal.MIG_PROCESSES: 1,
            Signal.MIG_MEMORY: self.mig_memory_bytes,
        }.get(signal)


@dataclass(frozen=True)
class Seen:
    """A signal as the last sample told it, and when it last counted as use."""

    value: Value
    state: Reading
    active_at: datetime | None = None


@dataclass(frozen=True)
class Clock:
    """What the samples of a lease add up to.

    ``sampled_at``: receipt of the last one; ``uncovered_s``: time since ``active_at`` that none spoke of;
    ``active_at``: the last moment that counts as use, for ``signal`` (None: no sample covers it); ``known`` is False
    where that signal could not be read.
    """

    sampled_at: datetime
    active_at: datetime
    signal: Signal | None = None
    known: bool = True
    uncovered_s: float = 0.0
    signals: Mapping[Signal, Seen] = field(default_factory=dict)


def expected(sample: Mapping[str, Any]) -> frozenset[Signal]:
    """The signals a sample must have: those of its kind of device, and those of apps and jobs where it names them."""
    slice_of_a_gpu = FIELDS[Signal.GPU] not in sample and any(FIELDS[signal] in sample for signal in CHANGES)
    also = {signal for signal in WHERE_THERE_IS_ONE if FIELDS[signal] in sample}
    return (MIG_SLICE if slice_of_a_gpu else WHOLE_GPU) | also


def advance(
    before: Clock | None,
    sample: Mapping[str, Any],
    *,
    now: datetime,
    ready_at: datetime,
    slack_s: float,
    limits: Limits,
) -> Clock:
    """The clock after a sample that was received at ``now``. It never goes back, whatever our own clock does.

    ``sample`` has ``covers_s`` and the fields of FIELDS; ``slack_s`` is what may stay uncovered without breaking a
    stretch: samples wait for their heartbeat.
    """
    known = before.signals if before else {}
    signals = {signal: _read(signal, sample, known.get(signal), now, limits) for signal in sorted(expected(sample))}
    covers_s = float(sample.get("covers_s") or 0)
    begins = min(now, max(now - timedelta(seconds=covers_s), ready_at))  # the stretch that this sample speaks of
    used = next((signal for signal in Signal if _counts(signals.get(signal))), None)
    if before is None:
        return _used(used, now, signals) if used else Clock(now, begins, signals=signals)
    after = replace(before, sampled_at=max(now, before.sampled_at), signals=signals)
    if used is not None:
        clock = _used(used, now, signals)
        return replace(clock, sampled_at=after.sampled_at, active_at=max(now, before.active_at))
    passed_s = (now - before.sampled_at).total_seconds()
    uncovered_s = max(0.0, before.uncovered_s + passed_s - covers_s)
    if uncovered_s <= slack_s:
        return replace(after, uncovered_s=uncovered_s)
    return replace(after, active_at=max(begins, before.active_at), signal=None, known=True, uncovered_s=0.0)


def _used(signal: Signal, now: datetime, signals: Mapping[Signal, Seen]) -> Clock:
    return Clock(now, now, signal, known=signals[signal].state == Reading.ACTIVE, signals=signals)


def _counts(seen: Seen | None) -> bool:
    return seen is not None and seen.state != Reading.IDLE


def _read(signal: Signal, sample: Mapping[str, Any], before: Seen | None, now: datetime, limits: Limits) -> Seen:
    value: Value = sample.get(FIELDS[signal])
    state = _judge(signal, value, before, limits)
    last = before.active_at if before else None
    return Seen(value, state, now if state == Reading.ACTIVE else last)


def _judge(signal: Signal, value: Value, before: Seen | None, limits: Limits) -> Reading:
    if value is None:
        return Reading.UNKNOWN
    if signal in EVENTS:
        return Reading.ACTIVE if value else Reading.IDLE
    if signal in CHANGES:
        if before is None or before.value is None:
            return Reading.UNKNOWN  # nothing to compare with yet
        value = abs(value - before.value)
    limit = limits.of(signal)
    return Reading.ACTIVE if limit is not None and value >= limit else Reading.IDLE


# --- what follows ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """What holds for a lease: released after ``window_s`` without use, warned ``warn_before_s`` before at the latest.

    The first ``exempt_s`` after ready do not count, nor does more than the window. A sample older than ``fresh_s`` says
    nothing of now.
    """

    window_s: int
    exempt_s: int = 900
    warn_before_s: int = 60
    fresh_s: float = 40

    @property
    def exempt(self) -> timedelta:
        """How long after ready nothing counts as idle."""
        return timedelta(seconds=min(self.exempt_s, self.window_s))

    @property
    def warn_after(self) -> timedelta:
        """Idle for this long: warned."""
        return timedelta(seconds=max(0.0, min(self.window_s / 2, self.window_s - self.warn_before_s)))


@dataclass(frozen=True)
class Person:
    """What the renter did about it: ``ready_at`` is when the lease became theirs, ``kept_at`` when they last kept it.

    ``warned_for`` is the start of the idle stretch they were warned of at ``warned_at``.
    """

    ready_at: datetime
    kept_at: datetime | None = None
    warned_for: datetime | None = None
    warned_at: datetime | None = None


class Since(StrEnum):
    """What the idle clock runs from."""

    USE = "use"
    KEPT = "kept"
    READY = "ready"


@dataclass(frozen=True)
class Verdict:
    """Where a lease stands at a moment.

    ``state`` is of now: idle from ``idle_since`` on, unknown without a fresh sample. ``release_at`` is when it ends
    unless it is used; only an idle lease has one. ``warn`` and ``release`` say what is due, ``taken_back`` that a
    warning stands which is no longer true. ``over``: idle for the whole window, warned or not.
    """

    state: Reading
    idle_since: datetime
    since: Since
    release_at: datetime | None = None
    warn: bool = False
    release: bool = False
    taken_back: bool = False
    over: bool = False


def judge(clock: Clock, rule: Rule, person: Person, now: datetime) -> Verdict:
    """What is due at ``now``. A release is due only when every sampled moment of a whole window was idle."""
    since, idle_since = _origin(clock, rule, person)
    warned = person.warned_at is not None and person.warned_for == idle_since
    state = _state(clock, rule, now)
    taken_back = person.warned_for is not None and not warned
    if state != Reading.IDLE:
        return Verdict(state, idle_since, since, taken_back=taken_back)
    covered = clock.sampled_at - idle_since  # what comes after the last sample is not known
    over = covered >= timedelta(seconds=rule.window_s)
    last_call = person.warned_at if warned and person.warned_at else max(now, idle_since + rule.warn_after)
    release_at = max(idle_since + timedelta(seconds=rule.window_s), last_call + timedelta(seconds=rule.warn_before_s))
    return Verdict(
        state,
        idle_since,
        since,
        release_at,
        warn=not warned and covered >= rule.warn_after,
        release=warned and over and now >= release_at,
        taken_back=taken_back,
        over=over,
    )


def _origin(clock: Clock, rule: Rule, person: Person) -> tuple[Since, datetime]:
    moments = [(person.ready_at + rule.exempt, Since.READY), (clock.active_at, Since.USE)]
    if person.kept_at is not None:
        moments.append((person.kept_at, Since.KEPT))
    at, since = max(moments, key=lambda moment: moment[0])
    return since, at


def _state(clock: Clock, rule: Rule, now: datetime) -> Reading:
    if (now - clock.sampled_at).total_seconds() > rule.fresh_s:
        return Reading.UNKNOWN
    states = {seen.state for seen in clock.signals.values()}
    if Reading.ACTIVE in states:
        return Reading.ACTIVE
    return Reading.UNKNOWN if Reading.UNKNOWN in states else Reading.IDLE

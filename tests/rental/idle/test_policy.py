"""The policy of idleness as pure functions: what counts, since when nothing did, when it is warned and released."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rental import idle
from rental.idle import Clock, Limits, Person, Reading, Rule, Signal, Since, Verdict

READY = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUIET: dict[str, Any] = {
    "covers_s": 15.0, "gpu_percent": 0, "cpu_percent": 0.3, "network_bytes_per_s": 120, "ssh_input": False,
}  # fmt: skip
SLICE: dict[str, Any] = {
    "covers_s": 15.0, "cpu_percent": 0.3, "network_bytes_per_s": 120, "ssh_input": False,
    "mig_processes": 1, "mig_memory_bytes": 70 << 30,
}  # fmt: skip
TEN_MINUTES = Rule(window_s=600)


def at(seconds: float) -> datetime:
    return READY + timedelta(seconds=seconds)


def feed(clock: Clock | None, sample: dict[str, Any], seconds: float) -> Clock:
    return idle.advance(clock, sample, now=at(seconds), ready_at=READY, slack_s=15, limits=Limits())


class Run:
    """A lease under a sweep of 15 s, in simulated time: warned when that is due, until it is released."""

    def __init__(self, rule: Rule = TEN_MINUTES) -> None:
        self.rule, self.person = rule, Person(READY)
        self.clock: Clock | None = None
        self.warned: list[float] = []
        self.released: float | None = None

    def sample(self, seconds: float, **values: Any) -> Verdict:
        return self.hear(seconds, {**QUIET, **values})

    def hear(self, seconds: float, sample: dict[str, Any]) -> Verdict:
        self.clock = feed(self.clock, sample, seconds)
        return self.sweep(seconds)

    def sweep(self, seconds: float) -> Verdict:
        assert self.clock is not None
        verdict = idle.judge(self.clock, self.rule, self.person, at(seconds))
        if verdict.warn:
            self.warned.append(seconds)
            self.person = Person(READY, self.person.kept_at, verdict.idle_since, at(seconds))
        if verdict.release and self.released is None:
            self.released = seconds
        return verdict

    def until(self, seconds: int, start: int = 15, **values: Any) -> None:
        for second in range(start, seconds + 1, 15):
            if self.released is None:
                self.sample(second, **values)


@pytest.mark.parametrize(
    ("name", "below", "enough"),
    [
        ("gpu_percent", 4.99, 5), ("cpu_percent", 4.99, 5), ("network_bytes_per_s", 49_999, 50_000),
        ("ssh_input", False, True), ("app_request", False, True), ("job", False, True),
    ],
)  # fmt: skip
def test_each_signal_counts_from_its_limit_on(name: str, below: Any, enough: Any) -> None:
    (signal,) = [signal for signal in Signal if idle.FIELDS[signal] == name]
    calm = feed(None, {**QUIET, name: below}, 100)
    assert calm.signals[signal].state == Reading.IDLE
    used = feed(calm, {**QUIET, name: enough}, 115)
    assert (used.signal, used.known, used.active_at) == (signal, True, at(115))


@pytest.mark.parametrize("name", ["gpu_percent", "cpu_percent", "network_bytes_per_s", "ssh_input"])
def test_a_signal_that_could_not_be_read_is_use_not_idleness(name: str) -> None:  # case D01
    for sample in ({**QUIET, name: None}, {key: value for key, value in QUIET.items() if key != name}):
        run = Run()
        for second in range(15, 3600, 15):
            verdict = run.hear(second, sample)
        assert (run.warned, run.released, verdict.state) == ([], None, Reading.UNKNOWN)
        assert run.clock is not None
        assert not run.clock.known


def test_apps_and_jobs_are_expected_only_where_there_are_any() -> None:
    assert Signal.JOB not in idle.expected(QUIET)
    assert Signal.JOB in idle.expected({**QUIET, "job": None})
    assert feed(None, {**QUIET, "job": None}, 15).signal == Signal.JOB


def test_an_idle_lease_is_warned_at_half_of_its_window_and_released_at_its_end() -> None:  # case D01
    run = Run()
    run.until(7200)
    # Exempt for ten minutes after ready, then ten minutes of nothing.
    assert run.warned == [900]
    assert run.released == 1200


def test_training_preprocessing_and_downloading_are_use_for_ever() -> None:  # case D01
    for values in ({"gpu_percent": 95}, {"cpu_percent": 60}, {"network_bytes_per_s": 90_000_000}):
        run = Run()
        run.until(2 * 3600, **values)
        assert (run.warned, run.released) == ([], None)


def test_bursts_of_five_seconds_every_nine_minutes_keep_a_lease_with_a_limit_of_ten() -> None:  # case D01
    run = Run()
    for second in range(15, 2 * 3600, 15):
        run.sample(second, gpu_percent=95 if second % 540 < 15 else 0)
    assert run.released is None
    assert run.warned  # half of the window is less than nine minutes: warned each time, and never released


def test_held_memory_and_an_open_session_are_no_use_on_a_slice() -> None:  # case D02
    run = Run()
    for second in range(15, 7200, 15):
        run.hear(second, SLICE)
    assert run.released == 1200


@pytest.mark.parametrize("change", [{"mig_processes": 2}, {"mig_memory_bytes": 71 << 30}])
def test_a_slice_whose_processes_or_memory_change_is_in_use(change: dict[str, Any]) -> None:
    run = Run()
    for second in range(15, 2 * 3600, 15):
        run.hear(second, {**SLICE, **(change if second % 540 == 0 else {})})
    assert run.released is None


def test_the_first_look_at_a_slice_has_nothing_to_compare_with_and_counts_as_unknown() -> None:
    first = feed(None, SLICE, 15)
    assert (first.signal, first.known) == (Signal.MIG_PROCESSES, False)
    assert feed(first, SLICE, 30).active_at == at(15)


def test_drivers_bookkeeping_of_a_slice_is_no_use() -> None:
    first = feed(None, SLICE, 15)
    assert feed(first, {**SLICE, "mig_memory_bytes": SLICE["mig_memory_bytes"] + 4096}, 30).active_at == at(15)


def test_silence_of_the_node_never_releases() -> None:
    run = Run()
    run.until(1185)
    verdict = run.sweep(86_400)
    assert (run.released, verdict.state, verdict.release_at) == (None, Reading.UNKNOWN, None)


def test_the_last_seconds_of_a_window_must_be_covered_by_a_sample_too() -> None:
    run = Run()
    run.until(1185)
    for second in (1200, 1215, 1224):  # its state is still known, the rest of the window is not
        assert run.sweep(second).state == Reading.IDLE
    assert run.released is None


def test_a_stretch_that_no_sample_covers_is_use_until_its_end() -> None:  # case D01
    run = Run()
    run.until(1110)
    run.sample(1410)  # a new agent after five minutes: it speaks of its own 15 s only
    assert run.clock is not None
    assert (run.clock.active_at, run.clock.signal) == (at(1395), None)
    run.until(1395 + 585, start=1425)
    assert run.released is None
    run.until(1395 + 615, start=1395 + 600)
    assert run.released == 1395 + 600


def test_what_an_agent_kept_through_a_cut_covers_the_cut() -> None:
    run = Run()
    run.until(1110)
    run.sample(1410, covers_s=300)
    assert run.clock is not None
    assert run.clock.active_at < at(300)
    assert run.released == 1410


def test_a_sample_that_waits_for_its_heartbeat_breaks_nothing() -> None:
    run = Run()
    beats = [round(beat * 10.05) for beat in range(1, 400)]
    told = 0
    for second in beats:
        looks = second // 15
        if looks > told:
            run.sample(second, covers_s=15.0 * (looks - told))
            told = looks
    assert run.released is not None
    assert run.released < 1240


def test_samples_that_leave_something_out_each_time_add_up_to_a_gap() -> None:
    run = Run()
    for second in range(25, 4000, 25):
        run.sample(second, covers_s=15)
    assert run.released is None


def test_a_length_that_a_node_invents_makes_nothing_older_than_ready() -> None:
    clock = feed(None, {**QUIET, "covers_s": 1e9}, 700)
    assert clock.active_at == READY
    assert idle.judge(clock, TEN_MINUTES, Person(READY), at(700)).idle_since == at(600)


def test_our_clock_set_back_makes_nothing_idle_sooner() -> None:
    run = Run()
    run.until(900)
    back = run.sample(-3000)
    assert not back.release
    assert run.clock is not None
    assert run.clock.sampled_at == at(900)


def test_our_clock_set_forward_is_a_stretch_without_samples() -> None:
    run = Run()
    run.until(900)
    forward = run.sample(900 + 7200)
    assert (forward.release, forward.warn) == (False, False)
    assert forward.idle_since == at(900 + 7200 - 15)


def test_keeping_restarts_the_clock_and_a_later_stretch_is_warned_of_again() -> None:
    run = Run()
    run.until(1100)
    assert run.warned == [900]
    run.person = Person(READY, at(1105), run.person.warned_for, run.person.warned_at)
    assert run.sweep(1106).taken_back
    run.until(1690, start=1110)
    assert (run.warned, run.released) == ([900, 1410], None)
    run.until(1800, start=1695)
    assert run.released == 1710


def test_use_after_a_warning_takes_it_back() -> None:
    run = Run()
    run.until(1100)
    used = run.sample(1110, ssh_input=True)
    assert (used.taken_back, used.state, used.since) == (True, Reading.ACTIVE, Since.USE)


@pytest.mark.parametrize(
    ("window_s", "exempt_s", "warned", "released"),
    [
        (60, 60, 60, 120),
        (90, 90, 120, 180),
        (600, 600, 900, 1200),
        (1800, 900, 1800, 2700),
        (14_400, 900, 8100, 15_300),
    ],
)
def test_exempt_half_and_a_minute_before_for_every_window(
    window_s: int, exempt_s: int, warned: int, released: int
) -> None:
    rule = Rule(window_s=window_s)
    assert rule.exempt == timedelta(seconds=exempt_s)
    run = Run(rule)
    run.until(20_000)
    assert (run.warned, run.released) == ([warned], released)


def test_a_warning_that_came_late_still_gives_its_minute() -> None:
    run = Run()
    for second in range(15, 1201, 15):
        run.clock = feed(run.clock, QUIET, second)
    assert run.sweep(1200).release_at == at(1260)
    run.until(1245, start=1215)
    assert run.released is None
    run.sample(1260)
    assert run.released == 1260


SIGNALS = ["gpu_percent", "cpu_percent", "network_bytes_per_s", "ssh_input"]
USE: dict[str, Any] = {"gpu_percent": 50, "cpu_percent": 50, "network_bytes_per_s": 10**6, "ssh_input": True}
STEP = st.tuples(
    st.sampled_from(["idle"] * 6 + ["use", "unknown", "away", "silent"]), st.sampled_from(SIGNALS), st.integers(2, 30)
)


@given(st.lists(STEP, max_size=12), st.sampled_from([120, 300, 600]))
def test_released_exactly_when_every_expected_signal_was_below_for_a_whole_covered_window(  # case D01
    steps: list[tuple[str, str, int]], window_s: int
) -> None:
    run = Run(Rule(window_s=window_s))
    run.sample(0)
    second, last, quiet_since = 0, 0, window_s  # the first window after ready does not count
    for kind, name, times in steps:
        for _ in range(times):
            second += 75 if kind == "away" else 15
            if kind == "silent":
                run.sweep(second)
            else:
                covered = second - last == 15
                quiet_since = max(quiet_since, second if kind in {"use", "unknown"} else 0 if covered else second - 15)
                last = second
                run.sample(second, **({"use": {name: USE[name]}, "unknown": {name: None}}.get(kind, {})))
            assert (run.released is not None) == (last == second and second - quiet_since >= window_s)
            if run.released is not None:
                return

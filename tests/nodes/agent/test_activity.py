"""What the agent measures of a lease: how it is kept until a heartbeat got through, and what each signal is made of."""

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.agent.activity import Activity, Signal, Unsent
from nodes.agent.activity_counters import Container, cpu_file, interface_bytes
from nodes.agent.activity_gpus import CardMeter, LeaseGpus
from nodes.agent.activity_sampler import ActivitySampler
from nodes.agent.gateway_link import GatewayDownError, GatewayLink
from nodes.agent.gpus import Gpus
from nodes.agent.store import LeaseRecord
from tests.nodes.agent.fake_engine import FakeEngine
from tests.rig import nvml
from tests.rig.nvml import FakeMig, FakeProcess, FakeSample

NOT_SUPPORTED = 3
PID = 4242

# Until a heartbeat got through ----------------------------------------------------------------------------------------

signal_values = st.one_of(st.none(), st.integers(0, 100))
activities = st.builds(
    lambda seconds, gpu, typed, more: Activity(seconds, {"gpu_percent": gpu, "ssh_input": typed, **more}),
    st.integers(1, 30), signal_values, st.one_of(st.none(), st.booleans()),
    st.one_of(st.just({}), st.builds(lambda value: {"mig_processes": value}, signal_values)),
)  # fmt: skip
steps = st.lists(st.one_of(activities, st.sampled_from(["offer", "answered", "lost"])), max_size=40)


def strongest(values: list[Signal]) -> Signal:
    """The rule of the node protocol in one line: happened, else unknown, else the highest."""
    return True if True in [v for v in values if isinstance(v, bool)] else None if None in values else max(values)  # type: ignore[type-var]  # no None is left


def told(measured: list[Activity]) -> dict[str, object] | None:
    """What a heartbeat must say of these stretches."""
    names = {name for activity in measured for name in activity.signals}
    signals = {name: strongest([a.signals[name] for a in measured if name in a.signals]) for name in names}
    return {"covers_s": sum(a.covers_s for a in measured), **signals} if measured else None


@given(steps)
@settings(max_examples=100, deadline=None)
def test_whatever_heartbeats_are_lost_the_portal_hears_of_every_sample_once(steps: list[Activity | str]) -> None:
    unsent = Unsent()
    waiting: list[Activity] = []  # what the portal has not confirmed
    offered = 0  # how many of these the heartbeat under way carries
    heard: list[dict[str, object]] = []
    measured = [step for step in steps if isinstance(step, Activity)]
    for step in [*steps, "offer", "answered"]:
        if isinstance(step, Activity):
            unsent.add(step)
            waiting.append(step)
        elif step == "offer":
            activity = unsent.offer()
            offered = len(waiting)
            assert (activity.as_json() if activity else None) == told(waiting)
        elif step == "answered":
            heard += [body] if (body := told(waiting[:offered])) else []
            unsent.answered()
            waiting, offered = waiting[offered:], 0
        else:
            assert step == "lost"  # the request or its answer: the agent does not know, and does nothing
    assert not waiting
    assert sum(float(str(body["covers_s"])) for body in heard) == sum(a.covers_s for a in measured)
    everything = told(measured) or {}
    for name in everything.keys() - {"covers_s"}:
        assert strongest([body[name] for body in heard if name in body]) == everything[name]  # type: ignore[misc]  # as told


def test_what_could_not_be_read_hides_no_sample_that_is_certain() -> None:
    unknown = Activity(15, {"gpu_percent": None, "ssh_input": None})
    quiet = Activity(15, {"gpu_percent": 3, "ssh_input": False})
    typed = Activity(15, {"gpu_percent": 3, "ssh_input": True})
    assert quiet.merge(unknown).signals == {"gpu_percent": None, "ssh_input": None}
    assert unknown.merge(typed).signals == {"gpu_percent": None, "ssh_input": True}


# CPU and network ------------------------------------------------------------------------------------------------------


def made_proc(tmp_path: Path, groups: str, mounts: list[str]) -> Path:
    """A /proc with one process 7, and the cgroup mounts of its machine."""
    for directory in ("7", "self"):
        (tmp_path / directory).mkdir()
    (tmp_path / "7" / "cgroup").write_text(groups)
    (tmp_path / "self" / "mountinfo").write_text("\n".join(mounts))
    return tmp_path


def test_the_cpu_time_is_that_of_the_containers_cgroup_in_both_kinds_of_cgroup(tmp_path: Path) -> None:
    for name, root in (("v1", "/"), ("v2", "/")):
        base = tmp_path / name
        (base / "fs" / "docker" / "abc").mkdir(parents=True)
        kind, options = ("cgroup", "rw,cpu,cpuacct") if name == "v1" else ("cgroup2", "rw,nsdelegate")
        groups = "8:pids:/x\n5:cpu,cpuacct:/docker/abc\n0::/\n" if name == "v1" else "0::/docker/abc\n"
        counts = base / "fs" / "docker" / "abc" / ("cpuacct.usage" if name == "v1" else "cpu.stat")
        counts.write_text("")
        (base / "proc").mkdir()
        proc = made_proc(base / "proc", groups, [f"30 20 0:26 {root} {base / 'fs'} rw shared:4 - {kind} x {options}"])
        assert cpu_file(7, proc) == counts


def test_a_process_in_no_cgroup_of_its_own_is_not_measured_by_the_machines_numbers(tmp_path: Path) -> None:
    (tmp_path / "cpuacct.usage").write_text("1")
    proc = made_proc(tmp_path, "5:cpuacct:/\n0::/\n", [f"30 20 0:26 / {tmp_path} rw - cgroup x rw,cpuacct"])
    assert cpu_file(7, proc) is None
    assert cpu_file(8, proc) is None


def test_network_is_every_interface_both_ways_without_loopback() -> None:
    lines = ["Inter-|   Receive | Transmit", " face |bytes packets |bytes packets"]
    lines += [f"{name}: {into} 1 0 0 0 0 0 0 {out} 1 0 0 0 0 0 0" for name, into, out in
              (("    lo", 900, 900), ("  eth0", 10, 200), ("eth1", 3000, 40000))]  # fmt: skip
    assert interface_bytes("\n".join(lines)) == 43210


# GPUs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.FakeFleet:
    made = nvml.FakeFleet(tmp_path / "nvml.conf", nvml.make_gpus(2))
    monkeypatch.setenv("FAKE_NVML_CONF", str(made.path))
    return made


@pytest.fixture
def gpus(fleet: nvml.FakeFleet) -> Gpus:
    return Gpus(str(nvml.library_dir() / nvml.SONAME))


def now_us() -> int:
    return time.time_ns() // 1000


def measure(fleet: nvml.FakeFleet, percent: int, *, pid: int = 0, at_us: int | None = None) -> None:
    """The driver notes a load of the first GPU."""
    first = fleet.gpus[0]
    sample = FakeSample(now_us() if at_us is None else at_us, percent, pid)
    fleet.change(first.uuid, samples=(*first.samples, sample))


def load(meter: CardMeter) -> Signal:
    return meter.read()["gpu_percent"]


def test_a_burst_between_two_looks_is_seen_once(fleet: nvml.FakeFleet, gpus: Gpus) -> None:  # case D01
    measure(fleet, 77, pid=PID)  # the lease before
    meter = CardMeter(gpus, fleet.uuids[0])
    assert load(meter) == 0
    measure(fleet, 90, pid=PID)  # its process has ended when the agent looks
    assert load(meter) == 90
    assert load(meter) == 0


def test_a_short_burst_counts_at_its_height_not_at_the_mean(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    meter = CardMeter(gpus, fleet.uuids[0])
    for percent in (60, *([0] * 19)):
        measure(fleet, percent, pid=PID)
        measure(fleet, percent)
    assert load(meter) == 60  # the mean is 3


def test_a_driver_without_samples_by_process_is_read_by_the_cards(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    fleet.change(fleet.uuids[0], extra={"process_load_error": NOT_SUPPORTED})
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 40)
    assert load(meter) == 40
    assert load(meter) == 0


def test_a_driver_that_keeps_no_samples_is_polled_in_between(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    fleet.change(fleet.uuids[0], extra={"process_load_error": NOT_SUPPORTED, "card_load_error": NOT_SUPPORTED})
    meter = CardMeter(gpus, fleet.uuids[0])
    fleet.change(fleet.uuids[0], util_percent=35)
    meter.poll()
    fleet.change(fleet.uuids[0], util_percent=0)
    assert load(meter) == 35
    assert load(meter) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"error": nvml.GPU_IS_LOST},
        {"extra": {"process_load_error": 999}},
        {"extra": {"process_load_error": NOT_SUPPORTED, "card_load_error": 3, "load_error": NOT_SUPPORTED}},
    ],
)
def test_a_load_that_cannot_be_read_is_unknown(
    fleet: nvml.FakeFleet, gpus: Gpus, changes: dict[str, object]
) -> None:  # case D01
    meter = LeaseGpus(gpus, fleet.uuids)
    assert meter.read() == {"gpu_percent": 0}
    fleet.change(fleet.uuids[1], **changes)
    assert meter.read() == {"gpu_percent": None}
    fleet.change(fleet.uuids[1], error=0, extra={})
    assert meter.read() == {"gpu_percent": 0}


def test_memory_that_is_held_and_nvidia_smi_are_no_load(fleet: nvml.FakeFleet, gpus: Gpus) -> None:  # case D02
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 30)  # the driver woke up for a question, and no process is on the card
    assert load(meter) == 0
    fleet.start_process(fleet.uuids[0], FakeProcess(PID, memory_bytes=70 << 30))
    assert load(meter) == 0


def test_loads_that_cannot_be_are_left_out(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 4_000_000_000, pid=PID)
    assert load(meter) == 0


def test_a_clock_that_was_set_back_hides_no_load_and_repeats_none(
    fleet: nvml.FakeFleet, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:  # case B07
    real = time.time_ns
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)
        for pid in (PID, 0):
            measure(fleet, 80, pid=pid)
        meter = CardMeter(gpus, fleet.uuids[0])
    assert load(meter) == 0
    for pid in (PID, 0):
        measure(fleet, 50, pid=pid)
    assert load(meter) == 50
    assert load(meter) == 0


def test_a_mig_slice_tells_its_own_processes_and_memory_and_no_load(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    slices = tuple(
        FakeMig(f"MIG-11111111-aaaa-4bbb-8ccc-00000000000{n}", gpu_instance=n, used_mb=n) for n in range(1, 4)
    )
    fleet.change(
        fleet.uuids[0], mig_mode=True, mig=slices, processes=tuple(FakeProcess(n, mig=n % 3) for n in range(7))
    )
    meter = LeaseGpus(gpus, [slices[0].uuid, slices[1].uuid])
    assert meter.read() == {"mig_processes": 5, "mig_memory_bytes": 3 << 20}
    fleet.change(fleet.uuids[0], processes=())
    assert meter.read() == {"mig_processes": 0, "mig_memory_bytes": 3 << 20}
    fleet.change(fleet.uuids[0], processes=(FakeProcess(9, mig=0),))
    meter.poll()
    fleet.change(fleet.uuids[0], processes=())
    assert meter.read()["mig_processes"] == 1  # it came and went between two looks
    fleet.lose(fleet.uuids[0])
    assert meter.read() == {"mig_processes": None, "mig_memory_bytes": None}


# The sampler ----------------------------------------------------------------------------------------------------------

GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"


class AtOnce(Executor):
    """Runs what it is given before it returns."""

    def submit(self, call: Any, /, *arguments: Any, **names: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*arguments, **names))
        return done


@dataclass
class Counts:
    """A container whose counters a test sets."""

    cores: float = 4.0
    cpu: float | None = 0.0
    network: int | None = 0

    def cpu_s(self) -> float | None:
        return self.cpu

    def network_bytes(self) -> int | None:
        return self.network


class Cards:
    """GPUs on which nothing happens."""

    def process_load(self, _uuid: str, _since_us: int) -> tuple[()]:
        return ()

    card_load = process_load

    def processes(self, _uuid: str) -> frozenset[int]:
        return frozenset()


class Control:
    """A gateway's control socket, as the node protocol has it."""

    def __init__(self, run_dir: Path) -> None:
        self.leases: object = {}
        self.asked: list[object] = []
        control = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                control.asked.append(json.loads(self.rfile.readline()))
                self.wfile.write((json.dumps({"leases": control.leases}) + "\n").encode())

        path = run_dir / "gateway" / "control.sock"
        self.server = socketserver.ThreadingUnixStreamServer(str(path), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """The gateway ends."""
        self.server.shutdown()
        self.server.server_close()


@dataclass
class World:
    """A sampler around one lease whose clock and counters stand still until a test moves them."""

    sampler: ActivitySampler
    control: Control
    gateway: GatewayLink
    counts: Counts
    engine: FakeEngine
    records: list[LeaseRecord] = field(default_factory=list)
    now: float = 1000.0

    def later(self, seconds: float, *, cpu_s: float = 0, network: int = 0) -> None:
        """Time passes and the lease does something; then the sampler looks."""
        self.now += seconds
        if self.counts.cpu is not None:
            self.counts.cpu += cpu_s
        if self.counts.network is not None:
            self.counts.network += network
        self.sampler.poll()
        self.sampler.look()

    def offer(self) -> dict[str, object] | None:
        """What the next heartbeat carries of the lease."""
        return self.sampler.offer().get(("ls-a", 1))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    gateway = GatewayLink(tmp_path, "no-such-group")
    control, counts, engine = Control(tmp_path), Counts(), FakeEngine()
    records: list[LeaseRecord] = []

    def find(_pid: int, cores: float) -> Counts:
        counts.cores = cores
        return counts

    monkeypatch.setattr(Container, "find", find)
    made: World
    sampler = ActivitySampler(
        lambda: records, engine, Cards(), gateway, clock=lambda: made.now, executor=AtOnce()  # type: ignore[arg-type]  # as much of Gpus as is used
    )  # fmt: skip
    made = World(sampler, control, gateway, counts, engine, records)
    engine.boxes["lessor-ls-a-1"] = {
        "Id": "c", "Name": "/lessor-ls-a-1", "Config": {"Labels": {}}, "HostConfig": {"NanoCpus": 4_000_000_000},
        "State": {"Status": "running", "Pid": 1, "ExitCode": 0},
    }  # fmt: skip
    records.append(LeaseRecord("ls-a", 1, "running", devices=(GPU,), container_id="c"))
    for _ in range(2):  # asked of the engine, then watched
        sampler.poll()
    yield made
    control.close()


def test_a_look_tells_the_rates_since_the_one_before(world: World) -> None:
    world.control.leases = {"ls-a": {"last_input_s": None, "sessions": 1}}
    assert world.offer() is None
    world.later(15, cpu_s=6, network=1_500_000)
    assert world.offer() == {
        "covers_s": 15, "gpu_percent": 0, "cpu_percent": 10, "network_bytes_per_s": 100_000, "ssh_input": False,
    }  # fmt: skip
    world.sampler.answered()
    assert world.offer() is None  # nothing new
    world.later(20)
    assert world.offer() == {
        "covers_s": 20, "gpu_percent": 0, "cpu_percent": 0, "network_bytes_per_s": 0, "ssh_input": False,
    }  # fmt: skip


def test_a_lost_heartbeat_is_made_good_by_the_next(world: World) -> None:
    world.later(15, cpu_s=6)
    assert world.offer()
    world.later(15)
    merged = world.offer()
    assert merged
    assert (merged["covers_s"], merged["cpu_percent"]) == (30, 10)


def test_a_counter_that_cannot_be_read_is_unknown_and_costs_no_later_look(world: World) -> None:
    world.counts.cpu, world.counts.network = None, None
    world.later(15)
    assert {name: value for name, value in (world.offer() or {}).items() if value is None} == {
        "cpu_percent": None, "network_bytes_per_s": None,
    }  # fmt: skip
    world.sampler.answered()
    world.counts.cpu, world.counts.network = 6.0, 3000
    world.later(15)
    assert (world.offer() or {})["cpu_percent"] == 5  # over both stretches: the counter went on


def test_typing_counts_when_it_was_after_the_look_before(world: World) -> None:
    for last_s, typed in ((14.9, True), (15.4, False), (0.0, True), (9000.0, False)):
        world.control.leases = {"ls-a": {"last_input_s": last_s, "sessions": 1}, "ls-b": {"last_input_s": 0}}
        world.later(15)
        assert (world.offer() or {})["ssh_input"] is typed
        world.sampler.answered()
    assert {str(question) for question in world.control.asked} == {"{'op': 'activity'}"}


def test_an_open_session_without_input_and_a_lease_the_gateway_never_saw_are_quiet(world: World) -> None:  # case D02
    for leases in ({"ls-a": {"last_input_s": None, "sessions": 3}}, {}):
        world.control.leases = leases
        world.later(15)
        assert (world.offer() or {})["ssh_input"] is False


def test_while_the_gateway_is_away_input_is_unknown_and_what_was_typed_meanwhile_counts_afterwards(
    world: World, tmp_path: Path
) -> None:
    world.control.close()
    world.later(15)
    assert (world.offer() or {})["ssh_input"] is None
    world.sampler.answered()
    (tmp_path / "gateway" / "control.sock").unlink()
    world.control = Control(tmp_path)
    world.control.leases = {"ls-a": {"last_input_s": 20, "sessions": 1}}
    world.later(15)
    assert (world.offer() or {})["ssh_input"] is True


@pytest.mark.parametrize("leases", [None, [], {"ls-a": {}}, {"ls-a": {"last_input_s": "soon"}}, {"ls-a": 3}])
def test_an_answer_of_the_gateway_that_makes_no_sense_is_no_answer(world: World, leases: object) -> None:
    world.control.leases = leases
    with pytest.raises(GatewayDownError, match="who typed when"):
        world.gateway.last_inputs()


def test_the_engine_is_asked_once_for_each_lease(world: World) -> None:
    for _ in range(10):
        world.later(15)
    assert world.engine.calls.count("inspect") == 1
    assert world.counts.cores == 4


def test_a_lease_that_the_engine_could_not_tell_is_asked_for_again(world: World) -> None:
    world.records[0] = LeaseRecord("ls-a", 2, "running", devices=(GPU,))
    world.engine.down = True
    for _ in range(3):
        world.later(15)
    assert world.sampler.offer() == {}
    world.engine.down = False
    world.engine.boxes["lessor-ls-a-2"] = world.engine.boxes["lessor-ls-a-1"]
    for _ in range(4):
        world.later(15)
    assert world.sampler.offer()["ls-a", 2]["covers_s"]


def test_a_lease_that_does_not_run_any_more_is_not_told(world: World) -> None:
    world.later(15)
    world.records[0].phase = "stopping"
    world.sampler.poll()
    assert world.sampler.offer() == {}

"""The sampler: rates between two looks, typing as the gateway tells it, and what the engine is asked."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.activity_counters import Container
from nodes.agent.activity_sampler import ActivitySampler
from nodes.agent.gateway_link import GatewayDownError, GatewayLink
from nodes.agent.store import LeaseRecord
from tests.nodes.agent.fake_engine import FakeEngine

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
        self.before_answer: Callable[[], None] = lambda: None
        control = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                control.asked.append(json.loads(self.rfile.readline()))
                control.before_answer()
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


def test_a_gateway_that_answers_late_hides_no_input(world: World) -> None:
    def wait() -> None:
        world.now += 3

    world.later(15)
    world.sampler.answered()
    world.control.before_answer = wait
    world.control.leases = {"ls-a": {"last_input_s": 17.9, "sessions": 1}}  # by then; it was just after the look before
    world.later(15)
    assert (world.offer() or {})["ssh_input"] is True


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

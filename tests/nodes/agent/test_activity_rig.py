"""What the agent measures of real containers on a real engine, as its heartbeats tell it."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from nodes.agent.activity_counters import Container
from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine
from tests.rig.images import SCRATCH, add_scratch
from tests.rig.nvml import FakeProcess, FakeSample, make_gpus

pytestmark = pytest.mark.rig

IDLE, BUSY = "ls-idle", "ls-busy"
BUSYBOX = "/.lease/bin/busybox"
INTERNET = "203.0.113.1"  # an address leases may reach, in a network namespace of the test's own
LIMITS = {"gpu_percent": 5, "cpu_percent": 5, "network_bytes_per_s": 50_000}  # below all of them is idle (the portal's)
BYTES_PER_S = 1_000_000
SERVER = f"""
import socket, time
listener = socket.create_server(("{INTERNET}", 8000))
connection, _ = listener.accept()
while True:
    connection.sendall(bytes({BYTES_PER_S // 10}))
    time.sleep(0.1)
"""


class Node(RigNode):
    """A node whose agent looks every second, with an idle lease and a busy one."""

    def order(self) -> None:
        """Both leases, each with a GPU of its own."""
        for lease_id, device in zip((IDLE, BUSY), self.engine.fleet.uuids, strict=True):
            self.portal.want(lease(lease_id, [device], SCRATCH, authorized_keys=[self.key_line]))
        for lease_id in (IDLE, BUSY):
            self.portal.wait_event(lease_id, "ready")

    def inside(self, lease_id: str, script: str) -> None:
        """Start a shell script in the lease and leave it there; by the engine, so that nobody types."""
        self.engine.docker("exec", "--detach", f"lessor-{lease_id}-1", BUSYBOX, "sh", "-c", script)

    def end_all(self, lease_id: str, name: str) -> None:
        """End all programs of that name in the lease."""
        self.engine.docker("exec", f"lessor-{lease_id}-1", BUSYBOX, "killall", name, check=False)

    def told(self, lease_id: str, since: int = 0) -> list[dict[str, Any]]:
        """The activity in the heartbeats that arrived, from the given one on."""
        entries = [entry for beat in self.portal.heartbeats[since:] for entry in beat["leases"]]
        return [entry["activity"] for entry in entries if entry["id"] == lease_id and "activity" in entry]

    def wait_told(self, lease_id: str, what: Callable[[dict[str, Any]], bool], since: int, name: str) -> dict[str, Any]:
        """Wait for an activity of which something holds; returns it."""
        self.portal.wait_for(lambda: any(what(a) for a in self.told(lease_id, since)), name, 20)
        return next(a for a in self.told(lease_id, since) if what(a))

    def settle(self, lease_id: str) -> None:
        """Wait until what was just started or ended in the lease from outside is not in the next look any more."""
        since = self.beats
        self.portal.wait_for(lambda: len(self.told(lease_id, since)) > 1, "two looks", 20)

    @property
    def beats(self) -> int:
        """How many heartbeats came so far."""
        return len(self.portal.heartbeats)


@pytest.fixture(scope="module")
def node(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with (
        pytest.MonkeyPatch.context() as environment,
        Engine(make_gpus(2)) as engine,
        FakePortal(engine.host_ip) as portal,
    ):
        environment.setenv("LESSOR_AGENT_SAMPLE_S", "1")
        add_scratch(engine)
        with Node(engine, portal, bundle_dir, tmp_path_factory.mktemp("node")) as started:
            started.order()
            yield started


@pytest.fixture
def internet(node: Node) -> Iterator[None]:
    """A server outside the node that sends as fast as a slow line."""
    name = f"{node.engine.name}-net"
    for command in (
        ["ip", "netns", "add", name],
        [*node.engine.nsenter("ip", "link", "add", "net0", "type", "veth", "peer", "name", "net1", "netns", name)],
        [*node.engine.nsenter("ip", "addr", "add", "203.0.113.2/24", "dev", "net0")],
        [*node.engine.nsenter("ip", "link", "set", "net0", "up")],
        ["ip", "-n", name, "addr", "add", f"{INTERNET}/24", "dev", "net1"],
        ["ip", "-n", name, "link", "set", "net1", "up"],
    ):
        subprocess.run(command, check=True)
    server = subprocess.Popen(["nsenter", f"--net=/run/netns/{name}", "--", sys.executable, "-c", SERVER])
    try:
        yield
    finally:
        server.kill()
        server.wait()
        subprocess.run(["ip", "netns", "delete", name], check=True)


def is_quiet(activity: dict[str, Any]) -> bool:
    return all(activity[name] is not None and activity[name] < limit for name, limit in LIMITS.items())


def quiet_for(node: Node, lease_id: str, seconds: float, since: int) -> list[dict[str, Any]]:
    """Wait until the heartbeats speak of so long a stretch; returns what they say."""
    node.portal.wait_for(lambda: sum(a["covers_s"] for a in node.told(lease_id, since)) >= seconds, "samples", 30)
    return node.told(lease_id, since)


def test_an_idle_lease_shows_nothing_whatever_it_holds_and_asks_the_driver(node: Node) -> None:  # case D01, case D02
    gpu = node.engine.fleet.uuids[0]
    node.inside(IDLE, "while true; do /.lease/bin/probe; sleep 1; done")  # what nvidia-smi does
    node.engine.fleet.start_process(gpu, FakeProcess(pid=4242, memory_bytes=70 << 30))
    node.settle(IDLE)
    try:
        since = node.beats
        quiet = quiet_for(node, IDLE, 3, since)
        assert all(is_quiet(activity) for activity in quiet), quiet
        assert {activity["ssh_input"] for activity in quiet} == {False}
        assert {"mig_processes", "app_request", "job"}.isdisjoint(quiet[0])
    finally:
        node.engine.fleet.end_process(gpu, 4242)
        node.end_all(IDLE, "sh")
        node.settle(IDLE)


def test_a_busy_loop_shows_in_its_own_lease_alone(node: Node) -> None:  # case D01
    since = node.beats
    node.inside(BUSY, "while true; do :; done")
    try:
        busy = node.wait_told(
            BUSY, lambda a: (a["cpu_percent"] or 0) > 2 * LIMITS["cpu_percent"], since, "the busy loop"
        )
        assert busy["network_bytes_per_s"] < LIMITS["network_bytes_per_s"]
    finally:
        node.end_all(BUSY, "sh")
    assert all(is_quiet(activity) for activity in node.told(IDLE, since))


@pytest.mark.long
@pytest.mark.usefixtures("internet")
def test_a_download_shows_as_network(node: Node) -> None:  # case D01
    since = node.beats
    node.inside(BUSY, f"until {BUSYBOX} nc {INTERNET} 8000 >/dev/null; do {BUSYBOX} sleep 0.2; done")
    try:
        loading = node.wait_told(BUSY, lambda a: (a["network_bytes_per_s"] or 0) > BYTES_PER_S / 4, since, "a download")
        assert loading["gpu_percent"] == 0
    finally:
        for name in ("sh", "nc"):
            node.end_all(BUSY, name)
    assert all(is_quiet(activity) for activity in node.told(IDLE, since))


def burst(node: Node, percent: int) -> None:
    """A process that has come and gone before anybody looks."""
    sample = FakeSample(time.time_ns() // 1000, percent, pid=4242)
    node.engine.fleet.change(node.engine.fleet.uuids[1], samples=(sample,))


def test_a_gpu_burst_between_two_looks_shows_once(node: Node) -> None:  # case D01
    since = node.beats
    burst(node, 90)
    seen = node.wait_told(BUSY, lambda a: a["gpu_percent"] == 90, since, "the burst")
    after = node.told(BUSY, since).index(seen) + 1
    node.portal.wait_for(lambda: len(node.told(BUSY, since)) > after + 1, "later looks")
    assert [a["gpu_percent"] for a in node.told(BUSY, since)[after:]] == [0] * len(node.told(BUSY, since)[after:])


def test_a_burst_whose_heartbeat_was_lost_is_told_by_the_next(node: Node) -> None:
    since = node.beats
    node.portal.status = 503
    burst(node, 70)
    refused = node.portal.refused
    node.portal.wait_for(lambda: node.portal.refused > refused + 8, "heartbeats and pulls that fail")
    node.portal.status = 0
    assert node.wait_told(BUSY, lambda a: a["gpu_percent"] == 70, since, "the burst")["covers_s"] > 1.5


def test_a_driver_that_fails_makes_the_load_unknown(node: Node) -> None:  # case D01
    gpu = node.engine.fleet.uuids[1]
    since = node.beats
    node.engine.fleet.change(gpu, extra={"process_load_error": 999})
    try:
        unknown = node.wait_told(BUSY, lambda a: a["gpu_percent"] is None, since, "unknown")
        assert unknown["cpu_percent"] is not None
    finally:
        node.engine.fleet.change(gpu, extra={})
    node.wait_told(BUSY, lambda a: a["gpu_percent"] == 0, node.beats, "known again")


def test_an_open_session_is_quiet_until_somebody_types(node: Node) -> None:  # case D02
    async def session() -> None:
        async with (
            asyncssh.connect(
                node.engine.ip, node.port, username=BUSY, client_keys=[node.key], known_hosts=None, config=None
            ) as connection,
            connection.create_process("cat") as process,
        ):
            await asyncio.to_thread(node.settle, BUSY)
            since = node.beats
            quiet = await asyncio.to_thread(quiet_for, node, BUSY, 2, since)
            assert {activity["ssh_input"] for activity in quiet} == {False}
            process.stdin.write("x\n")
            await asyncio.to_thread(node.wait_told, BUSY, lambda a: a["ssh_input"] is True, since, "the typing")

    asyncio.run(session())


@pytest.mark.long
def test_a_look_at_the_ssh_way_in_costs_far_less_than_counts_as_use(node: Node) -> None:  # case D02
    container = Container.find(node.inspect(f"lessor-{IDLE}-1")["State"]["Pid"], 1.0)
    assert container
    cpu, network = container.cpu_s(), container.network_bytes()
    assert cpu is not None
    assert network is not None
    for _ in range(3):
        assert json.loads(node.ssh(IDLE, "/.lease/bin/probe").stdout)["devices"]
    used, moved = (container.cpu_s() or 0) - cpu, (container.network_bytes() or 0) - network
    assert used / 3 < 0.01 * 15  # under 1 % of one core when it happens at every look of 15 s
    assert moved / 3 < 0.01 * LIMITS["network_bytes_per_s"] * 15

"""The agent on a real engine when things go wrong: its own death at any step, and an engine that hangs or dies."""

import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.cleaning import pids_of_container
from nodes.agent.engine import DockerEngine
from nodes.agent.engine_stream import Cut, lines
from tests.nodes.agent.fake_portal import lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine, thread_state, wait_until
from tests.rig.images import SCRATCH

pytestmark = pytest.mark.rig
numbers = itertools.count(1)
WHEN = ("before", "after")


def mostly_long(chosen: str, *others: str) -> list[Any]:
    """Parameters of which only the first belongs to every run; test_agent_restart.py tries all without an engine."""
    return [chosen, *(pytest.param(other, marks=pytest.mark.long) for other in others)]


@pytest.fixture
def node(whole_node: RigNode) -> Iterator[RigNode]:
    """The node, which every test leaves as clean as it found it; holders that wait for leases may stay."""
    with whole_node.tidy(f"ls-bad{next(numbers)}", seconds=30, but="holders"):
        yield whole_node


def order(node: RigNode, **changes: object) -> None:
    gpus = node.engine.fleet.uuids[:1]
    node.portal.want(lease(node.lease_id, gpus, SCRATCH, authorized_keys=[node.key_line], **changes))


def ready(node: RigNode) -> None:
    node.portal.wait_event(node.lease_id, "ready")


def release(node: RigNode) -> None:
    node.portal.stop(node.lease_id)
    node.portal.wait_event(node.lease_id, "cleaned")


def starts(node: RigNode, since: float) -> int:
    """How often a container of the lease was started."""
    asked = ("--since", f"{since:.3f}", "--until", f"{time.time():.3f}", "--filter", "event=start")
    label = ("--filter", f"label=lessor.lease={node.lease_id}", "--filter", "label=lessor.role=workspace")
    return len(node.engine.docker("events", *asked, *label, "--format", "{{.ID}}").stdout.split())


def containers(node: RigNode) -> list[str]:
    label = ("--filter", f"label=lessor.lease={node.lease_id}", "--filter", "label=lessor.role=workspace")
    return node.engine.docker("ps", "-aq", *label).stdout.split()


# The agent dies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moment",
    mostly_long("start", *(f"{when}:{what}" for what in ("starting", "started", "running") for when in WHEN), "create"),
)
def test_an_agent_killed_during_a_launch_finishes_it_in_its_next_life(node: RigNode, moment: str) -> None:
    since = time.time()
    node.end("agent")
    node.start_agent(dies=moment)
    order(node)
    node.wait_for_death()
    node.start_agent()
    ready(node)
    assert node.ssh(node.lease_id, f"{BUSYBOX} hostname").stdout == f"{node.lease_id}\n"
    assert node.inspect(node.container)["HostConfig"]["NetworkMode"].startswith("container:")
    assert len(containers(node)) == 1
    assert starts(node, since) == 1
    release(node)


@pytest.mark.long
def test_a_container_that_an_agent_left_in_another_network_is_ended_free_of_charge(node: RigNode) -> None:
    node.end("agent")
    node.start_agent(dies="start")
    order(node)
    node.wait_for_death()
    entry = node.state / "holders" / node.container / "holder"
    holder, address, network = entry.read_text().split()
    entry.write_text(f"{holder} {address} {int(network) + 1}")
    node.start_agent()
    node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.report(node.lease_id, "failed")["failure"] == "failed_launch"
    assert not {"started", "ready"} & set(node.portal.events(node.lease_id))
    node.end("agent")  # which trusts no holder any more
    node.start_agent()


@pytest.mark.parametrize(
    "moment",
    mostly_long(
        "kill", *(f"{when}:{what}" for what in ("stopping", "stopped", "cleaning") for when in WHEN), "remove", "delete"
    ),
)
def test_an_agent_killed_during_a_stop_ends_it_in_its_next_life(node: RigNode, moment: str) -> None:
    node.end("agent")
    node.start_agent(dies=moment)
    order(node)
    ready(node)
    node.portal.stop(node.lease_id)
    node.wait_for_death()
    node.start_agent()
    node.portal.wait_event(node.lease_id, "cleaned")
    assert containers(node) == []
    assert "failed" not in node.portal.events(node.lease_id)


# The engine hangs or dies -----------------------------------------------------------------------------------------


def test_an_engine_that_hangs_stops_no_heartbeat_and_loses_no_order(node: RigNode) -> None:  # case C09
    since = time.time()
    order(node)
    ready(node)
    first, node.lease_id = node.lease_id, f"{node.lease_id}b"
    node.engine.pause()
    try:
        order(node)
        beats = len(node.portal.heartbeats)
        node.portal.wait_for(
            lambda: any(
                {"ls": entry["id"], "phase": entry["phase"]} == {"ls": node.lease_id, "phase": "starting"}
                for beat in node.portal.heartbeats[beats:]
                for entry in beat["leases"]
            ),
            "the second lease in a heartbeat",
            20,
        )
        node.portal.stop(first)
        node.portal.wait_for(
            lambda: any(
                entry["phase"] == "stopping" and entry["id"] == first for entry in node.portal.heartbeats[-1]["leases"]
            ),
            "the stop of the first",
            30,
        )
        assert "stopped" not in node.portal.events(first)
    finally:
        node.engine.resume()
    node.portal.wait_event(first, "cleaned")
    assert node.portal.report(first, "stopped")["evidence"] == {"exit_code": 0, "killed": False}
    ready(node)
    assert starts(node, since) == 1
    assert len(containers(node)) == 1
    release(node)


@pytest.mark.long
def test_an_engine_that_dies_during_a_launch_is_waited_for(node: RigNode) -> None:  # case C09
    node.engine.kill_dockerd()
    order(node)
    node.portal.wait_for(
        lambda: any(entry["id"] == node.lease_id for entry in node.portal.heartbeats[-1]["leases"]), "the order", 20
    )
    node.engine.start_dockerd()
    ready(node)
    assert len(containers(node)) == 1
    release(node)


@pytest.mark.long
def test_an_engine_that_dies_under_a_lease_ends_it_cleanly(node: RigNode) -> None:  # case C09
    order(node)
    ready(node)
    node.engine.kill_dockerd()
    node.engine.start_dockerd()  # without live restore it ends what ran
    node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.events(node.lease_id)[-3:] == ["exited", "stopped", "cleaned"]


@pytest.mark.long
def test_an_engine_that_dies_during_a_stop_does_not_end_it_early(node: RigNode) -> None:  # case C09
    order(node)
    ready(node)
    node.engine.kill_dockerd()
    node.portal.stop(node.lease_id)
    node.portal.wait_for(
        lambda: any(entry["phase"] == "stopping" for entry in node.portal.heartbeats[-1]["leases"]), "the stop", 20
    )
    assert "stopped" not in node.portal.events(node.lease_id)
    node.engine.start_dockerd()
    node.portal.wait_event(node.lease_id, "cleaned")
    assert containers(node) == []


# The rest of a bad day --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_wrong_clock_neither_ends_a_lease_nor_keeps_it(node: RigNode) -> None:  # case B07
    node.end("agent")
    node.start_agent(year="1970")
    order(node, deadline_s=120)
    ready(node)
    beats = len(node.portal.heartbeats)
    node.end("agent")
    node.start_agent(year="2100")
    node.portal.wait_for(
        lambda: any(b["leases"] and b["leases"][0]["phase"] == "running" for b in node.portal.heartbeats[beats:]),
        "the lease in a heartbeat of 2100",
    )
    years = {beat["clock"][:4] for beat in node.portal.heartbeats}
    assert {"1970", "2100"} <= years or {"1969", "2100"} <= years
    assert "deadline" not in node.portal.events(node.lease_id)
    node.portal.leases[node.lease_id]["deadline_s"] = 1
    node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.events(node.lease_id)[-3:] == ["deadline", "stopped", "cleaned"]
    node.end("agent")
    node.start_agent()


def test_a_card_with_a_hardware_xid_is_out_until_it_was_mended_and_its_neighbours_go_on(node: RigNode) -> None:
    # case G04
    order(node)
    ready(node)
    broken = node.engine.fleet.uuids[3]

    def out() -> dict[str, str]:
        gpus = node.portal.heartbeats[-1]["gpus"]
        return {gpu["uuid"]: gpu["fault"] for gpu in gpus if not gpu["healthy"]}

    node.engine.fleet.xid(node.engine.fleet.uuids[0], 31)  # an application's own fault
    node.engine.fleet.xid(broken, 79)
    node.portal.wait_for(lambda: bool(out()), "the fault in a heartbeat")
    assert list(out()) == [broken]
    assert out()[broken].startswith("Xid 79: ")
    assert node.portal.events(node.lease_id) == ["starting", "started", "ready"]
    assert "leased again" in node.agent("gpu-mended", broken)
    node.portal.wait_for(lambda: not out(), "a heartbeat without the fault")
    release(node)


BUSYBOX = "/.lease/bin/busybox"
COUNTING = f"while :; do {BUSYBOX} sleep 0.1; done"
LEAVING = f"({BUSYBOX} setsid {BUSYBOX} sleep 900 &); ({BUSYBOX} true &); exec {BUSYBOX} sleep 900"
MAINS = {  # name of the image -> its main process, its stop signal, how it ends
    "tail": ([BUSYBOX, "tail", "-f", "/dev/null"], "TERM", {"exit_code": 143, "killed": False}),
    "child": (
        [BUSYBOX, "sh", "-c", f"{BUSYBOX} sh -c 'trap \"exit 7\" TERM; {COUNTING}'"], "TERM",
        {"exit_code": 7, "killed": False},
    ),
    "interrupted": (
        [BUSYBOX, "sh", "-c", f"trap 'exit 42' INT; {COUNTING}"], "INT", {"exit_code": 42, "killed": False},
    ),
    "deaf": ([BUSYBOX, "sh", "-c", f"trap '' TERM INT; {COUNTING}"], "TERM", {"exit_code": 137, "killed": True}),
    "detaching": ([BUSYBOX, "sh", "-c", LEAVING], "TERM", {"exit_code": 143, "killed": False}),
}  # fmt: skip


def test_every_kind_of_main_process_is_asked_ends_as_it_does_and_leaves_no_process(node: RigNode) -> None:  # case E01
    gpus, first = node.engine.fleet.uuids, node.lease_id
    for name, (command, signal, _) in MAINS.items():
        build(
            node.engine, f"lessor-test/{name}:1", f"FROM {SCRATCH}\nSTOPSIGNAL SIG{signal}\nCMD {json.dumps(command)}"
        )
        node.portal.want(
            lease(f"{first}{name}", gpus[:1], f"lessor-test/{name}:1", authorized_keys=[node.key_line], stop_grace_s=2)
        )
    ids = {}
    for name in MAINS:
        node.portal.wait_event(f"{first}{name}", "ready")
        inspect = node.inspect(f"lessor-{first}{name}-1")
        assert inspect["HostConfig"]["Init"] is True
        ids[name] = inspect["Id"]
    wait_until(lambda: not zombies(ids["detaching"]), seconds=20, what="the orphan to be reaped")
    for name in MAINS:
        node.portal.stop(f"{first}{name}")
    for name, (_, _, ending) in MAINS.items():
        node.portal.wait_event(f"{first}{name}", "cleaned")
        assert (name, node.portal.report(f"{first}{name}", "stopped")["evidence"]) == (name, ending)
        assert pids_of_container(ids[name]) == ()


def build(engine: Engine, name: str, dockerfile: str) -> None:
    """An image that needs no file."""
    environment = os.environ | {"DOCKER_HOST": engine.docker_host, "DOCKER_BUILDKIT": "0"}
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", name, "-"], input=dockerfile, env=environment, text=True, check=True,
        capture_output=True,
    )  # fmt: skip


def zombies(container: str) -> list[int]:
    """Processes of a container that have ended and that nobody has asked about."""
    return [pid for pid in pids_of_container(container) if thread_state(Path(f"/proc/{pid}")) == "Z"]


@pytest.mark.parametrize("calls", [60, pytest.param(5000, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_calls_that_their_client_breaks_off_leave_no_descriptor_open(node: RigNode, calls: int) -> None:  # case I06
    order(node)
    ready(node)
    engine = DockerEngine(node.engine.socket)
    broken_calls(node, engine, 10)  # what is kept open on purpose is open from here on
    before = (descriptors(node.agent_pid), descriptors(os.getpid()))
    broken_calls(node, engine, calls)
    wait_until(
        lambda: descriptors(node.agent_pid) <= before[0] + 2, seconds=60,
        what=f"{descriptors(node.agent_pid)} descriptors of the agent to be {before[0]} again",
    )  # fmt: skip
    assert descriptors(os.getpid()) <= before[1] + 2
    release(node)


def broken_calls(node: RigNode, engine: DockerEngine, count: int) -> None:
    """So many calls, each left in the middle: sessions by way of the agent, streams and plain calls of the engine."""
    for number in range(count):
        (broken_session, broken_events, broken_pull, unknown_container)[number % 4](node, engine)


def broken_session(node: RigNode, _engine: DockerEngine) -> None:
    asked = {
        "verb": "exec", "lease": node.lease_id, "kind": "command", "command": "sleep 60", "tty": False, "term": "xterm",
        "cols": 80, "rows": 24, "peer": "192.0.2.1",
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(node.run / "execd.sock"))
        connection.sendall(json.dumps(asked).encode() + b"\n")
        _, received, _, _ = socket.recv_fds(connection, 65536, 4)
        for descriptor in received:
            os.close(descriptor)


def broken_events(node: RigNode, _engine: DockerEngine) -> None:
    cut = Cut()
    with lines(node.engine.socket, "GET", "/events", {}, 60, cut) as answer:
        cut.set()
        assert list(answer) == []


def broken_pull(_node: RigNode, engine: DockerEngine) -> None:
    cut = Cut()
    cut.set()
    engine.pull("127.0.0.1:1/nothing:1", lambda _: None, cut)


def unknown_container(_node: RigNode, engine: DockerEngine) -> None:
    assert engine.inspect("lessor-ls-unknown-1") is None
    engine.kill("lessor-ls-unknown-1", "SIGTERM")
    assert engine.local_image("nobody/has-this:1") is None


def descriptors(pid: int) -> int:
    """How many a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())

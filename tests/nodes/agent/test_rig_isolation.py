"""What a lease cannot reach: the node, its network, metadata, its neighbours. The same with holders and without."""

import itertools
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine, wait_until
from tests.rig.images import SCRATCH, add_scratch
from tests.rig.nvml import make_gpus

pytestmark = pytest.mark.rig
numbers = itertools.count(1)
BUSYBOX = "/.lease/bin/busybox"
OUTSIDE = "203.0.113.7"  # TEST-NET-3: stands for the internet


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(make_gpus(2)) as started:
        add_scratch(started)
        yield started


@pytest.fixture(scope="module", params=["holders", "own networks"])
def whole_node(
    request: pytest.FixtureRequest, engine: Engine, bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RigNode]:
    pooled = request.param == "holders"
    with (
        FakePortal(engine.host_ip, "nd-pooled" if pooled else "nd-plain") as portal,
        RigNode(
            engine, portal, bundle_dir, tmp_path_factory.mktemp("node"), *(() if pooled else ("--holders", "0"))
        ) as node,
    ):
        wait_until(lambda: bool(node.holders()) is pooled, seconds=30, what="the pool")
        yield node


@pytest.fixture
def node(whole_node: RigNode) -> Iterator[RigNode]:
    whole_node.portal.forget()
    whole_node.lease_id = f"ls-{next(numbers)}"
    yield whole_node
    wait_until(
        lambda: not any(whole_node.left_behind().values()), seconds=20, what=f"clean: {whole_node.left_behind()}"
    )


def run(node: RigNode, lease_id: str, number: int) -> None:
    """A lease on one GPU that is ready; what was asked for must not have fallen back to the other kind of network."""
    gpu = node.engine.fleet.uuids[number : number + 1]
    node.portal.want(lease(lease_id, gpu, SCRATCH, authorized_keys=[node.key_line]))
    node.portal.wait_event(lease_id, "ready")
    mode = node.inspect(f"lessor-{lease_id}-1")["HostConfig"]["NetworkMode"]
    assert mode.startswith("container:") is bool(node.holders())


def release(node: RigNode, *lease_ids: str) -> None:
    for lease_id in lease_ids:
        node.portal.stop(lease_id)
    for lease_id in lease_ids:
        node.portal.wait_event(lease_id, "cleaned")


def in_network(node: RigNode, container: str, *command: str) -> str:
    """What a program of this machine prints in a container's network."""
    pid = node.inspect(container)["State"]["Pid"]
    return subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command], capture_output=True, text=True, check=True
    ).stdout


def address_of(node: RigNode, container: str) -> str:
    words = in_network(node, container, "ip", "-4", "-o", "address", "show", "eth0").split()
    return words[words.index("inet") + 1].partition("/")[0]


def gateway_of(node: RigNode, container: str) -> str:
    return in_network(node, container, "ip", "route", "show", "default").split()[2]


def reached(node: RigNode, address: str, port: int) -> bool:
    """Whether a connection from inside the lease comes about."""
    done = node.ssh(node.lease_id, f"busybox nc -w 3 {address} {port} </dev/null >/dev/null 2>&1; echo $?")
    return done.stdout == "0\n"


def test_a_lease_reaches_neither_the_node_nor_its_network_nor_metadata(node: RigNode) -> None:  # case H07, case H09
    run(node, node.lease_id, 0)
    portal_port = int(node.portal.url.rpartition(":")[2])
    gateway = gateway_of(node, node.container)
    targets = [(node.engine.host_ip, portal_port), (node.engine.ip, 2222), (gateway, 2222), ("169.254.169.254", 80)]
    assert [reached(node, address, port) for address, port in targets] == [False] * 4
    # The same targets with the rules gone: it is the rules that close them, and the agent puts them back.
    jump = ("-i", "lsr+", "-j")
    flush = node.engine.nsenter("iptables", "-D", "DOCKER-USER", *jump, "LESSOR-FORWARD")
    wait_until(lambda: _ran(flush) and reached(node, *targets[0]), seconds=30, what="an open door")
    wait_until(lambda: not reached(node, *targets[0]), seconds=30, what="closed again")
    release(node, node.lease_id)


def test_leases_do_not_reach_each_other(node: RigNode) -> None:  # case H09
    run(node, node.lease_id, 0)
    neighbour = f"{node.lease_id}b"
    run(node, neighbour, 1)
    listen = ("-d", f"lessor-{neighbour}-1", BUSYBOX, "nc", "-ll", "-p", "9000", "-e", BUSYBOX, "true")
    node.engine.docker("exec", *listen)
    address = address_of(node, f"lessor-{neighbour}-1")
    from_the_node = node.engine.nsenter("busybox", "nc", "-w", "3", address, "9000")
    wait_until(lambda: _ran(from_the_node), seconds=20, what="the neighbour's service")
    assert not reached(node, address, 9000)
    release(node, neighbour, node.lease_id)


@pytest.fixture
def outside(engine: Engine) -> Iterator[list[str]]:
    """A server on the internet; the addresses it was called from."""
    device = ("dev", engine.network.host_interface)
    subprocess.run(["ip", "address", "add", f"{OUTSIDE}/32", *device], check=True)
    callers: list[str] = []

    class Note(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            callers.append(self.client_address[0])

    try:
        with socketserver.ThreadingTCPServer((OUTSIDE, 9443), Note) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield callers
            server.shutdown()
    finally:
        subprocess.run(["ip", "address", "del", f"{OUTSIDE}/32", *device], check=True)


def test_a_lease_reaches_what_lies_outside_under_the_address_of_the_node(node: RigNode, outside: list[str]) -> None:
    run(node, node.lease_id, 0)
    assert reached(node, OUTSIDE, 9443)
    assert outside == [node.engine.ip]
    release(node, node.lease_id)


def test_a_lease_knows_itself_by_its_id_and_has_no_ipv6_but_its_own_loopback(node: RigNode) -> None:
    run(node, node.lease_id, 0)
    said = node.ssh(node.lease_id, "hostname; cat /etc/hostname; grep -c $(hostname) /etc/hosts").stdout
    assert said.split() == [node.lease_id, node.lease_id, "1"]
    assert "inet6" not in in_network(node, node.container, "ip", "address", "show", "eth0")
    release(node, node.lease_id)


def _ran(command: list[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0

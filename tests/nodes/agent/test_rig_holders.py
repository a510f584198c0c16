"""The pool of network holders on a real engine: refilled, adopted, watched, used once, and gone with the node."""

import itertools
import json
import signal
import subprocess
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
SIZE = 2


@pytest.fixture(scope="module")
def node_of_module(bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RigNode]:
    with Engine(make_gpus(2)) as engine:
        add_scratch(engine)
        with (
            FakePortal(engine.host_ip, "nd-holders") as portal,
            RigNode(engine, portal, bundle_dir, tmp_path_factory.mktemp("node"), "--holders", str(SIZE)) as node,
        ):
            yield node


@pytest.fixture
def node(node_of_module: RigNode) -> Iterator[RigNode]:
    """A node with a full pool and nothing else, before and after."""
    node_of_module.portal.forget()
    node_of_module.lease_id = f"ls-{next(numbers)}"
    full(node_of_module)
    yield node_of_module
    wait_until(lambda: not any(node_of_module.left_behind().values()), seconds=20, what="nothing left")


def full(node: RigNode) -> list[str]:
    """Wait until there are as many holders as there should be, used ones included; their names."""
    wait_until(lambda: len(node.holders()) == SIZE, seconds=40, what="a full pool")
    return node.holders()


def network_of(node: RigNode, holder: str) -> tuple[int, str]:
    """The namespace of a holder, and the address in it."""
    pid = node.inspect(holder)["State"]["Pid"]
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    shown = subprocess.run(
        [*enter, "ip", "-4", "-o", "address", "show", "eth0"], capture_output=True, text=True, check=True
    )
    return Path(f"/proc/{pid}/ns/net").stat().st_ino, shown.stdout.split()[3]


def run(node: RigNode) -> str:
    """A lease that is ready; the name of its holder."""
    node.portal.want(lease(node.lease_id, node.engine.fleet.uuids[:1], SCRATCH, authorized_keys=[node.key_line]))
    node.portal.wait_event(node.lease_id, "ready")
    return holder_of(node)


def holder_of(node: RigNode) -> str:
    mode = node.inspect(node.container)["HostConfig"]["NetworkMode"]
    assert mode.startswith("container:")
    return str(node.inspect(mode.removeprefix("container:"))["Name"]).lstrip("/")


def release(node: RigNode) -> None:
    node.portal.stop(node.lease_id)
    node.portal.wait_event(node.lease_id, "cleaned")


def heard(node: RigNode) -> None:
    """Wait for two heartbeats from now on: an agent that was just started has looked at what is here."""
    count = len(node.portal.heartbeats)
    node.portal.wait_for(lambda: len(node.portal.heartbeats) > count + 2, "heartbeats of the new agent")


def interfaces(node: RigNode) -> set[str]:
    listed = subprocess.run(node.engine.nsenter("ip", "-j", "link"), capture_output=True, text=True, check=True).stdout
    return {link["ifname"] for link in json.loads(listed) if link["ifname"].startswith("lsrh")}


def test_no_lease_gets_a_network_that_another_had(node: RigNode) -> None:
    used = run(node)
    had = network_of(node, used)
    release(node)
    for holder in full(node):
        namespace, address = network_of(node, holder)
        assert namespace != had[0]
        assert address != had[1]
    assert len(interfaces(node)) == SIZE


def test_the_preflight_goes_the_way_of_a_lease(node: RigNode) -> None:
    assert node.portal.preflights[-1]["checks"][-1]["detail"].endswith("inside a container in a network that was ready")


@pytest.mark.long
def test_half_of_the_pool_waits_however_many_leases_there_are(node: RigNode) -> None:
    first, node.lease_id = node.lease_id, f"{node.lease_id}b"
    for lease_id, number in ((first, 0), (node.lease_id, 1)):
        gpu = node.engine.fleet.uuids[number : number + 1]
        node.portal.want(lease(lease_id, gpu, SCRATCH, authorized_keys=[node.key_line]))
        node.portal.wait_event(lease_id, "ready")
    wait_until(lambda: len(node.holders()) == 2 + SIZE // 2, seconds=40, what="one more than are in use")
    for lease_id in (first, node.lease_id):
        node.portal.stop(lease_id)
        node.portal.wait_event(lease_id, "cleaned")
    full(node)


def test_nothing_of_a_lease_is_visible_from_its_holder(node: RigNode) -> None:
    holder = node.inspect(run(node))
    assert node.lease_id not in json.dumps(holder)
    assert (holder["HostConfig"]["CapAdd"], holder["Mounts"]) == (["SYS_ADMIN"], [])
    release(node)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
def test_an_agent_that_starts_again_keeps_the_pool_and_the_holder_in_use(node: RigNode, number: int) -> None:
    used = run(node)
    before = full(node)
    node.end("agent", number)
    node.start_agent()
    heard(node)
    assert set(before) <= set(node.holders())  # the preflight may have had one more made
    assert node.ssh(node.lease_id, "echo back").stdout == "back\n"
    had = network_of(node, used)
    release(node)
    assert had not in [network_of(node, holder) for holder in full(node)]


@pytest.mark.long
def test_a_holder_that_died_while_it_waited_is_replaced(node: RigNode) -> None:
    victim = node.holders()[0]
    node.engine.docker("kill", victim)
    wait_until(lambda: victim not in node.holders(), seconds=20, what="the end of the dead holder")
    full(node)
    run(node)
    release(node)


@pytest.mark.long
def test_a_holder_that_dies_under_a_lease_takes_nothing_from_it(node: RigNode) -> None:
    used = run(node)
    node.engine.docker("rm", "--force", used)
    assert node.ssh(node.lease_id, "busybox ip route").stdout.startswith("default via")
    wait_until(lambda: f"{used} has ended" in node.log(), seconds=20, what="a word about it")
    node.end("agent", signal.SIGTERM)
    node.start_agent()
    heard(node)
    assert node.ssh(node.lease_id, "echo still").stdout == "still\n"
    release(node)


def test_an_interface_that_was_deleted_under_a_lease_is_made_again(node: RigNode) -> None:
    run(node)
    pid = node.inspect(node.container)["State"]["Pid"]
    inside = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "link", "delete", "eth0"]
    subprocess.run(inside, check=True)
    wait_until(
        lambda: "default via" in node.ssh(node.lease_id, "busybox ip route").stdout, seconds=20, what="a route again"
    )
    release(node)


@pytest.mark.long
def test_an_engine_that_restarts_leaves_a_pool_that_is_made_anew(node: RigNode) -> None:
    before = node.holders()
    node.engine.restart_dockerd()
    wait_until(lambda: len(set(node.holders()) - set(before)) == SIZE, seconds=60, what="new holders")
    run(node)
    release(node)


def test_a_node_that_retires_keeps_no_holder(node: RigNode) -> None:
    node.end("agent", signal.SIGTERM)
    node.agent("retire", "--docker-socket", str(node.engine.socket))
    left = node.engine.docker("ps", "-aq", "--filter", "label=lessor.node").stdout
    assert (left, interfaces(node)) == ("", set())
    rules = subprocess.run(node.engine.nsenter("iptables-save"), capture_output=True, text=True, check=True).stdout
    assert "LESSOR" not in rules
    node.start_agent()
    full(node)

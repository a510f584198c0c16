"""The agent on a real engine when things go wrong: its own death at any step, and an engine that hangs or dies."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine, wait_until
from tests.rig.images import SCRATCH, add_scratch
from tests.rig.nvml import make_gpus

pytestmark = pytest.mark.rig
numbers = itertools.count(1)
WHEN = ("before", "after")


def mostly_long(chosen: str, *others: str) -> list[Any]:
    """Parameters of which only the first belongs to every run."""
    return [chosen, *(pytest.param(other, marks=pytest.mark.long) for other in others)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(make_gpus(4)) as started:
        add_scratch(started)
        yield started


@pytest.fixture(scope="module")
def portal(engine: Engine) -> Iterator[FakePortal]:
    with FakePortal(engine.host_ip) as started:
        yield started


@pytest.fixture(scope="module")
def whole_node(
    engine: Engine, portal: FakePortal, bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RigNode]:
    with RigNode(engine, portal, bundle_dir, tmp_path_factory.mktemp("node")) as started:
        yield started


@pytest.fixture
def node(whole_node: RigNode) -> Iterator[RigNode]:
    """The node, which every test leaves as clean as it found it."""
    whole_node.portal.forget()
    whole_node.lease_id = f"ls-bad{next(numbers)}"
    yield whole_node

    def clean() -> bool:
        left = whole_node.left_behind()
        left.pop("holders", None)  # those that wait for leases
        return not any(left.values())

    wait_until(clean, seconds=30, what=f"nothing left: {whole_node.left_behind()}")


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
    assert node.ssh(node.lease_id, "echo up").stdout == "up\n"
    assert len(containers(node)) == 1
    assert starts(node, since) == 1
    release(node)


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

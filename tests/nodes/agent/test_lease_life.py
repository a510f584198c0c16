"""The life of leases in the agent, with a portal behind real HTTP and an engine that can be made to fail."""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from nodes.agent.config import write_private
from nodes.agent.contact import Contact
from nodes.agent.desired import DesiredLease
from nodes.agent.failures import LaunchError
from nodes.agent.gateway_link import GatewayLink
from nodes.agent.gpus import Gpus, GpuUnreadableError
from nodes.agent.hostconfig import NodeFacts
from nodes.agent.images import ImagePool
from nodes.agent.network import HostRules
from nodes.agent.parts import Parts
from nodes.agent.portal import PortalClient
from nodes.agent.probe import Pause, ProbeKey
from nodes.agent.reconciler import Reconciler
from nodes.agent.store import Store
from nodes.agent.volumes import Volumes
from tests.nodes.agent.fake_engine import FakeEngine
from tests.nodes.agent.fake_portal import NODE_ID, TOKEN, FakePortal, lease

GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"
OTHER_GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000002"


class Cards:
    """Two GPUs whose memory and processes a test sets."""

    def __init__(self) -> None:
        self.memory = {GPU: 0, OTHER_GPU: 0}
        self.pids: dict[str, set[int]] = {GPU: set(), OTHER_GPU: set()}

    def memory_used(self, uuid: str) -> int:
        if uuid not in self.memory:
            raise GpuUnreadableError(uuid)
        return self.memory[uuid]

    def processes(self, uuid: str) -> frozenset[int]:
        return frozenset(self.pids[uuid])


class Proof:
    """A prover that says yes, no, or nothing at all until released."""

    def __init__(self) -> None:
        self.error: LaunchError | None = None
        self.gate = threading.Event()
        self.gate.set()

    def prove(self, wanted: DesiredLease, key: ProbeKey, pause: Pause) -> Mapping[str, object]:
        assert key.public_line.startswith("ssh-ed25519 ")
        while not self.gate.is_set():
            pause(0.01)
        if self.error:
            raise self.error
        return {"devices_seen": list(wanted.devices)}


class PlainVolumes(Volumes):
    """Volumes on a machine that cannot loop-mount: tests without root."""

    def _can_mount(self) -> bool:
        return False


class NoRules(HostRules):
    """Leaves the firewall of the machine that runs the tests alone."""

    def ensure(self) -> None:
        """Do nothing."""


class World:
    """An agent's core around a portal and an engine; `start` and `stop` may be called again, as restarts."""

    def __init__(self, directory: Path, portal: FakePortal) -> None:
        self.portal = portal
        self.engine = FakeEngine()
        self.cards = Cards()
        self.proof = Proof()
        self.directory = directory
        self.faults: list[str] = []
        self.silence_s = 900.0

    def start(self) -> None:
        """What the agent does at its start."""
        contact = Contact(self.directory / "contact.json", self.silence_s)
        client = PortalClient(self.portal.url, TOKEN, contact)
        self.images = ImagePool(self.engine)
        self.gateway = GatewayLink(self.directory / "run", "no-such-group")
        parts = Parts(
            engine=self.engine, images=self.images, volumes=PlainVolumes(self.directory / "volumes"),
            gateway=self.gateway, gpus=cast(Gpus, self.cards), prover=self.proof, portal=client, contact=contact,
            store=Store(self.directory / "leases"), threads=ThreadPoolExecutor(4), cleaning_limit_s=0.3, watch_s=0.2,
            node_facts=lambda: NodeFacts(NODE_ID, "device_request", Path("/bundle"), 1024, memlock=False),
            on_driver_fault=lambda: self.faults.append("driver"),
        )  # fmt: skip
        self.reconciler = Reconciler(parts, NoRules(resolv_confs=()), NODE_ID, pull_s=0.2)
        self.reconciler.start()

    def stop(self) -> None:
        """What the agent does at its end."""
        self.reconciler.stop()
        self.images.close()

    def want(self, lease_id: str = "ls-a", image: str = "here:1", **changes: object) -> None:
        """Order a lease."""
        self.portal.want(lease(lease_id, [GPU], image, **changes))

    def phase(self, lease_id: str = "ls-a") -> str:
        """The phase of a lease here, "" when there is none."""
        return next((r.phase for r in self.reconciler.records() if r.lease_id == lease_id), "")

    def running(self, lease_id: str = "ls-a") -> None:
        """Order a lease and wait until it runs."""
        self.want(lease_id)
        self.portal.wait_event(lease_id, "ready")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakePortal() as portal:
        made = World(tmp_path, portal)
        made.start()
        yield made
        made.stop()


def test_a_lease_is_reported_step_by_step_and_leaves_nothing(world: World) -> None:
    world.running()
    assert world.engine.nets == {"lessor-ls-a-1"}
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["starting", "started", "ready", "stopped", "cleaned"]
    assert (world.engine.boxes, world.engine.nets) == ({}, set())
    assert list((world.directory / "volumes").iterdir()) == []
    world.portal.wait_for(lambda: not list((world.directory / "leases").iterdir()), "no record left")


def test_a_stop_does_not_wait_for_the_pull(world: World) -> None:  # case C03, case I06
    world.want(image="far:1")
    world.portal.wait_event("ls-a", "pulling")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned", seconds=20)
    assert not world.engine.pull_gate.is_set()
    assert "create" not in world.engine.calls


def test_leases_of_one_image_share_its_pull(world: World) -> None:  # case C03
    for lease_id in ("ls-a", "ls-b", "ls-c"):
        world.want(lease_id, image="far:1")
    world.portal.wait_for(lambda: all("pulling" in world.portal.events(i) for i in ("ls-a", "ls-b", "ls-c")), "pulls")
    world.engine.pull_gate.set()
    for lease_id in ("ls-a", "ls-b", "ls-c"):
        world.portal.wait_event(lease_id, "ready")
    assert world.engine.pulls == ["far:1"]


def test_who_leaves_a_shared_pull_does_not_end_it_for_the_others(world: World) -> None:  # case C03
    for lease_id in ("ls-a", "ls-b"):
        world.want(lease_id, image="far:1")
        world.portal.wait_event(lease_id, "pulling")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    world.engine.pull_gate.set()
    world.portal.wait_event("ls-b", "ready")
    assert world.engine.pulls == ["far:1"]


def test_an_image_that_does_not_exist_ends_failed_image(world: World) -> None:
    world.engine.pull_gate.set()
    world.want(image="nobody/nothing:1")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_image"


@pytest.mark.parametrize(
    ("message", "failure", "driver"),
    [
        ('could not select device driver "" with capabilities: [[gpu utility compute]]', "failed_gpu", True),
        (f"nvidia-container-cli: device error: {GPU}: unknown device", "failed_gpu", False),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1", "failed_gpu", False),
        ("exec: no such file or directory", "failed_launch", False),
    ],
)
def test_a_refused_start_is_sorted_by_what_is_at_fault(
    world: World,
    message: str,
    failure: str,
    driver: bool,  # noqa: FBT001  # a column of the table
) -> None:
    world.engine.start_error = message
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == failure
    assert bool(world.faults) is driver
    assert world.engine.boxes == {}


def test_a_container_that_is_not_as_ordered_is_never_started(world: World) -> None:
    world.engine.tamper = lambda box: box["HostConfig"].update(Privileged=True)
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    failed = world.portal.report("ls-a", "failed")
    assert (failed["failure"], "Privileged" in failed["detail"]) == ("failed_launch", True)
    assert "start" not in world.engine.calls


def test_a_gpu_that_is_not_here_ends_failed_gpu_without_a_container(world: World) -> None:
    world.portal.want(lease("ls-a", ["GPU-99999999-aaaa-4bbb-8ccc-000000000009"], "here:1"))
    cleaned = world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_gpu"
    assert "create" not in world.engine.calls
    assert all(step["ok"] for step in cleaned["evidence"]["steps"])


def test_a_failed_proof_stops_and_cleans_what_was_started(world: World) -> None:
    world.proof.error = LaunchError("failed_gpu", "The container sees other GPUs.")
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["starting", "started", "failed", "stopped", "cleaned"]


def test_an_image_whose_main_process_ends_at_once_fails_with_its_exit_code(world: World) -> None:  # case C07
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.engine.exit("lessor-ls-a-1", 3)
    world.portal.wait_event("ls-a", "cleaned")
    assert "exit code 3" in world.portal.report("ls-a", "failed")["detail"]


def test_sigkill_follows_when_the_grace_is_over(world: World) -> None:  # case E01
    world.engine.ignores_term = True
    world.want(stop_grace_s=0)
    world.portal.wait_event("ls-a", "ready")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    assert [call for call in world.engine.calls if call.startswith("kill")] == ["kill SIGTERM", "kill SIGKILL"]
    assert world.portal.report("ls-a", "stopped")["evidence"] == {"exit_code": 137, "killed": True}


def test_an_exit_is_told_with_its_code(world: World) -> None:
    world.running()
    world.engine.exit("lessor-ls-a-1", 9)
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "exited")["evidence"] == {"exit_code": 9, "oom_killed": False}


def test_a_restart_leaves_a_running_lease_alone_and_goes_on_watching_it(world: World) -> None:
    world.running()
    world.stop()
    world.engine.calls.clear()
    world.start()
    world.portal.wait_for(lambda: world.phase() == "running", "adopted")
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 1, "pulls of the new agent")
    assert not [call for call in world.engine.calls if call in {"create", "start", "remove"} or "kill" in call]
    world.engine.exit("lessor-ls-a-1", 0)
    world.portal.wait_event("ls-a", "cleaned")


def test_an_agent_that_died_during_a_launch_finishes_it(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.stop()
    world.proof.gate.set()
    world.start()
    world.portal.wait_event("ls-a", "ready")
    assert world.engine.calls.count("create") == 1


def test_a_launch_that_is_not_wanted_any_more_after_a_restart_is_cleaned_not_finished(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.stop()
    del world.portal.leases["ls-a"]
    world.proof.gate.set()
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert "ready" not in world.portal.events("ls-a")


def test_a_container_of_ours_that_nobody_wants_is_stopped_and_cleaned(world: World) -> None:
    world.running()
    world.stop()
    for path in (world.directory / "leases").iterdir():
        path.unlink()
    del world.portal.leases["ls-a"]
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.engine.boxes == {}


def test_a_late_copy_of_an_order_does_not_start_a_finished_lease_again(world: World) -> None:
    world.running()
    old = dict(world.portal.leases["ls-a"])
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    world.portal.want(old)
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 2, "three more pulls")
    assert world.engine.calls.count("create") == 1


def test_a_newer_generation_waits_until_the_older_one_is_clean(world: World) -> None:  # case E03
    world.running()
    world.portal.want(lease("ls-a", [OTHER_GPU], "here:1", generation=2))
    world.portal.wait_for(lambda: "ready" in world.portal.events("ls-a", 2), "generation 2")
    assert world.portal.events("ls-a", 1)[-2:] == ["stopped", "cleaned"]
    assert list(world.engine.boxes) == ["lessor-ls-a-2"]


def test_an_order_to_stop_what_was_never_here_is_answered_with_cleaned(world: World) -> None:
    world.want(want="stop")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["cleaned"]


def test_the_deadline_ends_a_lease_while_the_portal_is_away(world: World) -> None:
    world.want(deadline_s=1)
    world.portal.wait_event("ls-a", "ready")
    world.portal.status = 503
    _until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a")[-3:] == ["deadline", "stopped", "cleaned"]


def test_silence_of_the_portal_ends_a_lease_by_the_agents_own_clock(world: World) -> None:
    world.stop()
    world.silence_s = 2.0
    world.start()
    world.running()
    world.portal.status = 503
    _until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert "not heard" in world.portal.report("ls-a", "stopped")["detail"]


def test_a_revoked_node_asks_no_more_and_keeps_what_runs(world: World) -> None:
    world.running()
    world.portal.status = 401
    world.portal.wait_for(lambda: world.portal.refused > 0, "a refused call")
    world.portal.status = 0
    pulls = len(world.portal.pulls)
    world.reconciler.wake("")
    world.engine.calls.clear()
    _until(lambda: world.engine.calls.count("inspect") > 2)
    assert world.phase() == "running"
    assert (len(world.portal.pulls), world.portal.refused) == (pulls, 1)


def test_reports_wait_for_the_portal_and_keep_their_order(world: World) -> None:
    world.running()
    world.portal.status = 500
    world.engine.exit("lessor-ls-a-1", 1)
    _until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a")[-3:] == ["exited", "stopped", "cleaned"]


def test_an_engine_that_goes_away_does_not_end_a_lease(world: World) -> None:  # case C09
    world.running()
    world.engine.down = True
    world.engine.calls.clear()
    _until(lambda: world.engine.calls.count("inspect") > 3)
    assert world.phase() == "running"
    world.engine.down = False
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_cleaning_waits_for_an_engine_that_is_away(world: World) -> None:  # case C09
    world.running()
    world.engine.down = True
    world.portal.stop("ls-a")
    world.portal.wait_for(lambda: world.phase() == "stopping", "stopping")
    world.engine.down = False
    world.portal.wait_event("ls-a", "cleaned")
    assert world.engine.boxes == {}


def test_memory_that_stays_on_a_gpu_quarantines_that_gpu_only(world: World) -> None:
    world.portal.want(lease("ls-a", [GPU, OTHER_GPU], "here:1"))
    world.portal.wait_event("ls-a", "ready")
    world.cards.memory[OTHER_GPU] = 65 << 20
    world.portal.stop("ls-a")
    evidence = world.portal.wait_event("ls-a", "cleaning_failed")["evidence"]
    assert evidence["quarantine"] == [OTHER_GPU]


def test_memory_and_processes_that_were_there_before_are_no_fault(world: World) -> None:
    world.cards.memory[GPU], world.cards.pids[GPU] = 3 << 30, {77}
    world.running()
    world.cards.memory[GPU] += 60 << 20
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_a_process_that_stays_on_a_gpu_quarantines_it(world: World) -> None:
    world.running()
    world.cards.pids[GPU] = {4242}
    world.portal.stop("ls-a")
    assert world.portal.wait_event("ls-a", "cleaning_failed")["evidence"]["quarantine"] == [GPU]


def test_changed_keys_reach_the_gateway_while_the_lease_runs(world: World) -> None:
    world.running()
    key = ProbeKey.make().public_line
    world.portal.leases["ls-a"]["authorized_keys"] = [key]
    leases = world.directory / "run" / "gateway" / "leases.json"
    _until(lambda: key in leases.read_text())
    assert leases.stat().st_mode & 0o777 == 0o640


def test_the_probe_key_is_gone_once_the_lease_is_ready(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    leases = world.directory / "run" / "gateway" / "leases.json"
    world.portal.wait_event("ls-a", "started")
    assert '"probe_key": "ssh-ed25519 ' in leases.read_text()
    world.proof.gate.set()
    world.portal.wait_event("ls-a", "ready")
    assert '"probe_key": null' in leases.read_text()


def test_an_order_that_cannot_be_read_fails_and_harms_nothing_else(world: World) -> None:
    world.want("ls-bad", memory_bytes="lots")
    world.running()
    world.portal.wait_event("ls-bad", "cleaned")
    assert "memory_bytes" in world.portal.report("ls-bad", "failed")["detail"]
    assert list(world.engine.boxes) == ["lessor-ls-a-1"]


def test_a_damaged_record_does_not_keep_the_agent_from_starting(world: World) -> None:
    world.running()
    world.stop()
    write_private(world.directory / "leases" / "ls-a.json", "{")
    world.start()
    world.portal.wait_for(lambda: world.phase() == "running", "adopted by its labels")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_left_over_volumes_and_networks_are_removed_at_the_next_start(world: World) -> None:
    world.stop()
    (world.directory / "volumes" / "lessor-ls-gone-3").mkdir()
    world.engine.nets.add("lessor-ls-gone-3")
    world.start()
    assert list((world.directory / "volumes").iterdir()) == []
    assert world.engine.nets == set()


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come true")

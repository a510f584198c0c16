"""An agent's core for tests: the portal behind real HTTP, an engine that can be made to fail, GPUs that a test sets."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from nodes.agent.contact import Contact
from nodes.agent.desired import DesiredLease
from nodes.agent.failures import LaunchError
from nodes.agent.gateway_link import GatewayLink
from nodes.agent.gpus import Gpus, GpuUnreadableError
from nodes.agent.holding import Holders, NoHolders
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
        self.holders: Holders = NoHolders()

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
            on_driver_fault=lambda: self.faults.append("driver"), holders=self.holders,
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


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something holds that no call to the portal makes true."""
    done = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come true")

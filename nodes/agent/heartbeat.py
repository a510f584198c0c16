"""Two conversations by the clock: the heartbeat (every 10 s) and the inventory (at start, on change, every 10 min)."""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from nodes.agent import VERSION
from nodes.agent.activity_sampler import ActivitySampler
from nodes.agent.config import Options
from nodes.agent.contact import Contact, boot_id
from nodes.agent.engine import Engine, EngineFacts
from nodes.agent.failures import EngineError
from nodes.agent.gpus import GpuFacts, Gpus
from nodes.agent.hostconfig import GpuRequest
from nodes.agent.log import logger
from nodes.agent.machine import read_machine
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError
from nodes.agent.reconciler import Reconciler
from nodes.agent.store import LeaseRecord

INVENTORY_S = 600.0
FIRST_INVENTORY_S = 10.0
VOLATILE = ("disk_free_bytes",)  # changes all the time, and is no reason to send the inventory


def gpu_request(engine: EngineFacts | None, uuids: tuple[str, ...], *, simulated: bool) -> GpuRequest:
    """How this node hands out GPUs: by CDI where the engine lists every one of them, else by device request."""
    if simulated:
        return "simulated"
    listed = engine.cdi_devices if engine else frozenset()
    return "cdi" if uuids and all(f"nvidia.com/gpu={uuid}" in listed for uuid in uuids) else "device_request"


class Inventory:
    """What this machine is, as the portal takes it."""

    def __init__(self, options: Options, engine: Engine, gpus: Gpus, *, workspace_quota: bool) -> None:
        self._options = options
        self._engine = engine
        self._gpus = gpus
        self._workspace_quota = workspace_quota
        self._known: EngineFacts | None = None

    def read(self) -> dict[str, object]:
        """The facts now; the engine's own are missing until it has answered once, never guessed."""
        engine = self.engine_facts()
        gpus = self._gpus.inventory()
        machine = asdict(read_machine(engine.root_dir if engine else self._options.state_dir))
        machine |= {
            "docker_version": engine.version if engine else None,
            "storage_driver": engine.storage_driver if engine else None,
            "cgroup_version": engine.cgroup_version if engine else None,
        }
        return {
            "boot_id": boot_id(),
            "agent_version": VERSION,
            "simulated": self._options.simulate,
            "driver_version": self._gpus.driver_version(),
            "cuda_version": self._gpus.cuda_version(),
            "ssh_host": self._options.ssh_host,
            "ssh_port": self._options.ssh_port,
            "ssh_host_key": host_key(self._options.state_dir),
            "gpus": [gpu.as_json() for gpu in gpus],
            "machine": machine,
            "capabilities": {
                "gpu_request": gpu_request(engine, tuple(g.uuid for g in gpus), simulated=self._options.simulate),
                "runtimes": [name for name in engine.runtimes if "." not in name] if engine else [],
                "workspace_quota": self._workspace_quota,
            },
        }

    def engine_facts(self) -> EngineFacts | None:
        """The engine's own facts, those it told last while it does not answer, None when it never did."""
        try:
            self._known = self._engine.facts()
        except EngineError as error:
            logger.warning("%s", error)
        return self._known


def host_key(state_dir: Path) -> str:
    """The gateway's public host key line; empty until the gateway has started for the first time."""
    try:
        line = (state_dir / "gateway" / "ssh_host_ed25519_key.pub").read_text()
    except OSError:
        return ""
    return " ".join(line.split()[:2])


class SeesGpus(Protocol):
    """Tells how the GPUs are without waiting for them."""

    def inventory(self) -> tuple[GpuFacts, ...]:
        """The GPUs as they were seen last."""


class Heartbeat:
    """Keeps the portal informed, and the silence rule fed.

    The inventory has a thread of its own, because it asks the engine: one that hangs does not make the node look dead.
    """

    def __init__(
        self,
        portal: PortalClient,
        contact: Contact,
        reconciler: Reconciler,
        inventory: Inventory,
        gpus: SeesGpus,
        activity: ActivitySampler,
        every_s: float,
    ) -> None:
        self._portal = portal
        self._contact = contact
        self._reconciler = reconciler
        self._inventory = inventory
        self._gpus = gpus
        self._activity = activity
        self._every_s = every_s
        self._agent_run = str(uuid4())
        self._stop = threading.Event()
        self._inventoried = threading.Event()
        self._wanted = threading.Event()  # the portal asked for the inventory
        self._threads = [
            threading.Thread(target=self._inventories, name="inventory", daemon=True),
            threading.Thread(target=self._beats, name="heartbeat", daemon=True),
        ]
        self._sent: tuple[object, float] | None = None

    def start(self) -> None:
        """Send the first inventory and heartbeat at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stop.set()
        self._inventoried.set()
        for thread in self._threads:
            thread.join(5)

    def _inventories(self) -> None:
        self._repeat("inventory", self._send_inventory)

    def _beats(self) -> None:
        self._inventoried.wait(FIRST_INVENTORY_S)  # the portal reads of a GPU there before it hears how it is
        self._repeat("heartbeat", self._beat)

    def _repeat(self, name: str, send: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                send()
            except (PortalUnavailableError, PortalRefusedError) as error:
                logger.warning("the portal does not take the %s: %s", name, error)
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one round
                logger.exception("%s failed", name)
            self._stop.wait(self._every_s)

    def _send_inventory(self) -> None:
        facts = self._inventory.read()
        lasting = _without_volatile(facts)
        fresh = self._sent and self._sent[0] == lasting and time.monotonic() < self._sent[1] + INVENTORY_S
        if fresh and not self._wanted.is_set():
            return
        self._wanted.clear()
        self._portal.inventory(facts)
        self._sent = (lasting, time.monotonic())
        self._inventoried.set()

    def _beat(self) -> None:
        activity = self._activity.offer()  # before the leases: what is offered must find its lease among them
        records = self._reconciler.list_for_heartbeat()
        if records is None:
            logger.warning("no heartbeat yet: the engine has not told what runs here")
            return
        leases = [_entry(r, activity.get((r.lease_id, r.generation))) for r in records]
        gpus = [{"uuid": g.uuid, "healthy": g.healthy, "fault": g.fault} for g in self._gpus.inventory()]
        answer = self._portal.heartbeat(
            {
                "boot_id": boot_id(),
                "agent_run": self._agent_run,
                "clock": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "leases": leases,
                "gpus": gpus,
            }
        )
        self._activity.answered()
        self._contact.store()
        for lease_id in answer.unknown:
            self._reconciler.wake(lease_id)
        if answer.inventory:
            self._wanted.set()


def _entry(record: LeaseRecord, activity: dict[str, object] | None) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": record.lease_id, "generation": record.generation, "phase": record.phase,
        "container_id": record.container_id,
    }  # fmt: skip
    return {**entry, "activity": activity} if activity and record.phase == "running" else entry


def _without_volatile(facts: dict[str, object]) -> object:
    machine = facts["machine"]
    steady = {k: v for k, v in machine.items() if k not in VOLATILE} if isinstance(machine, dict) else machine
    return {**facts, "machine": steady}

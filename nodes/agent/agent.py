"""Puts the agent together from its parts, in the order in which they may start and stop."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TextIO

from nodes.agent.activity_sampler import ActivitySampler
from nodes.agent.config import Identity, Options
from nodes.agent.contact import Contact
from nodes.agent.engine import DockerEngine, Engine
from nodes.agent.execd import Execd
from nodes.agent.failures import AgentError
from nodes.agent.gateway_link import GatewayLink, group_id, share_directory
from nodes.agent.gpu_faults import FaultBook
from nodes.agent.gpu_watch import GpuWatch
from nodes.agent.gpus import Gpus
from nodes.agent.heartbeat import Heartbeat, Inventory, gpu_request
from nodes.agent.holderbook import BOOK, HolderBook
from nodes.agent.holders import HolderPool
from nodes.agent.hostconfig import NodeFacts
from nodes.agent.images import ImagePool
from nodes.agent.links import keep_range
from nodes.agent.nest import HOLDER_PROGRAM, Nest
from nodes.agent.network import HostRules
from nodes.agent.parts import Parts
from nodes.agent.portal import PortalClient
from nodes.agent.preflight import Preflight, PreflightKeeper
from nodes.agent.probe import Prover, SshProver
from nodes.agent.reachable import running_container
from nodes.agent.reconciler import Reconciler
from nodes.agent.ssh_events import SshEvents
from nodes.agent.ssh_watch import SshWatch
from nodes.agent.store import Store
from nodes.agent.volumes import Volumes
from nodes.agent.worker import WakeWorker


class Agent:
    """One node's agent. Tests hand in their own engine, rules or prover."""

    def __init__(
        self,
        options: Options,
        identity: Identity,
        *,
        engine: Engine | None = None,
        rules: HostRules | None = None,
        prover: Prover | None = None,
    ) -> None:
        self._options = options
        self._identity = identity
        state, run = options.state_dir, options.run_dir
        prepare_directories(options)
        self._lock = take_lock(state)
        self._contact = Contact(state / "contact.json", identity.silence_s)
        self._portal = PortalClient(identity.portal_url, identity.node_token, self._contact)
        self._engine = engine or DockerEngine(options.docker_socket)
        faults = FaultBook(state / "gpu-faults")
        self._gpus = Gpus(options.nvml, faults.why)
        self._gpu_watch = GpuWatch(
            self._gpus, faults, options.kernel_log, on_silent=self._driver_silent, on_back=self._driver_fault
        )
        network = keep_range(state / "holders.range", options.holder_network)
        self._rules = rules or HostRules(holders=network)
        self._holders = HolderPool(
            self._engine,
            identity.node_id,
            Nest(self._engine, identity.node_id, options.bundle_dir / HOLDER_PROGRAM),
            HolderBook(state / BOOK),
            network,
            options.holder_count(len(self._gpus.inventory())),
        )
        gateway = GatewayLink(run, options.gateway_group)
        volumes = Volumes(state / "volumes")
        self._inventory = Inventory(options, self._engine, self._gpus, workspace_quota=volumes.quota)
        self._parts = Parts(
            engine=self._engine,
            images=ImagePool(self._engine),
            volumes=volumes,
            gateway=gateway,
            gpus=self._gpus,
            prover=prover or SshProver(gateway, options.local_ssh_port),
            portal=self._portal,
            contact=self._contact,
            store=Store(state / "leases"),
            threads=ThreadPoolExecutor(16, thread_name_prefix="prepare"),
            node_facts=self._node_facts,
            on_driver_fault=self._driver_fault,
            holders=self._holders,
            cleaning_limit_s=options.cleaning_limit_s,
        )
        self._ssh_events = SshEvents(self._portal, state / "gateway" / "audit.log", state / "ssh_events.json")
        self.reconciler = Reconciler(self._parts, self._rules, identity.node_id, identity.pull_s)
        self._ssh_watch = SshWatch(
            self.reconciler.records, gateway, SshProver(gateway, options.local_ssh_port), self._portal,
            port=options.local_ssh_port, file=state / "ssh_watch.json",
        )  # fmt: skip
        self._activity = ActivitySampler(
            self.reconciler.records, self._engine, self._gpus, gateway, every_s=options.sample_s
        )
        self._heartbeat = Heartbeat(
            self._portal, self._contact, self.reconciler, self._inventory, self._gpu_watch, self._activity,
            identity.heartbeat_s,
        )  # fmt: skip
        preflight = Preflight(
            options=options, engine=self._engine, gpus=self._gpus, volumes=volumes, rules=self._rules, gateway=gateway,
            holders=self._holders, node_facts=self._node_facts, leased=self._leased,
        )  # fmt: skip
        self._preflight = PreflightKeeper(preflight, self._portal)
        reachable = partial(running_container, self.reconciler, self._engine)
        self._execd = Execd(
            socket_path=run / "execd.sock", docker_socket=options.docker_socket, lookup=reachable,
            group=options.gateway_group if group_id(options.gateway_group) is not None else None,
        )  # fmt: skip
        self._worker = (
            WakeWorker(identity.broker_url, identity.queue, self.reconciler.wake) if identity.broker_url else None
        )

    def start(self) -> None:
        """Rules first, then what runs already, then what is new.

        Raises:
            AgentError: the network rules cannot be set; nothing was started.
        """
        self._rules.ensure()
        self._cached_facts = self._read_node_facts()
        self._gpu_watch.start()
        self._execd.start()
        self.reconciler.start()
        self._activity.start()
        self._heartbeat.start()
        self._ssh_watch.start()
        self._ssh_events.start()
        self._preflight.start()
        if self._worker:
            self._worker.start()

    def stop(self) -> None:
        """Leave every lease running and end."""
        if self._worker:
            self._worker.stop()
        self._ssh_events.stop()
        self._ssh_watch.stop()
        self._preflight.stop()
        self._heartbeat.stop()
        self._gpu_watch.stop()
        self._activity.stop()
        self.reconciler.stop()
        self._holders.stop()
        self._parts.images.close()
        self._execd.stop()
        self._parts.threads.shutdown(wait=False, cancel_futures=True)
        self._lock.close()

    def _leased(self) -> frozenset[str]:
        return frozenset(device for record in self.reconciler.records() for device in record.devices)

    def _node_facts(self) -> NodeFacts:
        if not self._facts_are_certain:  # the engine was not up when they were read
            self._cached_facts = self._read_node_facts()
        return self._cached_facts

    def _read_node_facts(self) -> NodeFacts:
        uuids = tuple(gpu.uuid for gpu in self._gpus.inventory())
        engine = self._inventory.engine_facts()
        self._facts_are_certain = engine is not None
        request = gpu_request(engine, uuids, simulated=self._options.simulate)
        return NodeFacts(
            self._identity.node_id, request, self._options.bundle_dir, self._options.nofile, self._options.memlock
        )

    def _driver_silent(self) -> None:
        self._preflight.refuse("gpus", "the NVIDIA driver does not answer")

    def _driver_fault(self) -> None:
        self._cached_facts = self._read_node_facts()
        self._preflight.ask()


def prepare_directories(options: Options) -> None:
    """STATE and RUN with the modes that let the gateway reach its own parts and nothing else."""
    for directory in (options.state_dir, options.run_dir):
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o711)
        share_directory(directory / "gateway", options.gateway_group)


def take_lock(state_dir: Path) -> TextIO:
    """Hold the state directory for this process.

    Raises:
        AgentError: another agent holds it.
    """
    stream = (state_dir / "agent.lock").open("a+")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.seek(0)
        holder = stream.read().strip() or "unknown"
        stream.close()
        raise AgentError(f"Another agent (pid {holder}) already works on {state_dir}. Stop it first.") from error
    stream.truncate(0)
    stream.write(str(os.getpid()))
    stream.flush()
    return stream

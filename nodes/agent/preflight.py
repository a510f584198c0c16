"""Could a lease run here? One container with one GPU, made the way a lease is, whose main process is the probe.

Where the node keeps networks ready, it joins one of them, as leases do, and the probe waits for its host name: that is
the last step of a start there, behind the look whether the network is the right one.

Runs at start, after a fault that speaks against the driver, and again with growing pauses until it succeeds. What it
finds decides whether the portal sells this node.
"""

import threading
from collections.abc import Callable

from nodes.agent.advice import with_advice
from nodes.agent.config import Options
from nodes.agent.desired import DesiredLease, container_name
from nodes.agent.engine import Engine
from nodes.agent.failures import AgentError, EngineError, LaunchError
from nodes.agent.gateway_link import GatewayDownError, GatewayLink
from nodes.agent.gpus import Gpus
from nodes.agent.holderbook import Holder
from nodes.agent.holding import Holders
from nodes.agent.hostconfig import (
    BUNDLE_TARGET,
    JOINING_RUNTIMES,
    RUNTIME,
    NodeFacts,
    build_body,
    check_hostconfig,
    labels,
)
from nodes.agent.log import logger
from nodes.agent.network import HostRules, bridge_name
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError
from nodes.agent.probe import parse_probe
from nodes.agent.settling import settle
from nodes.agent.volumes import Volumes

LEASE_ID, GENERATION = "ls-preflight", 1
NAME = container_name(LEASE_ID, GENERATION)
ROLE = "preflight"
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 300.0
RUN_LIMIT_S = 60.0
BUNDLE_FILES = ("bin/busybox", "bin/sftp-server", "bin/rsync", "bin/probe")

BUSYBOX, PROBE = f"{BUNDLE_TARGET}/bin/busybox", f"{BUNDLE_TARGET}/bin/probe"
WHEN_SETTLED = f'until [ "$({BUSYBOX} hostname)" = {LEASE_ID} ]; do {BUSYBOX} sleep 0.01; done; exec {PROBE}'

Check = tuple[str, Callable[[], str]]


class NothingToTestError(Exception):
    """Every healthy GPU is leased: nothing can be tried now, which is no fault."""


class Preflight:
    """The checks of one node. `leased` tells which devices are in use and must be left alone."""

    def __init__(
        self,
        *,
        options: Options,
        engine: Engine,
        gpus: Gpus,
        volumes: Volumes,
        rules: HostRules,
        gateway: GatewayLink,
        holders: Holders,
        node_facts: Callable[[], NodeFacts],
        leased: Callable[[], frozenset[str]],
    ) -> None:
        self._options = options
        self._engine = engine
        self._gpus = gpus
        self._volumes = volumes
        self._rules = rules
        self._gateway = gateway
        self._holders = holders
        self._node_facts = node_facts
        self._leased = leased

    def run(self, *, doubt: bool = False) -> tuple[bool, list[dict[str, object]]]:
        """Whether all is well, and each check up to the first that is not.

        With `doubt` something speaks against the node: that nothing could be tried is no answer to it.
        """
        checks: tuple[Check, ...] = (
            ("engine", lambda: f"Docker {self._engine.facts().version}"),
            ("gpus", self._check_gpus),
            ("bundle", self._check_bundle),
            ("network_rules", self._check_rules),
            ("gateway", self._check_gateway),
            ("container", self._check_container),
        )
        results: list[dict[str, object]] = []
        for name, check in checks:
            try:
                results.append({"name": name, "ok": True, "detail": check()})
            except NothingToTestError as reason:
                words = f"something failed here, and {reason}" if doubt else str(reason)
                results.append({"name": name, "ok": not doubt, "detail": words})
            except (AgentError, EngineError, LaunchError, GatewayDownError, OSError, ValueError) as error:
                results.append({"name": name, "ok": False, "detail": self._explain(str(error)[:300])[:500]})
                return False, results
        return all(result["ok"] for result in results), results

    def _explain(self, problem: str) -> str:
        try:
            return with_advice(problem, self._engine.facts())
        except EngineError:
            return problem

    def _check_gpus(self) -> str:
        healthy = [gpu for gpu in self._gpus.inventory() if gpu.healthy]
        if not healthy:
            raise AgentError("no healthy GPU on this node")
        return f"{len(healthy)} healthy, handed out by {self._node_facts().gpu_request}"

    def _check_bundle(self) -> str:
        missing = [name for name in BUNDLE_FILES if not (self._options.bundle_dir / name).is_file()]
        if missing:
            raise AgentError(f"{self._options.bundle_dir} lacks {', '.join(missing)}; run deploy/bundle/build")
        return str(self._options.bundle_dir)

    def _check_rules(self) -> str:
        self._rules.ensure()
        return "private, metadata and neighbour addresses are closed to leases"

    def _check_gateway(self) -> str:
        return self._gateway.ask(LEASE_ID).host_key

    def _check_container(self) -> str:
        devices = (self._free_gpu(),)
        image = self._image()
        self._tidy()
        try:
            holder = self._network()
            source, seen = self._probe(image, devices, holder)
        finally:
            self._tidy()
        if seen != devices:
            raise AgentError(f"a container given {devices[0]} sees {', '.join(seen) or 'no GPU'}")
        where = "a network that was ready" if holder else "a network of its own"
        return f"{devices[0]} seen by {source} inside a container in {where}"

    def _network(self) -> Holder | None:
        holder = self._holders.take(NAME, LEASE_ID) if RUNTIME in JOINING_RUNTIMES else None
        if not holder:
            self._engine.network_create(NAME, bridge_name(NAME), self._labels())
        return holder

    def _probe(self, image: str, devices: tuple[str, ...], holder: Holder | None) -> tuple[str, tuple[str, ...]]:
        container = self._create(image, devices, holder)
        self._engine.start(container)
        facts = self._engine.inspect(container) if holder else None
        if facts:
            settle(self._engine, self._holders, facts, holder, hostname=LEASE_ID)
        self._engine.wait(container, RUN_LIMIT_S)
        return parse_probe(self._engine.logs(container))

    def _create(self, image: str, devices: tuple[str, ...], holder: Holder | None) -> str:
        lease = DesiredLease(
            id=LEASE_ID, generation=GENERATION, want="run", stop_reason="", devices=devices, image=image,
            cpus_milli=1000, memory_bytes=512 << 20, shm_bytes=64 << 20, pids=256, workspace_bytes=16 << 20,
            authorized_keys=(), deadline_s=None, stop_grace_s=0,
        )  # fmt: skip
        workspace = self._volumes.ensure(NAME, lease.workspace_bytes)
        body = build_body(lease, self._node_facts(), workspace, holder)
        own = {"Labels": self._labels(), "Entrypoint": [BUSYBOX, "sh", "-c", WHEN_SETTLED], "Cmd": []}
        container = self._engine.create(NAME, {**body, **own})
        facts = self._engine.inspect(container)
        deviations = check_hostconfig(facts.inspect, body) if facts else ["it is gone"]
        if deviations:
            raise AgentError("the container is not as ordered: " + "; ".join(deviations))
        return container

    def _labels(self) -> dict[str, str]:
        return labels(self._node_facts().node_id, LEASE_ID, GENERATION, ROLE)

    def _free_gpu(self) -> str:
        leased = self._leased()
        for gpu in self._gpus.inventory():
            if gpu.healthy and not gpu.mig_mode and gpu.uuid not in leased:
                return gpu.uuid
        raise NothingToTestError("every healthy GPU is leased: not tried")

    def _image(self) -> str:
        wanted = self._options.workspace_image
        if wanted and self._engine.local_image(wanted):
            return wanted
        images = self._engine.local_images()
        if not images:
            raise AgentError(f"the engine has no image to try with; load {wanted or 'the workspace image'}")
        return images[0]

    def _tidy(self) -> None:
        self._engine.remove(NAME)
        self._holders.release(NAME)
        self._engine.network_remove(NAME)
        self._volumes.remove(NAME)


class PreflightKeeper:
    """Runs the preflight on its own thread whenever there is reason to."""

    def __init__(self, preflight: Preflight, portal: PortalClient) -> None:
        self._preflight = preflight
        self._portal = portal
        self._asked = threading.Event()
        self._stopping = False
        self._doubt = False
        self._thread = threading.Thread(target=self._run, name="preflight", daemon=True)

    def start(self) -> None:
        """Run the first one now."""
        self._asked.set()
        self._thread.start()

    def ask(self) -> None:
        """Something speaks against this node: look again."""
        self._doubt = True
        self._asked.set()

    def refuse(self, name: str, detail: str) -> None:
        """Something that keeps the checks themselves from ending: the node sells nothing until the next good run.

        Raises:
            PortalUnavailableError, PortalRefusedError: the portal does not know yet.
        """
        self._portal.preflight(ok=False, checks=[{"name": name, "ok": False, "detail": detail}])

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._asked.set()
        self._thread.join(5)

    def _run(self) -> None:
        delay: float | None = None
        while True:
            self._asked.wait(delay)
            self._asked.clear()
            if self._stopping:
                return
            delay = None if self._once() else min((delay or FIRST_RETRY_S / 2) * 2, LONGEST_RETRY_S)

    def _once(self) -> bool:
        doubt, self._doubt = self._doubt, False
        try:
            ok, checks = self._preflight.run(doubt=doubt)
            self._doubt = self._doubt or not ok
            level = logger.info if ok else logger.error
            level("preflight: %s", "; ".join(f"{c['name']}: {c['detail']}" for c in checks))
            self._portal.preflight(ok=ok, checks=checks)
        except (PortalUnavailableError, PortalRefusedError) as error:
            logger.warning("the preflight's result waits: %s", error)
            self._doubt = self._doubt or doubt
            return False
        except Exception:  # noqa: BLE001  # tried again; the thread must outlive a bug
            logger.exception("preflight failed")
            return False
        return ok

"""Desired state against what is here: one thread pulls and hands each lease's word to its actor, one looks for orphans.

All pulls go through one thread one after the other, so an older answer never overtakes a newer one. That thread never
calls the engine: an engine that hangs keeps no order waiting.
"""

import threading
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from nodes.agent.actor import Actor
from nodes.agent.contact import now
from nodes.agent.desired import LEASE_ID, DesiredInvalidError, DesiredLease, lease_id_of, lease_of_name, parse_lease
from nodes.agent.engine import ContainerFacts
from nodes.agent.failures import AgentError, EngineError
from nodes.agent.hostconfig import ROLE
from nodes.agent.log import logger
from nodes.agent.network import HostRules
from nodes.agent.parts import Parts
from nodes.agent.portal import PortalRefusedError, PortalUnavailableError, Report
from nodes.agent.store import LeaseRecord

FIRST_RETRY_S = 1.0
REMEMBERED = 2000  # finished leases whose late, doubled orders are recognised


class Reconciler:
    """The actors of one node."""

    def __init__(self, parts: Parts, rules: HostRules, node_id: str, pull_s: float) -> None:
        self._parts = parts
        self._rules = rules
        self._node_id = node_id
        self._pull_s = pull_s
        self._actors: dict[str, Actor] = {}
        self._left: dict[str, LeaseRecord] = {}
        self._finished: dict[str, int] = {}
        self._lock = threading.Lock()
        self._wakes: set[str] = set()
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._looked = threading.Event()
        self._adopted = threading.Event()
        self._listed = 0  # lists made for heartbeats so far
        self._threads = [
            threading.Thread(target=self._run, name="reconciler", daemon=True),
            threading.Thread(target=self._upkeep, name="upkeep", daemon=True),
            threading.Thread(target=self._listen, name="engine-events", daemon=True),
        ]

    def start(self) -> None:
        """Adopt what an earlier agent left, without touching it, then begin to pull."""
        self._adopt()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End every thread; containers, volumes and networks stay as they are."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        with self._lock:
            actors = list(self._actors.values())
        for actor in actors:
            actor.close()
        for actor in actors:
            actor.join(5)
        self._threads[0].join(5)

    def wake(self, lease_id: str) -> None:
        """Ask the portal about one lease, or about everything ("") , as soon as possible."""
        if lease_id and not LEASE_ID.fullmatch(lease_id):
            logger.warning("a wake-up named no lease")
            return
        with self._changed:
            self._wakes.add(lease_id)
            self._changed.notify_all()

    def records(self) -> tuple[LeaseRecord, ...]:
        """What is here now, as copies; at most one per lease."""
        with self._lock:
            return self._records()

    def has_adopted(self, wait_s: float) -> bool:
        """Whether `records` names what an earlier agent left; waits for it while that is being looked at."""
        return self._adopted.wait(wait_s)

    def list_for_heartbeat(self) -> tuple[LeaseRecord, ...] | None:
        """What is here or is being begun; None as long as the engine has not told what it has.

        A lease that is missing from a heartbeat may give its devices away. So an answer of the portal that was asked
        for before a list was made begins no lease after it: it is asked for again.
        """
        with self._lock:
            if not self._looked.is_set():
                return None
            self._listed += 1
            return self._records()

    def _records(self) -> tuple[LeaseRecord, ...]:
        held = (actor.record or actor.promised for actor in self._actors.values())
        return (*(record for record in held if record), *self._left.values())

    # Pulling ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_whole, delay = now(), FIRST_RETRY_S
        while not self._stop.is_set():
            wakes = self._take_wakes(next_whole)
            if self._stop.is_set():
                return
            try:
                if "" in wakes or now() >= next_whole:
                    self._pull_everything()
                    next_whole = now() + self._pull_s
                else:
                    for lease_id in sorted(wakes):
                        self._pull_one(lease_id)
                delay = FIRST_RETRY_S
            except (PortalUnavailableError, PortalRefusedError) as error:
                logger.warning("the portal did not say what it wants: %s", error)
                next_whole = now() + delay
                delay = min(delay * 2, self._pull_s)
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one pull
                logger.exception("reconciling failed")
                next_whole = now() + self._pull_s

    def _take_wakes(self, next_whole: float) -> set[str]:
        with self._changed:
            self._changed.wait_for(lambda: self._wakes or self._stop.is_set(), timeout=max(0.0, next_whole - now()))
            wakes, self._wakes = self._wakes, set()
        return wakes

    def _pull_one(self, lease_id: str) -> None:
        listed = self._listed
        answer = self._parts.portal.desired(lease_id)
        self._hand_out({lease_id}, answer.leases, listed)

    def _pull_everything(self) -> None:
        with self._lock:
            here, listed = set(self._actors) | set(self._left), self._listed
        answer = self._parts.portal.desired()
        self._hand_out(here, answer.leases, listed)

    def _hand_out(self, asked: Iterable[str], leases: Iterable[Mapping[str, object]], listed: int) -> None:
        unnamed = set(asked)
        for raw in leases:
            lease_id = lease_id_of(raw)
            if lease_id is None:
                logger.error("the portal named a lease in a form this node does not accept")
                continue
            unnamed.discard(lease_id)
            try:
                self._order(lease_id, parse_lease(raw), listed)
            except DesiredInvalidError as error:
                self._refuse(lease_id, raw, error)
        for lease_id in unnamed:
            self._order(lease_id, None, listed)

    def _order(self, lease_id: str, lease: DesiredLease | None, listed: int) -> None:
        with self._lock:
            actor = self._actors.get(lease_id)
            if actor is None:
                record = self._left.pop(lease_id, None)
                late = lease is None or lease.generation <= self._finished.get(lease_id, 0)
                if record is None and late:
                    return
                if record is None and listed != self._listed:
                    self.wake(lease_id)  # see list_for_heartbeat
                    return
                actor = self._make_actor(lease_id, record)
            actor.order(lease)

    def _refuse(self, lease_id: str, raw: Mapping[str, object], error: DesiredInvalidError) -> None:
        logger.error("lease %s cannot be carried out: %s", lease_id, error)
        generation = raw.get("generation")
        if raw.get("want") == "run" and isinstance(generation, int) and lease_id not in self._actors:
            self._parts.portal.report(
                Report(
                    lease_id,
                    generation,
                    "failed",
                    detail=f"The node refused the order: {error}.",
                    failure=error.failure,
                )
            )
            self._parts.portal.report(Report(lease_id, generation, "cleaned", evidence={"steps": []}))

    def _make_actor(self, lease_id: str, record: LeaseRecord | None) -> Actor:
        actor = Actor(self._parts, lease_id, record=record, wake=self.wake, on_gone=self._gone)
        self._actors[lease_id] = actor
        actor.begin()
        return actor

    def _gone(self, actor: Actor) -> None:
        with self._lock:
            self._actors.pop(actor.lease_id, None)
            if record := actor.record:
                self._left[actor.lease_id] = record  # it failed: the next whole pull tries again from here
                return
            if actor.finished:
                self._finished[actor.lease_id] = actor.finished
            while len(self._finished) > REMEMBERED:
                self._finished.pop(next(iter(self._finished)))
            # Under the lock under which orders are given: one that came in while the actor was on its way out.
            missed = actor.has_news
        if missed:
            self.wake(actor.lease_id)  # it is asked for again

    # Adopting ---------------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        records = {record.lease_id: record for record in self._parts.store.load()}
        for facts in self._containers():
            record = record_of(facts)
            if record and record.lease_id not in records:
                records[record.lease_id] = record
        self._parts.gateway.retain(records)
        self._parts.holders.start(records)
        with self._lock:
            for lease_id, record in records.items():
                self._make_actor(lease_id, record)
        self._adopted.set()
        self._sweep(records)

    def _sweep(self, kept: Container[str]) -> None:
        """Volumes and networks that a failed cleaning left behind, tried once more at each start."""
        volumes, engine = self._parts.volumes, self._parts.engine
        for name in volumes.names():
            if lease_of_name(name) not in kept:
                self._try_to(partial(volumes.remove, name))
        try:
            networks = engine.networks(f"lessor.node={self._node_id}")
        except EngineError:
            return  # the engine is not up yet; what is left waits for the next start
        for name in networks:
            if lease_of_name(name) not in kept:
                self._try_to(partial(engine.network_remove, name))

    def _try_to(self, remove: Callable[[], None]) -> None:
        try:
            remove()
        except (AgentError, EngineError, OSError) as error:
            logger.warning("a left-over cannot be removed: %s", error)

    def _upkeep(self) -> None:
        while not self._stop.wait(self._pull_s):
            try:
                self._adopt_orphans()
                self._reassert_rules()
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one round
                logger.exception("upkeep failed")

    def _adopt_orphans(self) -> None:
        """A container of ours without an actor gets one; what the portal then says of it decides."""
        with self._lock:
            known = set(self._actors) | set(self._left)  # before the look: what ends during it is no orphan
        for facts in self._containers():
            record = record_of(facts)
            if record and record.lease_id not in known:
                with self._lock:
                    if record.lease_id in self._actors or record.lease_id in self._left:
                        continue
                    self._make_actor(record.lease_id, record)
                self.wake(record.lease_id)

    def _containers(self) -> tuple[ContainerFacts, ...]:
        try:
            found = self._parts.engine.containers(f"lessor.node={self._node_id}")
        except EngineError as error:
            logger.warning("the engine does not list its containers: %s", error)
            return ()
        self._looked.set()
        return tuple(facts for facts in found if facts.labels.get("lessor.role") == ROLE)

    def _reassert_rules(self) -> None:
        # Firewall services flush what they do not know; a lease must not notice.
        try:
            self._rules.ensure()
        except AgentError as error:
            logger.error("the network rules of leases cannot be set: %s", error)

    def _listen(self) -> None:
        while not self._stop.is_set():
            try:
                for labels in self._parts.engine.exits(self._stop):
                    self._poke(labels.get("lessor.lease", ""))
            except EngineError:
                self._stop.wait(FIRST_RETRY_S)  # quiet for a minute, or gone: listen anew
            self._poke("")

    def _poke(self, lease_id: str) -> None:
        with self._lock:
            actors = [actor for name, actor in self._actors.items() if lease_id in {"", name}]
        for actor in actors:
            actor.poke()


def record_of(facts: ContainerFacts) -> LeaseRecord | None:
    """What a container's labels say about the lease it belongs to; for one whose record was lost."""
    lease_id, generation = facts.labels.get("lessor.lease", ""), facts.labels.get("lessor.generation", "")
    if not LEASE_ID.fullmatch(lease_id) or not generation.isdigit():
        return None
    requests = facts.inspect["HostConfig"].get("DeviceRequests") or []
    devices = [str(device).rpartition("=")[2] for request in requests for device in request.get("DeviceIDs") or ()]
    if not devices:
        entries = [e for e in facts.inspect["Config"].get("Env") or () if e.startswith("NVIDIA_VISIBLE_DEVICES=")]
        devices = entries[0].partition("=")[2].split(",") if entries else []
    return LeaseRecord(lease_id, int(generation), "started", tuple(devices), container_id=facts.id)

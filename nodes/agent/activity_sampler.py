"""Looks at every running lease every 15 s and keeps what it did until a heartbeat has brought it to the portal.

A look costs a few small files and calls to the driver. The engine is asked once per lease, for its first process, and
on a thread of its own: an engine that hangs delays the first look at a new lease and nothing else.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass

from nodes.agent.activity import Activity, Signal, Unsent
from nodes.agent.activity_counters import Container
from nodes.agent.activity_gpus import LeaseGpus
from nodes.agent.desired import container_name
from nodes.agent.engine import Engine
from nodes.agent.failures import EngineError
from nodes.agent.gateway_link import GatewayDownError, GatewayLink
from nodes.agent.gpus import Gpus
from nodes.agent.log import logger
from nodes.agent.store import LeaseRecord

EVERY_S = 15.0
POLL_S = 2.0  # shorter than any work that must be seen where the driver keeps no samples
ROUNDING_S = 0.1  # of the gateway's seconds
NANO_CPUS = 1e9
SHORTEST_S = 1.0  # below that the start of one program looks like work

Key = tuple[str, int]  # lease id and generation


class _Rate:
    """How fast a counter grows, in its units per second."""

    def __init__(self, value: float | None, at: float) -> None:
        self._last = None if value is None else (value, at)

    def until(self, value: float | None, at: float) -> float | None:
        """The rate since the last value that could be read; None where one of the two could not."""
        if value is None:
            return None
        last, self._last = self._last, (value, at)
        if last is None or value < last[0] or at <= last[1]:
            return None
        return (value - last[0]) / (at - last[1])


@dataclass(frozen=True)
class _Inputs:
    """What the gateway said: seconds since the last input of each lease, between two moments of ours."""

    asked_at: float
    answered_at: float
    last_s: dict[str, float | None]

    def any_since(self, lease_id: str, asked_before: float) -> bool:
        """Whether somebody sent something after the question before; late answers make it earlier, never later."""
        last_s = self.last_s.get(lease_id)
        return last_s is not None and last_s <= self.answered_at - asked_before + ROUNDING_S


class _Lease:
    """One running lease under watch, from the moment this is made."""

    def __init__(self, container: Container, gpus: LeaseGpus, at: float) -> None:
        self.unsent = Unsent()
        self.gpus = gpus
        self._container = container
        self._at = self._asked_at = at
        self._cpu = _Rate(container.cpu_s(), at)
        self._network = _Rate(container.network_bytes(), at)

    def look(self, at: float, inputs: _Inputs | None, lease_id: str) -> Activity:
        """What happened since the last look; `inputs` is None where the gateway did not answer."""
        cpu = self._cpu.until(self._container.cpu_s(), at)
        network = self._network.until(self._container.network_bytes(), at)
        signals: dict[str, Signal] = {
            **self.gpus.read(),
            "cpu_percent": None if cpu is None else round(100 * cpu / self._container.cores, 2),
            "network_bytes_per_s": None if network is None else round(network),
            "ssh_input": None,
        }
        if inputs is not None:
            signals["ssh_input"] = inputs.any_since(lease_id, self._asked_at)
            self._asked_at = inputs.asked_at
        covers_s, self._at = at - self._at, at
        return Activity(covers_s, signals)


@dataclass
class _Watched:
    devices: tuple[str, ...]
    look_up: Future[Container | None]
    lease: _Lease | None = None


class ActivitySampler:
    """The activity of all running leases of a node; safe to use from several threads."""

    def __init__(
        self,
        records: Callable[[], Iterable[LeaseRecord]],
        engine: Engine,
        gpus: Gpus,
        gateway: GatewayLink,
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        """`records` are the leases here now; `executor` is where the engine is asked."""
        self._records = records
        self._engine = engine
        self._gpus = gpus
        self._gateway = gateway
        self._every_s = max(every_s, SHORTEST_S)
        self._clock = clock
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="activity-look-up")
        self._watched: dict[Key, _Watched] = {}
        self._lock = threading.Lock()  # of what is not sent; never held while something outside is asked
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="activity", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(5)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def offer(self) -> dict[Key, dict[str, object]]:
        """What the next heartbeat must carry, by lease; a lease of which the portal knows everything is missing."""
        with self._lock:
            offers = {key: watched.lease.unsent.offer() for key, watched in self._watched.items() if watched.lease}
        return {key: activity.as_json() for key, activity in offers.items() if activity}

    def answered(self) -> None:
        """The portal has what was offered last."""
        with self._lock:
            for watched in self._watched.values():
                if watched.lease:
                    watched.lease.unsent.answered()

    def poll(self) -> None:
        """See which leases run now, and look at what cannot wait for the next whole look."""
        running = {(r.lease_id, r.generation): r for r in self._records() if r.phase == "running"}
        with self._lock:
            self._watched = {key: watched for key, watched in self._watched.items() if key in running}
        for key, record in running.items():
            watched = self._watched.get(key)
            if watched is None:
                self._watch(key, record)
            elif watched.lease:
                watched.lease.gpus.poll()
            elif watched.look_up.done():
                self._begin(key, watched)

    def look(self) -> None:
        """Measure every lease under watch."""
        leases = [(key, watched.lease) for key, watched in self._watched.items() if watched.lease]
        inputs = self._inputs() if leases else None
        for (lease_id, _), lease in leases:
            activity = lease.look(self._clock(), inputs, lease_id)
            with self._lock:
                lease.unsent.add(activity)

    def _run(self) -> None:
        pause = min(POLL_S, self._every_s)
        next_look = self._clock() + self._every_s
        while not self._stop.wait(pause):
            try:
                self.poll()
                if self._clock() >= next_look:
                    next_look = self._clock() + self._every_s
                    self.look()
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one look
                logger.exception("the activity of leases cannot be measured")

    def _watch(self, key: Key, record: LeaseRecord) -> None:
        watched = _Watched(record.devices, self._executor.submit(self._look_up, record))
        with self._lock:
            self._watched[key] = watched

    def _begin(self, key: Key, watched: _Watched) -> None:
        container = watched.look_up.result()
        if container is None:
            with self._lock:
                del self._watched[key]  # it is asked for again
            return
        lease = _Lease(container, LeaseGpus(self._gpus, watched.devices), self._clock())
        with self._lock:
            watched.lease = lease

    def _look_up(self, record: LeaseRecord) -> Container | None:
        try:
            facts = self._engine.inspect(container_name(record.lease_id, record.generation))
        except EngineError as error:
            logger.warning("lease %s cannot be measured yet: %s", record.lease_id, error)
            return None
        if not facts or not facts.pid:
            return None  # it has just ended
        milli = record.desired.cpus_milli if record.desired else 0
        cores = facts.inspect["HostConfig"].get("NanoCpus", 0) / NANO_CPUS or milli / 1000 or os.cpu_count() or 1
        return Container.find(facts.pid, cores)

    def _inputs(self) -> _Inputs | None:
        asked_at = self._clock()
        try:
            last_s = self._gateway.last_inputs()
        except GatewayDownError as error:
            logger.warning("whether somebody types is not known: %s", error)
            return None
        return _Inputs(asked_at, self._clock(), last_s)

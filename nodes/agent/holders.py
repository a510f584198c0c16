"""Network holders: networks that are ready before the lease they are for is ordered (docs/decisions/0007).

A holder is a container whose only process has made itself a network namespace and sleeps; one holder, one network, one
lease. A lease's container joins it instead of waiting for a network of its own. A network is used once: when its lease
has ended, the process of the holder moves on to a new namespace, with a new interface and another address, and the old
one ends with the last that is left in it. Where that cannot be, the holder is removed and another is made.

Holders set out from the nest, a container with an empty network. A holder is kept only when it has left the nest, so a
lease never comes to lie in a namespace that is the machine's or another lease's.
"""

import os
import signal
import threading
import time
import uuid
from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from nodes.agent import links
from nodes.agent.contact import now
from nodes.agent.desired import lease_of_name
from nodes.agent.engine import ContainerFacts, Engine
from nodes.agent.failures import AgentError, EngineError
from nodes.agent.holderbook import PREFIX, Holder, HolderBook, holder_of, joined
from nodes.agent.holderbox import NEST_ROLE, ROLE, holder_body
from nodes.agent.log import logger
from nodes.agent.namespaces import network_of
from nodes.agent.nest import Nest
from nodes.agent.network import holder_interface, lease_resolvers

LEAVE_NEST_S, POLL_S = 10.0, 0.003
CHECK_S = 5.0  # between two looks at every holder
QUIET_S = 0.3  # no refill while launches follow one another so closely,
PATIENCE_S = 2.0  # unless the pool has been short for so long
RETRY_S = 10.0
ADOPTION_WAIT_S = 2.0  # for a lease that is ordered while the agent starts: a network of its own takes less than more


class HolderPool:
    """The holders of one node; safe to use from several threads. The name of a lease's container is the key."""

    def __init__(
        self, engine: Engine, node_id: str, nest: Nest, book: HolderBook, network: IPv4Network | None, size: int
    ) -> None:
        """`network` has a /30 for every holder; `size` ready ones are kept, 0: leases make their own networks."""
        self._engine = engine
        self._node_id = node_id
        self._nest = nest
        self._book = book
        self._network = network
        self._size = size
        self._ready: deque[Holder] = deque()
        self._taken: dict[str, Holder] = {}
        self._addresses: dict[str, IPv4Interface] = {}
        self._next = uuid.uuid4().int  # far from what an earlier run gave out: old connections meet nobody
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._stopping = False
        self._adopted = threading.Event()
        self._last_take = 0.0
        self._short_since: float | None = None
        self._distrusted = ""
        self._kept: Container[str] = ()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="holders", daemon=True)

    @property
    def usable(self) -> bool:
        """Whether leases of this node may be given holders."""
        return bool(self._size and self._network and not self._distrusted and self._nest.possible)

    @property
    def _enough(self) -> bool:
        # Holders in use come back; half of the pool waits all the same, however many are in use.
        ready = len(self._ready)
        return ready + len(self._taken) >= self._size and ready >= (self._size + 1) // 2

    def start(self, kept: Container[str]) -> None:
        """See Holders; returns at once."""
        self._kept = kept
        self._thread.start()

    def stop(self) -> None:
        """End the thread; holders stay for the next agent."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(5)

    def take(self, name: str, hostname: str) -> Holder | None:
        """See Holders."""
        if not (self.usable and self._adopted.wait(ADOPTION_WAIT_S)):
            return None
        self._last_take = now()
        try:
            self.release(name)  # of a try that was cut off
            holder = self._pop() or self._make()
            with self._undone_on_failure(holder):
                return self._assign(holder, name, hostname)
        except (AgentError, EngineError, OSError) as error:
            logger.warning("no network holder for %s, it makes its own network: %s", name, error)
            return None
        finally:
            self._wake()

    def given(self, container: ContainerFacts) -> Holder | None:
        """See Holders."""
        remembered = self._book.read(container.name)
        if remembered and remembered.network:
            return remembered
        found = self._engine.inspect(joined(container)) if joined(container) else None
        return holder_of(found) if found and found.labels.get("lessor.role") == ROLE else None

    def release(self, name: str) -> None:
        """See Holders."""
        with self._lock:
            holder = self._taken.pop(name, None)
        holder = holder or self._book.read(name)
        if not holder:
            return
        renewed = self._renew(name, holder)
        if not renewed:
            self._remove(holder.name)
        self._book.remove(name)
        if renewed:
            with self._lock:
                self._ready.append(renewed)

    def distrust(self, reason: str) -> None:
        """See Holders."""
        self._distrusted = reason
        logger.error("network holders are not used any more: %s", reason)

    # Adopting ---------------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Sort what is here into taken, ready and neither; the last is removed. Raises EngineError."""
        facts = self._containers()
        self._nest.find()
        holders = {f.id: holder for f in facts if f.labels.get("lessor.role") == ROLE and (holder := holder_of(f))}
        owners = self._book.open()
        for found in facts:
            holder = holders.get(joined(found))
            if holder and found.name not in owners:
                self._book.recall(found.name, holder)
        named = {holder.name: holder for holder in holders.values()}
        for name, remembered in self._book.open().items():
            self._adopt_taken(name, remembered, named.get(remembered.name))
        taken = {holder.name for holder in self._taken.values()}
        for found in facts:
            if found.labels.get("lessor.role") == ROLE and found.name not in taken:
                self._adopt_ready(found.name, holder_of(found))
        self._adopted.set()

    def _adopt_taken(self, name: str, remembered: Holder, found: Holder | None) -> None:
        holder = replace(found, files=remembered.files) if found else remembered
        with self._lock:
            self._addresses[holder.name] = holder.address
            self._taken[name] = holder
        if lease_of_name(name) not in self._kept:
            self.release(name)

    def _adopt_ready(self, name: str, holder: Holder | None) -> None:
        fits = holder and self._network and holder.address.ip in self._network
        if holder and fits and self.usable and holder.works and self._nest.is_elsewhere(holder.pid):
            with self._lock:
                self._addresses[name] = holder.address
                self._ready.append(holder)
        else:
            self._try_to_remove(name)

    def _containers(self) -> tuple[ContainerFacts, ...]:
        return self._engine.containers(f"lessor.node={self._node_id}")

    # Making and removing ----------------------------------------------------------------------------------------------

    def _make(self) -> Holder:
        if not links.forwards():
            raise AgentError("this machine does not forward packets (net.ipv4.ip_forward)")
        name = PREFIX + uuid.uuid4().hex[:12]
        address = self._reserve(name)
        try:
            body = holder_body(self._nest.image(), self._node_id, self._nest.ensure())
            container = self._engine.create(name, body)
            self._engine.start(container)
            facts = self._engine.inspect(container)
            pid = facts.pid if facts else 0
            self._until_moved(pid, 0)
            holder = Holder(name, container, pid, network_of(pid), address)
            links.connect(pid, holder.interface, address)
        except BaseException:
            self._try_to_remove(name)
            self._nest.forget()
            raise
        return holder

    def _renew(self, name: str, holder: Holder) -> Holder | None:
        """The holder of a lease that has ended, moved on to a network that nobody had; None where it must be removed.

        Only once the lease's container is gone: one that still starts would follow into the new network.
        """
        if not (self.usable and self._adopted.is_set() and holder.lives and len(self._ready) < self._size):
            return None
        try:
            if self._engine.inspect(name):
                return None
            links.disconnect(holder.interface)
            address = self._reserve(holder.name)
            os.kill(holder.pid, signal.SIGHUP)
            self._until_moved(holder.pid, holder.network)
            renewed = replace(holder, network=network_of(holder.pid), address=address, files=Path())
            links.connect(holder.pid, holder.interface, address)
        except (AgentError, EngineError, OSError) as error:
            logger.warning("network holder %s is not used again: %s", holder.name, error)
            return None
        return renewed if renewed.works else None

    def _reserve(self, name: str) -> IPv4Interface:
        assert self._network is not None  # noqa: S101  # `usable` was asked
        count = self._network.num_addresses // 4
        with self._lock:
            used = set(self._addresses.values())
            for _ in range(count):
                self._next = (self._next + 1) % count
                address = IPv4Interface((int(self._network.network_address) + 4 * self._next + 2, 30))
                if address not in used:
                    self._addresses[name] = address
                    return address
        raise AgentError(f"every address of {self._network} is in use by a holder")

    def _until_moved(self, pid: int, old: int) -> None:
        """Wait until a holder's process lives in a namespace that is new: not `old`, the nest's or the machine's."""
        give_up = now() + LEAVE_NEST_S
        while (found := network_of(pid)) and now() < give_up:
            if found != old and self._nest.is_elsewhere(pid):
                return
            time.sleep(POLL_S)
        raise AgentError("a network holder did not come to a network of its own")

    def _remove(self, holder: str) -> None:
        self._engine.remove(holder)
        links.disconnect(holder_interface(holder))
        with self._lock:
            self._addresses.pop(holder, None)

    def _try_to_remove(self, holder: str) -> None:
        try:
            self._remove(holder)
        except (EngineError, OSError) as error:
            logger.warning("network holder %s stays until the next start: %s", holder, error)

    # Giving out -------------------------------------------------------------------------------------------------------

    def _pop(self) -> Holder | None:
        while True:
            with self._lock:
                if not self._ready:
                    return None
                holder = self._ready.popleft()
            if holder.works:
                return holder
            logger.warning("network holder %s has ended", holder.name)
            self._try_to_remove(holder.name)

    def _assign(self, holder: Holder, name: str, hostname: str) -> Holder:
        taken = self._book.write(name, holder, hostname, lease_resolvers())
        with self._lock:
            self._taken[name] = taken
        return taken

    @contextmanager
    def _undone_on_failure(self, holder: Holder) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._try_to_remove(holder.name)
            raise

    # Keeping the pool full --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping:
            with self._changed:
                self._changed.wait(pause)
            if self._stopping:
                return
            try:
                pause = self._once()
            except (AgentError, EngineError, OSError) as error:
                logger.warning("the pool of network holders is short: %s", error)
                pause = RETRY_S
            except Exception:  # noqa: BLE001  # the thread must outlive a bug
                logger.exception("the pool of network holders failed")
                pause = RETRY_S

    def _once(self) -> float:
        """One look and at most one new holder; returns how long to wait before the next."""
        if not self._adopted.is_set():
            self._adopt()
        self._look()
        if not self.usable or self._enough:
            self._short_since = None
            return CHECK_S
        self._short_since = self._short_since or now()
        pause = min(self._last_take + QUIET_S, self._short_since + PATIENCE_S) - now()
        if pause > 0:
            return pause
        holder = self._make()
        with self._lock:
            self._ready.append(holder)
        self._short_since = now()
        return 0.0

    def _look(self) -> None:
        with self._lock:
            waiting, taken = list(self._ready), list(self._taken.items())
        for holder in waiting:
            if not holder.works:
                self._drop(holder)
        for name, holder in taken:
            if holder.name not in self._told and not holder.lives:
                self._told.add(holder.name)
                logger.warning("network holder %s has ended; the network of %s goes on without it", holder.name, name)
            if not links.is_connected(holder.interface):
                self._repair(name, holder)

    def _drop(self, holder: Holder) -> None:
        with self._lock:
            if holder not in self._ready:
                return  # taken meanwhile, and looked at there
            self._ready.remove(holder)
        logger.warning("network holder %s has ended", holder.name)
        self._try_to_remove(holder.name)

    def _repair(self, name: str, holder: Holder) -> None:
        """Join a lease's network to the node again: somebody deleted the interface under it."""
        facts = self._engine.inspect(name)
        pid = facts.pid if facts else 0
        if not pid or not self._nest.is_elsewhere(pid):
            return  # it has not started, or has ended
        links.disconnect(holder.interface)
        links.connect(pid, holder.interface, holder.address)
        logger.warning("the network interface of %s was gone and has been made again", name)


def remove_holders(engine: Engine, node_id: str, book: HolderBook) -> None:
    """Take every holder and the nest away; for a machine that stops being a node.

    Raises:
        EngineError, OSError: some are left.
    """
    for facts in engine.containers(f"lessor.node={node_id}"):
        if facts.labels.get("lessor.role") in {ROLE, NEST_ROLE}:
            engine.remove(facts.name)
            links.disconnect(holder_interface(facts.name))
    book.clear()

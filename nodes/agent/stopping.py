"""Ending a lease's container: its own stop signal, the grace it was given, SIGKILL; and certainty that it has ended."""

from collections.abc import Callable
from dataclasses import dataclass

from nodes.agent.contact import now
from nodes.agent.desired import container_name
from nodes.agent.engine import ContainerFacts
from nodes.agent.failures import EngineError, EngineUnreachableError
from nodes.agent.log import logger
from nodes.agent.parts import Parts
from nodes.agent.store import LeaseRecord

KILL_WAIT_S = 60.0
RETRY_S = 2.0
DEFAULT_GRACE_S = 30


@dataclass(frozen=True)
class Stopped:
    """How a container ended."""

    exit_code: int
    killed: bool


class Stopping:
    """The stop of one lease. `wait` returns after the seconds given or earlier when the engine says something.

    The container is asked once, also by an agent that died in between, and its grace begins when the engine has passed
    the request on. Everything goes to the container's id: one of the same name that came later is another's.
    """

    def __init__(self, parts: Parts, record: LeaseRecord, wait: Callable[[float], None]) -> None:
        self._engine = parts.engine
        self._store = parts.store
        self._record = record
        self._container = container_name(record.lease_id, record.generation)
        self._wait = wait

    def run(self) -> Stopped | None:
        """Stop it; None when there was nothing that had ever run."""
        facts = self._look()
        if facts is None or facts.status == "created":
            return None
        self._container = facts.id
        self._seen = facts
        killed = facts.running and not self._ends_on_request(facts)
        if killed:
            self._kill()
        return Stopped(self._seen.exit_code, killed)

    def _ends_on_request(self, facts: ContainerFacts) -> bool:
        if self._record.kill_at is None:
            self._ask(str(facts.inspect.get("Config", {}).get("StopSignal") or "SIGTERM"))
            grace = self._record.desired.stop_grace_s if self._record.desired else DEFAULT_GRACE_S
            self._record.kill_at = now() + grace
            self._store.save(self._record)
        return self._ended_before(self._record.kill_at)

    def _ask(self, signal: str) -> None:
        """Send the signal once; returns when the engine answers, so that no grace passes while it hangs."""
        while not self._signal(signal):
            self._wait(RETRY_S)

    def _kill(self) -> None:
        give_up = now() + KILL_WAIT_S
        while now() < give_up:
            self._signal("SIGKILL")
            if self._ended_before(min(give_up, now() + RETRY_S)):
                return

    def _signal(self, signal: str) -> bool:
        """Whether it has been sent, or may have been."""
        try:
            self._engine.kill(self._container, signal)
        except EngineError as error:
            logger.warning("lease %s did not take %s: %s", self._record.lease_id, signal, error)
            if isinstance(error, EngineUnreachableError) and not error.sent:
                return False
            self._look()
        return True

    def _ended_before(self, give_up: float) -> bool:
        while True:
            facts = self._look()
            self._seen = facts or self._seen
            if facts is None or not facts.running:
                return True
            if now() >= give_up:
                return False
            self._wait(min(RETRY_S, max(0.0, give_up - now())))

    def _look(self) -> ContainerFacts | None:
        # However long the engine takes to answer: nobody may call a lease stopped on a guess.
        while True:
            try:
                return self._engine.inspect(self._container)
            except EngineError as error:
                logger.warning("lease %s waits for the engine: %s", self._record.lease_id, error)
                self._wait(RETRY_S)

"""One lease on this node: a thread that takes the portal's newest word and does one thing at a time.

    pulling -> starting -> started -> running -> stopping -> stopped -> cleaning -> gone

Orders, exits and finished pulls ring the same bell; the actor then looks at what is true. Whatever has to end a lease
(order, newer generation, deadline, silence of the portal) is asked for between any two steps and during every wait.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import NoReturn

from nodes.agent.cleaning import Cleaning
from nodes.agent.contact import now
from nodes.agent.desired import DesiredLease, container_name
from nodes.agent.engine import ContainerFacts
from nodes.agent.failures import EngineError, LaunchError, UnsettledError
from nodes.agent.images import Ticket
from nodes.agent.launch import Launch
from nodes.agent.log import logger, step
from nodes.agent.notices import tell
from nodes.agent.orders import WHY, EndCause, Order, deadline_of, end_cause, new_record, taken
from nodes.agent.parts import Parts
from nodes.agent.portal import Report, ReportAnswer
from nodes.agent.probe import ProbeKey
from nodes.agent.reporter import Reporter
from nodes.agent.stopping import Stopping
from nodes.agent.store import LeaseRecord, Phase

PROGRESS_S = 10.0
SAME_PROGRESS_S = 60.0
ENGINE_RETRY_S = 2.0
BEFORE_READY = ("pulling", "starting", "started")
# What must reach the portal also when the agent dies before it did; the rest is news of the moment.
ENDINGS = ("failed", "exited", "deadline")
LASTING = ("ready", *ENDINGS)


class _EndNow(Exception):  # not an error: something has to end the lease
    def __init__(self, cause: EndCause) -> None:
        super().__init__(cause)
        self.cause: EndCause = cause


class _AgentStops(Exception):  # not an error: leave everything as it is
    pass


class Actor:
    """The one writer of a lease on this node."""

    def __init__(
        self,
        parts: Parts,
        lease_id: str,
        *,
        record: LeaseRecord | None,
        wake: Callable[[str], None],
        on_gone: Callable[["Actor"], None],
    ) -> None:
        """`record` is what was left here before; `wake` asks the portal again; `on_gone` is called last of all."""
        self.lease_id = lease_id
        self.finished = 0  # the newest generation that was cleaned here
        self._parts = parts
        self._record = record
        self._wake = wake
        self._on_gone = on_gone
        self._order: Order | None = None
        self._last_taken: Order | None = None  # the order that it ended with
        self._bell = threading.Event()
        self._closing = False
        self._reporter = Reporter(parts.portal, lease_id, self._answered)
        self._thread = threading.Thread(target=self._run, name=f"actor-{lease_id}", daemon=True)

    def begin(self) -> None:
        """Start the thread."""
        self._thread.start()

    def order(self, lease: DesiredLease | None) -> None:
        """Take the portal's newest word."""
        self._order = taken(lease)
        self._bell.set()

    def poke(self) -> None:
        """Look again: the engine says something happened."""
        self._bell.set()

    def close(self) -> None:
        """The agent stops: end the thread and leave the lease as it is."""
        self._closing = True
        self._bell.set()
        self._reporter.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    @property
    def record(self) -> LeaseRecord | None:
        """What is here now; a copy."""
        record = self._record
        return replace(record) if record else None

    @property
    def promised(self) -> LeaseRecord | None:
        """What an order that was not begun yet will be; None when there is none."""
        lease = self._order.lease if self._order else None
        return new_record(lease) if lease and lease.generation > self.finished else None

    @property
    def has_news(self) -> bool:
        """Whether an order has come that it has not looked at any more."""
        return self._order is not self._last_taken

    # The life of a lease ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while record := self._record or self._begin():
                self._live(record)
        except _AgentStops:
            return
        except Exception:  # noqa: BLE001  # logged with its trace; see below
            # A bug must not leave a lease without an actor for ever: the next pull makes a new one from the record.
            logger.exception("actor of %s failed", self.lease_id)
        self._reporter.close()
        self._on_gone(self)

    def _begin(self) -> LeaseRecord | None:
        while self._order is None:
            self._wait(None)
        self._last_taken = order = self._order
        lease = order.lease
        if lease is None or lease.generation <= self.finished:
            return None
        self._record = record = new_record(lease)
        self._parts.store.save(record)
        return record

    def _live(self, record: LeaseRecord) -> None:
        why = ""
        for saved in record.unsaid:
            self._reporter.send(Report(**saved))
        ended = any(saved["event"] in ENDINGS for saved in record.unsaid)
        try:
            if not ended and record.phase in BEFORE_READY:
                self._bring_up(record)
            if not ended and record.phase == "running":
                self._watch(record)
        except _EndNow as end:
            why = WHY[end.cause]
            self._announce(record, end.cause)
        except LaunchError as error:
            logger.warning("lease %s: %s: %s", record.lease_id, error.failure, error)
            self._report(record, "failed", detail=str(error), failure=error.failure)
        self._stop(record, why)
        self._clean(record)

    def _bring_up(self, record: LeaseRecord) -> None:
        lease = self._wanted(record)
        key = ProbeKey.make()
        # Early, so that the gateway has read the file long before the container is up.
        self._parts.gateway.put(lease.id, lease.authorized_keys, key.public_line, authorities=lease.ssh_ca)
        while not self._stands(record, lease):
            self._wait(ENGINE_RETRY_S, record)
        self._enter(record, "started")
        self._report(record, "started")
        with step("prove", record.lease_id, record.generation):
            evidence = self._parts.prover.prove(self._wanted(record), key, lambda s: self._pause_proof(record, s))
        wanted = self._wanted(record)
        self._parts.gateway.put(lease.id, wanted.authorized_keys, authorities=wanted.ssh_ca)
        record.phase = "running"
        self._report(record, "ready", evidence=evidence)  # the phase is written down with it, neither without the other

    def _stands(self, record: LeaseRecord, lease: DesiredLease) -> bool:
        """Whether the container was started and settled; one that has run is never started a second time."""
        facts = self._see(record)
        launch = Launch(self._parts, lease, lambda image: self._pull(record, image))
        try:
            if facts and (facts.running or facts.status == "exited"):
                record.container_id = facts.id
                launch.adopt(facts)
            else:
                self._launch(record, launch)
        except UnsettledError as error:
            logger.warning("lease %s is looked at again: %s", record.lease_id, error)
            return False
        return True

    def _launch(self, record: LeaseRecord, launch: Launch) -> None:
        self._report(record, "starting")
        launch.measure(record)
        self._enter(record, "starting")
        record.container_id = launch.create()
        self._check_end(record)
        launch.start(record.container_id)

    def _watch(self, record: LeaseRecord) -> NoReturn:
        while True:
            self._check_end(record)
            if record.unsaid and self._reporter.idle:
                record.unsaid = []
                self._parts.store.save(record)
            self._follow_order(record)
            try:
                facts = self._parts.engine.inspect(container_name(record.lease_id, record.generation))
                if not (facts and facts.running):
                    raise _EndNow("exited")
            except EngineError as error:
                # An engine that restarts says nothing about the container; what became of it is seen afterwards.
                logger.warning("lease %s cannot be seen: %s", record.lease_id, error)
            self._wait(self._parts.watch_s, record)

    def _announce(self, record: LeaseRecord, cause: EndCause) -> None:
        logger.info("lease %s ends: %s", record.lease_id, cause)
        if cause == "deadline":
            self._report(record, "deadline", detail=WHY[cause])
        elif cause == "exited":
            facts = self._engine_says(record)
            evidence: dict[str, object] = {"exit_code": None, "oom_killed": False}
            if facts:
                evidence = {"exit_code": facts.exit_code, "oom_killed": facts.oom_killed}
            self._report(record, "exited", evidence=evidence)

    def _stop(self, record: LeaseRecord, why: str) -> None:
        self._enter(record, "stopping")
        with step("stop", record.lease_id, record.generation):
            stopped = Stopping(self._parts, record, self._wait).run()
        self._enter(record, "stopped")
        if stopped:
            self._report(record, "stopped", detail=why, evidence=asdict(stopped))

    def _clean(self, record: LeaseRecord) -> None:
        self._enter(record, "cleaning")
        steps = Cleaning(self._parts, record, self._pause).run()
        evidence: dict[str, object] = {"steps": [s.as_json() for s in steps]}
        failed = [s for s in steps if not s.ok]
        # Only what speaks against a device holds one back; a volume or network that stays is tried again at the next
        # start, and is told as a step that is not ok.
        dirty = sorted({uuid for s in failed for uuid in s.devices})
        if dirty:
            evidence["quarantine"] = dirty
        if failed:
            logger.error(
                "lease %s did not come clean: %s", record.lease_id, "; ".join(f"{s.name}: {s.detail}" for s in failed)
            )
        self._report(record, "cleaning_failed" if dirty else "cleaned", evidence=evidence)
        if not self._reporter.drain():
            raise _AgentStops
        self._parts.store.delete(record.lease_id)
        self.finished = record.generation
        self._record = None

    # What it listens to -----------------------------------------------------------------------------------------------

    def _end_cause(self, record: LeaseRecord) -> EndCause | None:
        return end_cause(self._order, record, self._parts.contact.silent_at)

    def _check_end(self, record: LeaseRecord) -> None:
        if cause := self._end_cause(record):
            raise _EndNow(cause)

    def _wait(self, seconds: float | None, record: LeaseRecord | None = None) -> None:
        if record:
            limits = [self._parts.contact.silent_at - now()]
            deadline = deadline_of(self._order, record)
            limits += [] if deadline is None else [deadline - now()]
            seconds = max(0.0, min([*limits, *([] if seconds is None else [seconds])]))
        self._bell.wait(seconds)
        self._bell.clear()
        if self._closing:
            raise _AgentStops

    def _pause(self, seconds: float) -> None:
        give_up = now() + seconds
        while (left := give_up - now()) > 0:
            self._wait(left)

    def _pause_proof(self, record: LeaseRecord, seconds: float) -> None:
        self._check_end(record)
        facts = self._engine_says(record)
        if facts and not facts.running:
            raise LaunchError(
                "failed_launch", f"The image's main process ended at once, with exit code {facts.exit_code}."
            )
        self._pause(seconds)

    def _pull(self, record: LeaseRecord, image: str) -> None:
        self._enter(record, "pulling")
        ticket = self._parts.images.pull(image, self._bell.set)
        said, lines, again_at = None, 0, 0.0
        try:
            while not ticket.done:
                self._check_end(record)
                # The same words again now and then while something comes: a slow pull does not stand still.
                if ticket.progress != said or (ticket.lines != lines and now() >= again_at):
                    said, lines, again_at = ticket.progress, ticket.lines, now() + SAME_PROGRESS_S
                    self._report(record, "pulling", detail=said)
                self._wait_pull(record, ticket)
        finally:
            ticket.cancel()
        ticket.result()
        self._enter(record, "starting")

    def _wait_pull(self, record: LeaseRecord, ticket: Ticket) -> None:
        # The bell may ring for other reasons; progress is told every few seconds at most all the same.
        give_up = now() + PROGRESS_S
        while not ticket.done and not self._end_cause(record) and now() < give_up:
            self._wait(give_up - now(), record)

    # Small change -----------------------------------------------------------------------------------------------------

    def _wanted(self, record: LeaseRecord) -> DesiredLease:
        # Nothing is brought up on what an earlier agent remembers: the portal may have thought better of it since.
        while not (self._order and self._order.lease):
            self._check_end(record)
            self._wait(None, record)
        self._check_end(record)
        record.desired = self._order.lease
        return record.desired

    def _follow_order(self, record: LeaseRecord) -> None:
        order = self._order
        if not order or not order.lease or not record.desired:
            return
        wanted, known = order.lease, record.desired
        keys_differ = (wanted.authorized_keys, wanted.ssh_ca) != (known.authorized_keys, known.ssh_ca)
        record.desired = wanted
        if keys_differ:
            self._parts.gateway.put(record.lease_id, wanted.authorized_keys, authorities=wanted.ssh_ca)
        tell(wanted.notices, record, self._parts.gateway, self._parts.store)
        if keys_differ or order.moves(record):
            record.deadline = order.deadline
            self._parts.store.save(record)

    def _see(self, record: LeaseRecord) -> ContainerFacts | None:
        # Until the engine answers: what it may have started must not be taken for missing.
        while True:
            self._check_end(record)
            try:
                return self._parts.engine.inspect(container_name(record.lease_id, record.generation))
            except EngineError as error:
                logger.warning("lease %s waits for the engine: %s", record.lease_id, error)
                self._wait(ENGINE_RETRY_S, record)

    def _engine_says(self, record: LeaseRecord) -> ContainerFacts | None:
        try:
            return self._parts.engine.inspect(container_name(record.lease_id, record.generation))
        except EngineError:
            return None

    def _enter(self, record: LeaseRecord, phase: Phase) -> None:
        record.phase = phase
        self._parts.store.save(record)

    def _report(
        self,
        record: LeaseRecord,
        event: str,
        *,
        detail: str = "",
        failure: str = "",
        evidence: Mapping[str, object] | None = None,
    ) -> None:
        report = Report(
            record.lease_id, record.generation, event, detail=detail, container_id=record.container_id,
            failure=failure, evidence=evidence,
        )  # fmt: skip
        if event in LASTING:
            record.unsaid = [*record.unsaid, asdict(report)]
            self._parts.store.save(record)
        self._reporter.send(report)

    def _answered(self, answer: ReportAnswer | None) -> None:
        record = self._record
        if record and record.unsaid and record.phase == "running":
            self._bell.set()  # it was said: the actor writes that down
        ending = record is None or record.phase not in {*BEFORE_READY, "running"}
        if not ending and (answer is None or answer.want != "run"):
            self._wake(self.lease_id)

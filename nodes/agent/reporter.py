"""Reports of one lease on their way to the portal: in order, each repeated until it is answered, on their own thread.

An actor never waits for the portal to go on with a launch or a stop.
"""

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from nodes.agent.log import logger
from nodes.agent.portal import (
    PortalClient,
    PortalRefusedError,
    PortalUnavailableError,
    Report,
    ReportAnswer,
    RevokedError,
)

FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 30.0


class Reporter:
    """Sends the reports of one lease; `on_answer` gets each answer, None for a refusal."""

    def __init__(self, portal: PortalClient, name: str, on_answer: Callable[[ReportAnswer | None], None]) -> None:
        self._portal = portal
        self._on_answer = on_answer
        self._queue: deque[Report] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"report-{name}", daemon=True)
        self._thread.start()

    def send(self, report: Report) -> None:
        """Queue a report behind those before it."""
        with self._changed:
            self._queue.append(report)
            self._changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether every report was answered."""
        with self._changed:
            return not self._queue

    def drain(self) -> bool:
        """Wait until every report was answered; False when closed before that."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._closed)
            return not self._queue

    def close(self) -> None:
        """Send nothing more. What is left and matters is said again after a restart, from the lease's record."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        delay = FIRST_RETRY_S
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                report = self._queue[0]
            if answered := self._deliver(report):
                delay = FIRST_RETRY_S
                with self._changed:
                    self._queue.popleft()
                    self._changed.notify_all()
                answered()  # afterwards: who hears of it finds the report gone from here
            else:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, timeout=delay)
                delay = min(delay * 2, LONGEST_RETRY_S)

    def _deliver(self, report: Report) -> Callable[[], None] | None:
        """What to do once the report is out of the queue; None when it must be sent again."""
        try:
            answer: ReportAnswer | None = self._portal.report(report)
        except PortalUnavailableError as error:
            logger.warning("report %s of %s waits: %s", report.event, report.lease_id, error)
            return None
        except RevokedError:
            return lambda: None  # nobody listens any more; the silence rule ends the lease
        except PortalRefusedError as error:
            logger.warning("report %s of %s was refused: %s", report.event, report.lease_id, error)
            answer = None
        return partial(self._on_answer, answer)

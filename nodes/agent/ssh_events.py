"""Sends what the SSH gateway wrote to its audit file on to the portal, on a thread of its own.

The place in the files is kept on disk and moved only after the portal has answered: nothing is lost while the portal is
away, and what was sent twice has an id by which the portal knows it.
"""

import contextlib
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from nodes.agent.audit_files import AuditFiles, Line, Place
from nodes.agent.config import write_private
from nodes.agent.contact import boot_id, now
from nodes.agent.desired import LEASE_ID
from nodes.agent.log import logger
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError

EVERY_S = 2.0
LONGEST_RETRY_S = 60.0
BATCH = 200
BAD_REQUEST = 400
KINDS = {
    "login": "login",
    "auth_refused": "login_refused",
    "session": "session_start",
    "session_end": "session_end",
    "forward": "forward",
}

Event = dict[str, object]


class SshEvents:
    """The sender of one node."""

    def __init__(self, portal: PortalClient, audit_file: Path, place_file: Path, every_s: float = EVERY_S) -> None:
        self._portal = portal
        self._files = AuditFiles(audit_file)
        self._audit_file = audit_file
        self._place_file = place_file
        self._every_s = every_s
        self._place = _load(place_file)
        self._seen: tuple[int, int] | None = None  # the current file when nothing was left to send
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssh-events", daemon=True)

    def start(self) -> None:
        """Begin where the last agent stopped."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; what is left is sent by the next agent."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        delay = self._every_s
        while not self._stop.wait(delay):
            try:
                delay = 0.0 if self.send() else self._every_s
            except (PortalUnavailableError, PortalRefusedError) as error:
                logger.warning("SSH events wait: %s", error)
                delay = min(max(delay, self._every_s) * 2, LONGEST_RETRY_S)
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one pass
                logger.exception("SSH events failed")
                delay = LONGEST_RETRY_S

    def send(self) -> bool:
        """Send the next lines; whether there were any. Raises PortalUnavailableError, PortalRefusedError."""
        seen = self._current()
        if seen == self._seen:
            return False
        lines, place = self._files.read(self._place, BATCH)
        if place == self._place:
            self._seen = seen
            return False
        events = [event for line in lines if (event := event_of(line)) is not None]
        if events:
            self._deliver(events)
        self._place = place
        write_private(self._place_file, json.dumps(asdict(place)))
        return True

    def _deliver(self, events: list[Event]) -> None:
        try:
            self._portal.ssh_events(events)
        except PortalRefusedError as error:
            if error.status != BAD_REQUEST:
                raise
            if len(events) == 1:
                logger.error(
                    "the portal refused an SSH event: %s", error
                )  # one that it cannot read must not block the rest
                return
            for event in events:
                self._deliver([event])

    def _current(self) -> tuple[int, int] | None:
        try:
            facts = self._audit_file.stat()
        except OSError:
            return None
        return facts.st_ino, facts.st_size


def event_of(line: Line) -> Event | None:
    """A line of the audit file as the portal takes it; None for what it does not want to know.

    Our own probes are left out, and refusals of names that are no leases: strangers try those all day.
    """
    kind, lease = KINDS.get(str(line.get("event"))), line.get("lease")
    if kind is None or line.get("probe") or not isinstance(lease, str) or not LEASE_ID.fullmatch(lease):
        return None
    return {
        "id": line.get("id"),
        "age_s": _age_s(line),
        "lease": lease,
        "kind": kind,
        "peer": line.get("peer", ""),
        "key": line.get("fingerprint", ""),
        "session": line.get("session", ""),
        "detail": _detail(line),
        "bytes_in": line.get("bytes_in", 0),
        "bytes_out": line.get("bytes_out", 0),
    }


def _detail(line: Mapping[str, object]) -> str:
    """What kind of session, where a forward leads, why a login was refused; before it `portal` for the portal's own."""
    said = str(line.get("kind") or line.get("why") or "")
    if "host" in line:
        said = f"{line['host']}:{line.get('port')}" + ("" if line.get("allowed") else " refused")
    return f"portal {said}".strip() if line.get("portal") else said


def _age_s(line: Mapping[str, object]) -> float:
    """By the clock that nobody can set; for a line of an earlier boot by the time it was written."""
    clock, age = line.get("clock"), 0.0
    if isinstance(clock, float | int) and boot_id().startswith(str(line.get("boot") or "none")):
        age = now() - clock
    else:
        with contextlib.suppress(ValueError, TypeError):
            age = (datetime.now(UTC) - datetime.fromisoformat(str(line.get("time")))).total_seconds()
    return round(max(0.0, age), 3)


def _load(path: Path) -> Place:
    try:
        return Place(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return Place()  # from the beginning: the portal knows what it has had

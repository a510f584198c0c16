"""The audit log: one JSON object a line, in a file of the gateway's own, out of the renter's reach.

Who came (address, key fingerprint, lease), when, and what kind of thing they did. Never what was typed, nor a
command's text, which may carry secrets. The file is opened for each line, so it can be rotated at any time and several
processes may share it.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

Fact = str | int | float | bool | None


class AuditLog:
    """Appends events.

    A full disk must not lock renters out: a line that cannot be written goes to the program's log instead.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **facts: Fact) -> None:
        """Append one event; facts that are None are left out."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        known = {name: fact for name, fact in facts.items() if fact is not None}
        line = json.dumps({"time": moment, "event": event, **known}).encode() + b"\n"
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            log.error("audit line lost (%s): %s", error, line.decode().rstrip())  # noqa: TRY400  no trace needed

"""The audit log: one JSON object a line, in a file of the gateway's own, out of the renter's reach.

Who came (address, key fingerprint, lease), when, and what kind of thing they did. Never what was typed, nor a
command's text, which may carry secrets. Each line has an id of its own, and beside the time the clock that nobody can
set, so that the agent, which sends the lines to the portal, can tell how old they are.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

log = logging.getLogger(__name__)

Fact = str | int | float | bool | None

FILE_BYTES = 8 << 20
OLD_FILES = 8  # audit.log.1 is the youngest; together the most that the log takes of the disk
BOOT = Path("/proc/sys/kernel/random/boot_id")
BOOT_LETTERS = 8


class AuditLog:
    """Appends events; several processes may share the file, each line is written whole and in one file.

    A full disk must not lock renters out: a line that cannot be written goes to the program's log instead.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, old_files: int = OLD_FILES) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._old_files = old_files
        self._boot = BOOT.read_text()[:BOOT_LETTERS]

    def write(self, event: str, **facts: Fact) -> None:
        """Append one event; facts that are None are left out."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        clock = round(time.clock_gettime(time.CLOCK_BOOTTIME), 3)
        known = {name: fact for name, fact in facts.items() if fact is not None}
        head = {"time": moment, "boot": self._boot, "clock": clock, "id": str(uuid.uuid4()), "event": event}
        line = json.dumps({**head, **known}).encode() + b"\n"
        try:
            handle = self._open_locked()
            try:
                if os.fstat(handle).st_size + len(line) > self._file_bytes:
                    handle = self._next_file(handle)
                os.write(handle, line)
            finally:
                os.close(handle)
        except OSError as error:
            log.error("audit line lost (%s): %s", error, line.decode().rstrip())  # noqa: TRY400  no trace needed

    def _open_locked(self) -> int:
        """The current file, held alone: whoever reads a file that was moved away knows that no line comes after."""
        while True:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            fcntl.flock(handle, fcntl.LOCK_EX)
            if self._is_current(handle):
                return handle
            os.close(handle)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), self._path.stat())
        except FileNotFoundError:
            return False

    def _next_file(self, handle: int) -> int:
        """Move the full file away while it is held, then open a new one."""
        for number in range(self._old_files, 0, -1):
            older = self._numbered(number)
            if number == self._old_files:
                older.unlink(missing_ok=True)
            elif older.exists():
                older.rename(self._numbered(number + 1))
        self._path.rename(self._numbered(1))
        new = self._open_locked()
        os.close(handle)
        return new

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

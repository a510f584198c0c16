"""When the portal last answered, by this machine's own clock.

CLOCK_BOOTTIME counts through suspend and cannot be set, so a wrong wall clock neither stretches nor cuts the silence
rule. The value outlives a restart of the agent within one boot.
"""

import json
import threading
import time
from pathlib import Path

from nodes.agent.config import write_private


def now() -> float:
    """Seconds since boot: the only clock the agent decides by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Contact:
    """Remembers the last successful exchange with the portal; safe to use from several threads."""

    def __init__(self, path: Path, silence_s: float) -> None:
        self._path = path
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._last = self._load()

    def touch(self) -> None:
        """The portal has just answered."""
        with self._lock:
            self._last = now()

    def store(self) -> None:
        """Write the moment to disk; called with each heartbeat, not with each call."""
        write_private(self._path, json.dumps({"boot_id": boot_id(), "last": self._last}), durable=False)

    @property
    def silent_at(self) -> float:
        """The moment (see `now`) from which leases must not run on, should nothing be heard until then."""
        with self._lock:
            return self._last + self._silence_s

    def _load(self) -> float:
        try:
            saved = json.loads(self._path.read_text())
            if saved["boot_id"] == boot_id():
                return min(float(saved["last"]), now())
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no file yet, or a torn one: the silence counts from now
        return now()

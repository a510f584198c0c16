"""Empty volumes of the size that was last asked for, formatted while nobody waits for one.

Each is made once, used by one lease and deleted with it: nothing is shared but the time.
"""

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from nodes.agent.failures import AgentError
from nodes.agent.log import logger

KEPT = 4
QUIET_S = 0.5  # after a volume was taken: its launch goes first

Format = Callable[[Path, int], None]


class Spares:
    """Formatted images under one directory; safe to use from several threads. `make` formats one: path, bytes."""

    def __init__(self, directory: Path, make: Format, kept: int = KEPT) -> None:
        self._directory = directory
        self._make = make
        self._kept = kept
        self._size = 0
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def take(self, size_bytes: int, target: Path) -> bool:
        """Move a spare volume of that size to `target`; False when there is none. More are made afterwards."""
        with self._lock:
            self._size = size_bytes
            found = next(iter(self._of_size(size_bytes)), None)
            if found:
                found.rename(target)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spare-volumes", daemon=True)
                self._thread.start()
        self._asked.set()
        return found is not None

    def fill(self) -> None:
        """Make what is missing of the size last asked for, and delete the others.

        Raises:
            AgentError, OSError: a volume could not be made.
        """
        with self._lock:
            size = self._size
            for other in set(self._directory.glob("*.img")) - set(self._of_size(size)):
                other.unlink()
        while len(self._of_size(size)) < self._kept and size == self._size:
            self._make(self._directory / f"{size}-{uuid.uuid4().hex}.img", size)

    def _of_size(self, size: int) -> list[Path]:
        return sorted(self._directory.glob(f"{size}-*.img"))

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._asked.wait(QUIET_S):
                continue
            try:
                self.fill()
            except (AgentError, OSError) as error:
                logger.warning("no spare volume could be made: %s", error)

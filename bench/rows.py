"""What the portal's database says of leases, read by one thread for all who wait: the bench must not be the load."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLL_S = 0.005
Row = tuple[Any, ...]  # started_at, ready_at, ended_at


class Rows:
    """Leases of a portal on SQLite, past the portal, which is not to be kept busy by asking."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._watched: dict[str, Row] = {}
        threading.Thread(target=self._run, name="rows", daemon=True).start()

    def wait(self, lease_id: str, enough: Callable[[Row], Any], seconds: float = 60) -> Row:
        """The row once `enough` of it is there. Raises TimeoutError."""
        with self._changed:
            self._watched[lease_id] = (None, None, None)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: enough(self._watched[lease_id]), seconds):
                raise TimeoutError(f"{lease_id} after {seconds:.0f} s: {self._watched[lease_id]}")
            return self._watched.pop(lease_id)

    def _run(self) -> None:
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as file:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._watched)
                    names = [*self._watched]
                marks = ", ".join("?" * len(names))
                ask = f"select id, started_at, ready_at, ended_at from rental_lease where id in ({marks})"  # noqa: S608
                found = {row[0]: row[1:] for row in file.execute(ask, names)}
                with self._changed:
                    self._watched |= {name: row for name, row in found.items() if name in self._watched}
                    self._changed.notify_all()
                time.sleep(POLL_S)

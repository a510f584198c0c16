"""When somebody last sent something into a lease: the sign of use that the agent asks for.

Only bytes of the client in a session or forward count. Keep-alives, window changes, logins and the probe do not.
"""

from __future__ import annotations

import time
from collections.abc import Collection


class Activity:
    """The last input of each lease in this process."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def note(self, lease_id: str) -> None:
        """The client has sent something just now."""
        self._last[lease_id] = time.monotonic()

    def since_s(self, lease_id: str) -> float | None:
        """Seconds since the last input; None: never."""
        last = self._last.get(lease_id)
        return None if last is None else round(time.monotonic() - last, 3)

    def retain(self, lease_ids: Collection[str]) -> None:
        """Forget leases that have ended."""
        self._last = {lease_id: last for lease_id, last in self._last.items() if lease_id in lease_ids}

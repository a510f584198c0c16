"""When the SSH way into a lease failed and came back, and what of it the portal has heard. No I/O but its own file.

One failed look is no outage: it may be a restart of a second. Two in a row are, and they count from the first.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from nodes.agent.config import write_private
from nodes.agent.contact import boot_id, now

LOOKS = 2


@dataclass
class Outage:
    """One stretch in which a lease could not be reached; `began` is by the clock of nodes.agent.contact.now."""

    generation: int
    began: float
    why: str
    looks: int = 1
    told: bool = False  # the portal knows that it began
    over: bool = False  # and has yet to hear that it ended

    @property
    def since_s(self) -> float:
        """Seconds since the first failed look."""
        return max(0.0, now() - self.began)


class Outages:
    """The outages of one node, by lease id. What the portal was told of outlives a restart of the agent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outages = _load(path)

    def note(self, faults: Mapping[str, str], generations: Mapping[str, int]) -> None:
        """Take in one look at all leases: by id why each cannot be reached, "" where it can. Others have ended."""
        for lease_id in set(self._outages) - set(faults):
            del self._outages[lease_id]
        for lease_id, why in faults.items():
            known = self._outages.get(lease_id)
            if known is not None and known.generation != generations[lease_id]:
                known = None
                del self._outages[lease_id]
            if why:
                self._failed(lease_id, known, why, generations[lease_id])
            elif known is not None:
                self._works(lease_id, known)

    def _failed(self, lease_id: str, known: Outage | None, why: str, generation: int) -> None:
        if known is None:
            self._outages[lease_id] = Outage(generation, now(), why)
            return
        known.over = False
        known.looks += 1

    def _works(self, lease_id: str, known: Outage) -> None:
        if known.looks < LOOKS:
            del self._outages[lease_id]
        else:
            known.over = True

    def to_tell(self) -> list[tuple[str, Outage]]:
        """What the portal has yet to hear: that one began, else that it is over."""
        return [
            (lease_id, outage)
            for lease_id, outage in self._outages.items()
            if outage.looks >= LOOKS and (outage.over or not outage.told)
        ]

    def told(self, lease_id: str) -> None:
        """The portal has heard the next thing of this outage."""
        outage = self._outages[lease_id]
        if outage.told:
            del self._outages[lease_id]
        else:
            outage.told = True
        self._save()

    def forget(self, lease_id: str) -> None:
        """The portal does not want to hear of it."""
        del self._outages[lease_id]
        self._save()

    def _save(self) -> None:
        kept = {lease_id: asdict(outage) for lease_id, outage in self._outages.items() if outage.told}
        write_private(self._path, json.dumps({"boot_id": boot_id(), "outages": kept}))


def _load(path: Path) -> dict[str, Outage]:
    try:
        saved = json.loads(path.read_text())
        if saved["boot_id"] == boot_id():
            return {lease_id: Outage(**outage) for lease_id, outage in saved["outages"].items()}
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none yet; a reboot ends every lease of the boot before
    return {}

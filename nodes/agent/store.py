"""What the agent remembers of its leases across a restart: one small JSON file per lease under STATE/leases.

A record is written before the thing it speaks of is made and deleted after the portal has heard that it is gone, so
whatever moment the agent dies in, the next one finds what there is to finish.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from nodes.agent.config import write_private
from nodes.agent.contact import boot_id
from nodes.agent.desired import LEASE_ID, DesiredLease, Notice
from nodes.agent.log import logger

Phase = Literal["pulling", "starting", "started", "running", "stopping", "stopped", "cleaning"]


@dataclass
class LeaseRecord:
    """One generation of one lease on this node; owned by its actor.

    `deadline` and `kill_at` are by the clock of `nodes.agent.contact.now`, the latter set once the container was asked
    to end; `memory_base` and `pids_base` are what NVML saw on each
    device before the launch, empty when not known.
    """

    lease_id: str
    generation: int
    phase: Phase
    devices: tuple[str, ...] = ()
    container_id: str | None = None
    desired: DesiredLease | None = None
    deadline: float | None = None
    kill_at: float | None = None
    memory_base: dict[str, int] = field(default_factory=dict)
    pids_base: dict[str, list[int]] = field(default_factory=dict)
    unsaid: list[dict[str, Any]] = field(default_factory=list)  # reports that may have got no answer yet
    told: list[str] = field(default_factory=list)  # ids of the notices that its terminals have had


class Store:
    """The records of one state directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, record: LeaseRecord) -> None:
        """Write or replace a lease's record."""
        # Without power no process of a lease lives on either. A record that is lost or old then is made up for by the
        # container's labels and the sweep of volumes and networks at the next start.
        write_private(self._path(record.lease_id), json.dumps({"boot_id": boot_id(), **asdict(record)}), durable=False)

    def delete(self, lease_id: str) -> None:
        """Forget a lease."""
        self._path(lease_id).unlink(missing_ok=True)

    def load(self) -> tuple[LeaseRecord, ...]:
        """All readable records; one that is damaged is logged and left, its container is then found by its labels."""
        found = []
        for path in sorted(self._directory.glob("ls-*.json")):
            try:
                found.append(_record(json.loads(path.read_text())))
            except (OSError, ValueError, KeyError, TypeError) as error:
                logger.warning("%s cannot be read: %s", path, error)
        return tuple(found)

    def _path(self, lease_id: str) -> Path:
        if not LEASE_ID.fullmatch(lease_id):
            raise ValueError(f"not a lease id: {lease_id!r}")
        return self._directory / f"{lease_id}.json"


def _record(saved: dict[str, object]) -> LeaseRecord:
    same_boot = saved.pop("boot_id") == boot_id()
    record = LeaseRecord(**saved)  # type: ignore[arg-type]  # our own file; a wrong key is a TypeError
    if record.phase not in get_args(Phase):
        raise ValueError(f"unknown phase {record.phase!r}")
    record.devices = tuple(record.devices)
    if isinstance(record.desired, Mapping):
        record.desired = _desired(record.desired)
    if not same_boot:
        record.deadline = record.kill_at = None  # the clock began anew; the next pull brings what is left
    return record


def _desired(saved: Mapping[str, object]) -> DesiredLease:
    texts: Any = saved  # our own file, written by `save`; a wrong key is a TypeError
    lists = {name: tuple(texts.get(name, ())) for name in ("devices", "authorized_keys", "ssh_ca")}
    notices = tuple(Notice(*entry) for entry in texts.get("notices", ()))
    return DesiredLease(**{**texts, **lists, "notices": notices})

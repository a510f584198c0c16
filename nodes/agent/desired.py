"""What the portal wants on this node, as typed values.

Everything that comes from the portal passes through here once. Keys that are not listed are not read, so nothing the
portal might say beyond them can reach the engine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nodes.agent.failures import Failure

Want = Literal["run", "stop"]

LEASE_ID = re.compile(r"ls-[A-Za-z0-9]{1,40}")
DEVICE_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PATH = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
# [host[:port]/]path[:tag][@digest], as engines understand it.
IMAGE = re.compile(
    rf"(?=.{{1,400}}$)(?:[a-zA-Z0-9][a-zA-Z0-9.-]*(?::[0-9]{{1,5}})?/)?{_PATH}(?:/{_PATH})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
KEY_LINE = re.compile(r"[a-z0-9@.-]{3,64} [A-Za-z0-9+/]{16,8192}={0,2}( [^\r\n]{0,200})?")

MAX_BYTES = 1 << 50
MAX_ID = 64


class DesiredInvalidError(ValueError):
    """The portal's words for one lease cannot be carried out; says which field and why, and whose fault it is."""

    def __init__(self, message: str, failure: Failure = "failed_launch") -> None:
        super().__init__(message)
        self.failure: Failure = failure


class Notice(NamedTuple):
    """A line for the lease's open terminals; shown once per id."""

    id: str
    text: str


@dataclass(frozen=True)
class DesiredLease:
    """One lease that should exist on this node; units in the names, `deadline_s` counts from the answer's arrival."""

    id: str
    generation: int
    want: Want
    stop_reason: str
    devices: tuple[str, ...]
    image: str
    cpus_milli: int
    memory_bytes: int
    shm_bytes: int
    pids: int
    workspace_bytes: int
    authorized_keys: tuple[str, ...]
    deadline_s: int | None
    stop_grace_s: int
    notices: tuple[Notice, ...] = ()
    ssh_ca: tuple[str, ...] = ()  # public key lines of the portal's certificate authorities


def container_name(lease_id: str, generation: int) -> str:
    """The name of a lease's container and of its network: the idempotency key of both."""
    return f"lessor-{lease_id}-{generation}"


def lease_of_name(name: str) -> str:
    """The lease id inside the name of a container, volume or network (`lessor-<lease>-<generation>`)."""
    return name.removeprefix("lessor-").rpartition("-")[0]


def parse_lease(raw: Mapping[str, object]) -> DesiredLease:
    """Read one element of `desired.leases`.

    Raises:
        DesiredInvalidError: a field is missing, of the wrong type or outside its range.
    """
    want = _text(raw, "want")
    if want not in {"run", "stop"}:
        raise DesiredInvalidError(f"want must be run or stop, not {want!r}")
    deadline = raw.get("deadline_s")
    return DesiredLease(
        id=_matching(raw, "id", LEASE_ID),
        generation=_integer(raw, "generation", 1, 1 << 31),
        want="run" if want == "run" else "stop",
        stop_reason=_text(raw, "stop_reason"),
        devices=_devices(raw),
        image=_matching(raw, "image", IMAGE),
        cpus_milli=_integer(raw, "cpus_milli", 10, 4_096_000),
        memory_bytes=_integer(raw, "memory_bytes", 16 << 20, MAX_BYTES),
        shm_bytes=_integer(raw, "shm_bytes", 1 << 20, MAX_BYTES),
        pids=_integer(raw, "pids", 16, 1 << 20),
        workspace_bytes=_integer(raw, "workspace_bytes", 16 << 20, MAX_BYTES),
        authorized_keys=_keys(raw),
        deadline_s=None if deadline is None else max(0, _integer(raw, "deadline_s", -(1 << 40), 1 << 40)),
        stop_grace_s=_integer(raw, "stop_grace_s", 0, 3600),
        notices=_notices(raw),
        ssh_ca=_authorities(raw),
    )


def lease_id_of(raw: Mapping[str, object]) -> str | None:
    """The lease id of an element, where that much can be read of it."""
    value = raw.get("id")
    return value if isinstance(value, str) and LEASE_ID.fullmatch(value) else None


def _text(raw: Mapping[str, object], field: str) -> str:
    value = raw.get(field, "")
    if not isinstance(value, str):
        raise DesiredInvalidError(f"{field} must be text")
    return value


def _matching(raw: Mapping[str, object], field: str, pattern: re.Pattern[str]) -> str:
    value = _text(raw, field)
    if not pattern.fullmatch(value):
        failure: Failure = "failed_image" if field == "image" else "failed_launch"
        raise DesiredInvalidError(f"{field} has a form this node does not accept", failure)
    return value


def _integer(raw: Mapping[str, object], field: str, low: int, high: int) -> int:
    value = raw.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DesiredInvalidError(f"{field} must be a whole number")
    if not low <= value <= high:
        raise DesiredInvalidError(f"{field} must be between {low} and {high}")
    return value


def _texts(raw: Mapping[str, object], field: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
    values = raw.get(field)
    if not isinstance(values, list) or not all(isinstance(v, str) and pattern.fullmatch(v) for v in values):
        raise DesiredInvalidError(f"{field} must be a list of entries this node accepts")
    return tuple(values)


def _devices(raw: Mapping[str, object]) -> tuple[str, ...]:
    devices = _texts(raw, "devices", DEVICE_UUID)
    if not devices or len(set(devices)) != len(devices):
        raise DesiredInvalidError("devices must name at least one UUID and none of them twice")
    return devices


def _keys(raw: Mapping[str, object]) -> tuple[str, ...]:
    return _texts(raw, "authorized_keys", KEY_LINE)


def _notices(raw: Mapping[str, object]) -> tuple[Notice, ...]:
    """What can be read of them: no lease fails for a line of text."""
    values = raw.get("notices")
    entries = [entry for entry in values if isinstance(entry, Mapping)] if isinstance(values, list) else []
    pairs = [(entry.get("id"), entry.get("text")) for entry in entries]
    return tuple(Notice(i, t) for i, t in pairs if isinstance(i, str) and isinstance(t, str) and 0 < len(i) <= MAX_ID)


def _authorities(raw: Mapping[str, object]) -> tuple[str, ...]:
    """Those in a form this node accepts; without one the portal's own logins fail, and no renter's."""
    values = raw.get("ssh_ca")
    lines = values if isinstance(values, list) else []
    return tuple(line for line in lines if isinstance(line, str) and KEY_LINE.fullmatch(line))

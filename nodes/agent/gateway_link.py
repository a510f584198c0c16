"""What the agent tells the SSH gateway (RUN/gateway/leases.json) and asks it (RUN/gateway/control.sock).

The file is the gateway's whole truth about who may log in. It is kept across a restart of the agent, since an empty one
would cut every session.
"""

import grp
import json
import os
import socket
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodes.agent.config import write_private

ASK_TIMEOUT_S = 5.0


class GatewayDownError(Exception):
    """The gateway does not answer on its control socket."""


@dataclass(frozen=True)
class GatewayAnswer:
    """Fingerprints ("SHA256:…") the gateway lets in for a lease now, and its host key as a public key line."""

    keys: frozenset[str]
    host_key: str


class GatewayLink:
    """The agent's side of both; safe to use from several threads."""

    def __init__(self, run_dir: Path, group: str) -> None:
        self._directory = run_dir / "gateway"
        self._group = group_id(group)
        self._lock = threading.Lock()
        share_directory(self._directory, group)
        self._leases: dict[str, dict[str, object]] = self._load()

    def put(
        self, lease_id: str, keys: Collection[str], probe_key: str | None = None, *, authorities: Collection[str] = ()
    ) -> None:
        """Let exactly these key lines into a lease, and who has a certificate of these authorities.

        It holds from the gateway's next look at the file.
        """
        entry: dict[str, object] = {"keys": list(keys), "probe_key": probe_key, "ca": list(authorities)}
        with self._lock:
            if self._leases.get(lease_id) != entry:
                self._leases[lease_id] = entry
                self._write()

    def let_probe(self, lease_id: str, probe_key: str | None) -> None:
        """Let this probe key in beside the lease's keys, or none any more; a lease that is not there stays away."""
        with self._lock:
            entry = self._leases.get(lease_id)
            if entry is not None and entry.get("probe_key") != probe_key:
                self._leases[lease_id] = {**entry, "probe_key": probe_key}
                self._write()

    def drop(self, lease_id: str) -> None:
        """Let nobody into a lease any more; its live connections are cut by the gateway."""
        with self._lock:
            if self._leases.pop(lease_id, None) is not None:
                self._write()

    def retain(self, lease_ids: Collection[str]) -> None:
        """Drop every lease but these; the file exists afterwards."""
        with self._lock:
            self._leases = {lease: entry for lease, entry in self._leases.items() if lease in lease_ids}
            self._write()

    def ask(self, lease_id: str) -> GatewayAnswer:
        """What the gateway would do for a lease at this moment.

        Raises:
            GatewayDownError: no answer, or none that can be read.
        """
        answer = self._control({"op": "keys", "lease": lease_id})
        keys = answer.get("keys")
        return GatewayAnswer(frozenset(keys if isinstance(keys, list) else ()), str(answer.get("host_key", "")))

    def show(self, lease_id: str, text: str) -> int:
        """Write a line to the open terminals of a lease; how many there were.

        Raises:
            GatewayDownError: no answer, or none that can be read.
        """
        terminals = self._control({"op": "notice", "lease": lease_id, "text": text}).get("terminals")
        if not isinstance(terminals, int):
            raise GatewayDownError("the SSH gateway does not take notices")
        return terminals

    def last_inputs(self) -> dict[str, float | None]:
        """Seconds since somebody sent something into a session or forward of each lease; None: never.

        Raises:
            GatewayDownError: no answer, or none that can be read.
        """
        leases = self._control({"op": "activity"}).get("leases")
        try:
            found = {str(lease): facts["last_input_s"] for lease, facts in leases.items()}  # type: ignore[attr-defined]
            return {lease: None if seconds is None else float(seconds) for lease, seconds in found.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise GatewayDownError("the SSH gateway does not say who typed when") from error

    def _control(self, question: Mapping[str, object]) -> dict[str, object]:
        """One question on the control socket; raises GatewayDownError without an answer that is an object."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ASK_TIMEOUT_S)
                connection.connect(str(self._directory / "control.sock"))
                connection.sendall((json.dumps(question) + "\n").encode())
                with connection.makefile("r") as stream:
                    answer = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise GatewayDownError(f"the SSH gateway does not answer: {type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise GatewayDownError("the SSH gateway does not answer: no object")
        return answer

    def _write(self) -> None:
        path = self._directory / "leases.json"
        draft = path.with_name(".leases.json.ready")
        write_private(draft, json.dumps({"leases": self._leases}), mode=0o640, durable=False)  # of this boot
        if self._group is not None:
            os.chown(draft, 0, self._group)
        draft.replace(path)

    def _load(self) -> dict[str, dict[str, object]]:
        try:
            return dict(json.loads((self._directory / "leases.json").read_text())["leases"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # first start, or the run directory was emptied by a reboot


def share_directory(path: Path, group: str) -> None:
    """A directory that the agent and the gateway's group may both write in, and nobody else enter."""
    path.mkdir(parents=True, exist_ok=True)
    gid = group_id(group)
    if gid is not None:
        os.chown(path, -1, gid)
    path.chmod(0o2770)


def group_id(group: str) -> int | None:
    """The number of a group, None where this machine has no such group: then only root shares with the gateway."""
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None

"""The proof that a lease is ready: the gateway has its keys, a real login works, and the container sees its devices.

The login is made with a throw-away key on the port renters use, so everything between a renter's client and the inside
of the container has worked once before the lease is charged.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import asyncssh

from nodes.agent.desired import DesiredLease
from nodes.agent.failures import LaunchError
from nodes.agent.gateway_link import GatewayAnswer, GatewayDownError, GatewayLink

PROOF_LIMIT_S = 45.0
LOGIN_TIMEOUT_S = 15.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5

Pause = Callable[[float], None]


@dataclass(frozen=True)
class ProbeKey:
    """A throw-away Ed25519 key: lives in memory, for one proof."""

    private: asyncssh.SSHKey = field(repr=False)

    @classmethod
    def make(cls) -> "ProbeKey":
        """A fresh key."""
        return cls(asyncssh.generate_private_key("ssh-ed25519"))

    @property
    def public_line(self) -> str:
        """As it stands in leases.json."""
        return self.private.export_public_key().decode().strip()

    @property
    def fingerprint(self) -> str:
        """SHA256:…, as the gateway names it."""
        return self.private.get_fingerprint()


class Prover(Protocol):
    """Proves a started lease ready."""

    def prove(self, lease: DesiredLease, key: ProbeKey, pause: Pause) -> Mapping[str, object]:
        """The evidence of `ready`; raises LaunchError when it cannot be had, or whatever `pause` raises."""


class SshProver:
    """The proof through the gateway of this machine."""

    def __init__(self, gateway: GatewayLink, port: int, host: str = "127.0.0.1") -> None:
        self._gateway = gateway
        self._host = host
        self._port = port

    def prove(self, lease: DesiredLease, key: ProbeKey, pause: Pause) -> Mapping[str, object]:
        """See Prover."""
        give_up = time.monotonic() + PROOF_LIMIT_S
        wanted = frozenset(fingerprint(line) for line in lease.authorized_keys)
        delay, problem = FIRST_PAUSE_S, ""
        while time.monotonic() < give_up:
            try:
                answer = self._gateway.ask(lease.id)
                seen = answer.keys - {key.fingerprint}
                if seen == wanted:
                    begin = time.monotonic()
                    output = asyncio.run(self._login(lease.id, key, answer))
                    return _evidence(lease, output, seen, (time.monotonic() - begin) * 1000)
                problem = "the SSH gateway does not have the lease's keys"
            except GatewayDownError as error:
                problem = str(error)
            except (OSError, asyncssh.Error, TimeoutError) as error:
                problem = f"logging in over SSH failed: {type(error).__name__}: {error}"
            pause(delay)
            delay = min(delay * 2, LONGEST_PAUSE_S)
        raise LaunchError("failed_launch", f"The lease started, but {problem}.")

    async def knock(self, lease_id: str, key: ProbeKey, answer: GatewayAnswer) -> str:
        """Log in once more, to see whether the way in is open; why nothing starts inside, empty where it does.

        Raises OSError, TimeoutError, asyncssh.Error where the login itself fails.
        """
        options = self._options(lease_id, key, answer)
        async with asyncssh.connect(self._host, self._port, options=options) as connection:
            try:
                result = await asyncio.wait_for(connection.run("probe", check=False), LOGIN_TIMEOUT_S)
            except (TimeoutError, asyncssh.Error) as error:
                return type(error).__name__
        return "" if result.exit_status == 0 else str(result.stderr or "").strip()[:200]

    async def _login(self, lease_id: str, key: ProbeKey, answer: GatewayAnswer) -> str:
        options = self._options(lease_id, key, answer)
        async with asyncssh.connect(self._host, self._port, options=options) as connection:
            result = await asyncio.wait_for(connection.run("probe", check=False), LOGIN_TIMEOUT_S)
        return str(result.stdout or "")

    def _options(self, lease_id: str, key: ProbeKey, answer: GatewayAnswer) -> asyncssh.SSHClientConnectionOptions:
        host_key = asyncssh.import_public_key(answer.host_key)
        return asyncssh.SSHClientConnectionOptions(
            username=lease_id,
            client_keys=[key.private],
            known_hosts=([host_key], [], []),
            agent_path=None,
            config=None,
            preferred_auth="publickey",
            connect_timeout=LOGIN_TIMEOUT_S,
            login_timeout=LOGIN_TIMEOUT_S,
        )


def fingerprint(line: str) -> str:
    """SHA256 fingerprint of a public key line.

    Raises:
        LaunchError: not a public key.
    """
    try:
        return asyncssh.import_public_key(line).get_fingerprint()
    except asyncssh.KeyImportError as error:
        raise LaunchError("failed_launch", "One of the tenant's SSH keys cannot be read.") from error


def parse_probe(output: str) -> tuple[str, tuple[str, ...]]:
    """Source and sorted device UUIDs of the probe's JSON line.

    Raises:
        ValueError: not the probe's output.
    """
    lines = output.strip().splitlines()
    answer = json.loads(lines[-1]) if lines else None
    if not isinstance(answer, dict) or not isinstance(answer.get("devices"), list):
        raise ValueError("no JSON object with devices")  # noqa: TRY004  # the text is wrong, not a type
    return str(answer.get("source", "")), tuple(sorted(str(device) for device in answer["devices"]))


def _evidence(lease: DesiredLease, output: str, keys: frozenset[str], ssh_ms: float) -> Mapping[str, object]:
    try:
        source, devices = parse_probe(output)
    except ValueError as error:
        raise LaunchError("failed_launch", f"The probe inside the container said nothing usable: {error}.") from error
    if devices != tuple(sorted(lease.devices)):
        seen = ", ".join(devices) or "none"
        raise LaunchError("failed_gpu", f"The container sees other GPUs than the lease's: {seen}.")
    return {
        "devices_seen": list(devices),
        "devices_source": source,
        "keys_seen": sorted(keys),
        "ssh_ms": round(ssh_ms),
    }

"""What the connections of one gateway process share: the listener, the list of leases, the limits, the watch."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import asyncssh

from nodes.gateway.activity import Activity
from nodes.gateway.audit import AuditLog
from nodes.gateway.config import GatewayConfig
from nodes.gateway.connection import Connection
from nodes.gateway.execd_client import ExecdClient
from nodes.gateway.leases import LeaseBook
from nodes.gateway.rates import Bucket, DoorRate

LOOK_S = 0.2  # how often leases.json is looked at
MAX_NOTICE = 500  # characters of a line on terminals
LOGIN_BURST_S = 10  # so many seconds' worth of logins may come at once
# What of refused logins is written down: strangers must fill neither the disk nor the portal's database.
REFUSALS_PER_S, REFUSALS_AT_ONCE = 1.0, 200.0
# The client's order decides, and the usual client's begins with ChaCha20, which costs half as much processor time again
# (measured: 10.9 s per GiB sent, 6.6 with aes128-ctr, 6.9 with aes128-gcm). So it is not offered.
CIPHERS = ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr"]
SIGNATURES = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "rsa-sha2-256",
    "rsa-sha2-512",
]


class Gateway:
    """One process of the gateway. What it counts, it counts for itself."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.book = LeaseBook(config.leases_file)
        self.execd = ExecdClient(config.execd_socket)
        self.audit = AuditLog(config.audit_file)
        self.activity = Activity()
        self.door = DoorRate(config.login_rate, config.login_rate * LOGIN_BURST_S)
        self.refusals = Bucket(REFUSALS_PER_S, REFUSALS_AT_ONCE)
        self.unwritten = 0  # refusals that were not written down since the last one that was
        self.startups: set[Connection] = set()
        self.live: set[Connection] = set()

    async def listen(self, listener: socket.socket) -> asyncssh.SSHAcceptor:
        """Serve SSH on a bound socket."""
        return await asyncssh.listen(
            sock=listener,
            server_factory=lambda: Connection(self),
            server_host_keys=[str(self.config.host_key_file)],
            server_version="Lessor",
            encryption_algs=CIPHERS,
            signature_algs=SIGNATURES,
            encoding=None,
            line_editor=False,
            allow_scp=False,
            agent_forwarding=False,
            x11_forwarding=False,
            compression_algs=None,
            keepalive_interval=self.config.keepalive_s,
            login_timeout=self.config.login_timeout_s,
        )

    async def watch(self) -> None:
        """Drop what the agent's list no longer admits. Runs for ever."""
        acted_on = 0
        while True:
            if (reading := self.book.refresh()) != acted_on:
                acted_on = reading
                self.activity.retain(self.book.lease_ids())
                for connection in list(self.live):
                    connection.check_still_admitted()
            await asyncio.sleep(LOOK_S)

    async def close_all(self, limit_s: float) -> None:
        """Say good-bye to every connection and give them a moment to close their sessions."""
        connections = [*self.live, *self.startups]
        for connection in connections:
            connection.drop("the gateway is stopping")
        closing = [asyncio.ensure_future(connection.wait_closed()) for connection in connections]
        if closing:
            await asyncio.wait(closing, timeout=limit_s)

    def of(self, lease_id: str) -> list[Connection]:
        """The logged-in connections of a lease, probes aside."""
        return [found for found in self.live if found.lease_id == lease_id and not found.probe_only]

    # -- asked by the agent, see nodes/gateway/control.py --------------------------------------------------------------

    def usage(self) -> dict[str, dict[str, Any]]:
        """By lease: seconds since the last input (None: never), sessions and forwards open now."""
        count = dict.fromkeys(self.book.lease_ids(), 0)
        for connection in self.live:
            if connection.lease_id in count and not connection.probe_only:
                count[connection.lease_id] += len(connection.sessions) + len(connection.forwards)
        return {
            lease_id: {"last_input_s": self.activity.since_s(lease_id), "sessions": sessions}
            for lease_id, sessions in count.items()
        }

    def notice(self, lease_id: str, text: str) -> int:
        """Write one line to every open terminal of a lease, and to nothing else; how many there were."""
        plain = "".join(letter if letter.isprintable() else " " for letter in text[:MAX_NOTICE]).strip()
        line = f"\r\n*** {plain} ***\r\n".encode()
        return sum(session.show(line) for connection in self.of(lease_id) for session in list(connection.sessions))

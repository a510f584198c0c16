"""The SSH side: who may log in, what a connection may open, and when it is dropped."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable

import asyncssh

from nodes.gateway.audit import AuditLog
from nodes.gateway.config import GatewayConfig
from nodes.gateway.execd_client import ExecdClient
from nodes.gateway.forward import LeaseForward, require_loopback
from nodes.gateway.leases import LeaseBook
from nodes.gateway.session import LeaseSession

log = logging.getLogger(__name__)

LOOK_S = 0.2  # how often leases.json is looked at
LAST_WORD_S = 0.3  # for a dropped client to read why; then the connection is cut
MAX_REFUSED_KEYS = 20
MAX_NAME = 64
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
    """What the connections of one process share."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.book = LeaseBook(config.leases_file)
        self.execd = ExecdClient(config.execd_socket)
        self.audit = AuditLog(config.audit_file)
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
        while True:
            if self.book.refresh():
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

    def connections_of(self, lease_id: str) -> int:
        """How many logged-in connections a lease has in this process, probes aside."""
        return sum(1 for connection in self.live if connection.lease_id == lease_id and not connection.probe_only)


class Connection(asyncssh.SSHServer):
    """One SSH connection, from the first byte to the last."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connection: asyncssh.SSHServerConnection
        self._peer = ""
        self._key = b""
        self._fingerprint = ""
        self._refused = 0
        self._told = False
        self._open: set[LeaseSession | LeaseForward] = set()
        self.lease_id = ""
        self.probe_only = False

    # -- before the login ----------------------------------------------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Somebody is at the door; too many who do not log in keep others out, so their number has a limit."""
        self._connection = conn
        address = conn.get_extra_info("peername")
        self._peer = str(address[0]) if address else "unknown"
        if len(self._gateway.startups) >= self._gateway.config.max_startups:
            conn.abort()
            return
        self._gateway.startups.add(self)

    def begin_auth(self, username: str) -> bool:
        """Nobody comes in without a key, whatever the name."""
        self.lease_id = username
        return True

    def public_key_auth_supported(self) -> bool:
        """Keys are the only way in."""
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether the lease admits this key. An unknown lease has no keys, so it answers exactly like a wrong key."""
        keys = self._gateway.book.of(username)
        self._key = key.public_data
        self._fingerprint = keys.keys.get(self._key) or key.get_fingerprint()
        self.probe_only = self._key == keys.probe and self._key not in keys.keys
        if keys.admits(self._key):
            return True
        self._refused += 1
        self._audit("auth_refused")
        if self._refused >= MAX_REFUSED_KEYS:
            self.drop("too many keys were tried")
        return False

    def password_auth_supported(self) -> bool:
        """There are no passwords."""
        return False

    def kbdint_auth_supported(self) -> bool:
        """Offered once, to clients that have no more keys to try: the one moment to say why they stay outside."""
        return not self._told

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> bool:
        """Explain, and refuse. The sentence is the same whether the lease or the key is unknown."""
        self._told = True
        self._connection.send_auth_banner(
            f"lessor: no running lease {_plain(username)} admits the keys you offered.\r\n"
            "lessor: the lease may not be running, or your key is not on it.\r\n"
        )
        return False

    # -- logged in -----------------------------------------------------------------------------------------------------

    def auth_completed(self) -> None:
        """The key was proved."""
        gateway = self._gateway
        gateway.startups.discard(self)
        limit = gateway.config.max_connections
        full = not self.probe_only and gateway.connections_of(self.lease_id) >= limit
        gateway.live.add(self)
        self._audit("login")
        if full:
            self.drop(f"{self.lease_id} has {limit} connections already, which is the limit")

    def session_requested(self) -> LeaseSession:
        """A shell, command or sftp; which of them is asked next."""
        self._require_room()
        session = LeaseSession(
            lease_id=self.lease_id,
            peer=self._peer,
            probe_only=self.probe_only,
            execd=self._gateway.execd,
            audit=self._gateway.audit,
            facts={"lease": self.lease_id, "peer": self._peer, "fingerprint": self._fingerprint},
            ended=self._open.discard,
        )
        self._open.add(session)
        return session

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Awaitable[LeaseForward]]:
        """A forward to the lease's loopback."""
        allowed = False
        try:
            if self.probe_only:
                raise asyncssh.ChannelOpenError(
                    asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "the probe key opens nothing"
                )
            require_loopback(dest_host)
            self._require_room()
            allowed = True
        finally:
            self._audit("forward", host=_plain(dest_host), port=dest_port, allowed=allowed)
        channel = self._connection.create_tcp_channel()
        forward = LeaseForward(self._open.discard)
        self._open.add(forward)
        return channel, forward.reach(self._gateway.execd, self.lease_id, dest_host, dest_port, channel)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._gateway.startups.discard(self)
        if self in self._gateway.live:
            self._gateway.live.discard(self)
            self._audit("logout")

    def check_still_admitted(self) -> None:
        """Drop the connection if its lease has ended or its key was taken away."""
        if not self._gateway.book.of(self.lease_id).admits(self._key):
            self._audit("revoked")
            self.drop(f"{self.lease_id} has ended or no longer admits your key")

    def drop(self, reason: str) -> None:
        """End the connection, telling the client why if it listens."""
        self._connection.disconnect(asyncssh.DISC_BY_APPLICATION, f"lessor: {reason}")
        asyncio.get_running_loop().call_later(LAST_WORD_S, self._connection.abort)

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await self._connection.wait_closed()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _require_room(self) -> None:
        limit = self._gateway.config.max_sessions
        if len(self._open) >= limit:
            raise asyncssh.ChannelOpenError(
                asyncssh.OPEN_RESOURCE_SHORTAGE, f"{limit} sessions and forwards are open, which is the limit"
            )

    def _audit(self, event: str, **facts: str | int | bool) -> None:
        lease = _plain(self.lease_id)
        self._gateway.audit.write(event, lease=lease, peer=self._peer, fingerprint=self._fingerprint, **facts)


def _plain(text: str) -> str:
    """A name from outside, fit for a message: printable and short."""
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_NAME])

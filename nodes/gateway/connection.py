"""One SSH connection: who may log in, what it may open, and when it is dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import asyncssh
from asyncssh.constants import MSG_DISCONNECT
from asyncssh.packet import String, UInt32

from nodes.gateway import certificates
from nodes.gateway.audit import Fact
from nodes.gateway.forward import LeaseForward, require_loopback
from nodes.gateway.session import LeaseSession

if TYPE_CHECKING:
    from nodes.gateway.server import Gateway

LAST_WORD_S = 0.3  # for a dropped client to read why; then the connection is cut
MAX_REFUSED_KEYS = 20
MAX_NAME = 64
MAX_TARGETS = 32  # targets of forwards that are written down for one connection

Judge = Callable[[str, bytes, bytes, bytes], Coroutine[Any, Any, bool]]


class Connection(asyncssh.SSHServer):
    """One SSH connection, from the first byte to the last. `portal`: it was opened with a certificate of the portal."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._connection: asyncssh.SSHServerConnection
        self._peer = ""
        self._key = b""  # the key that was shown, or the authority that signed the certificate that was
        self._fingerprint = ""
        self._certificate: certificates.Certificate | None = None
        self._refused = 0
        self._told = False
        self._targets: set[tuple[str, int]] = set()
        self._bytes_in = self._bytes_out = 0  # of what is closed already
        self.sessions: set[LeaseSession] = set()
        self.forwards: set[LeaseForward] = set()
        self.lease_id = ""
        self.probe_only = False
        self.portal = False

    # -- before the login ----------------------------------------------------------------------------------------------

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        """Somebody is at the door; those who only stand there keep others out, so their number and pace have limits."""
        self._connection = conn
        # asyncssh shows us the signer of a certificate but not the certificate.
        conn.validate_public_key = self._reading_certificates(conn.validate_public_key)  # type: ignore[assignment,method-assign]
        address = conn.get_extra_info("peername")
        self._peer = str(address[0]) if address else "unknown"
        limits = self._gateway.config
        if len(self._gateway.startups) >= limits.max_startups:
            self._turn_away(f"{limits.max_startups} connections are logging in, which is the limit; try again")
        elif not self._gateway.door.admits(self._peer):
            self._turn_away(f"more than {limits.login_rate:g} connections a second from {self._peer}; try again")
        else:
            self._gateway.startups.add(self)

    def _turn_away(self, reason: str) -> None:
        # Not at once: the client listens after our version, which asyncssh sends when this has returned.
        asyncio.get_running_loop().call_soon(self.drop, reason)

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
        self.portal = False
        self.probe_only = self._key == keys.probe and self._key not in keys.keys
        return keys.admits(self._key) or self._refuse("")

    def validate_ca_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Whether the lease admits the certificate that was shown, which this key has signed."""
        authorities = self._gateway.book.of(username).authorities
        self._key, self._fingerprint = key.public_data, key.get_fingerprint()
        self.portal, self.probe_only = True, False
        if self._certificate is None or self._key not in authorities:
            return self._refuse("certificate: not of this portal")
        fault = self._certificate.fault(username, time.time())
        return self._refuse(f"certificate: {fault}") if fault else True

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
        # Each kind for itself, so that a renter's own clients do not lock the portal's terminal out.
        full = not self.probe_only and sum(c.portal == self.portal for c in gateway.of(self.lease_id)) >= limit
        gateway.live.add(self)
        self._audit("login")
        if full:
            self.drop(f"{self.lease_id} has {limit} connections already, which is the limit")

    def session_requested(self) -> LeaseSession:
        """A shell, command or sftp; which of them is asked next."""
        limit = self._gateway.config.max_sessions
        if sum(len(connection.sessions) for connection in self._gateway.of(self.lease_id)) >= limit:
            raise _no_room(f"{limit} sessions are open in this lease, which is the limit")
        session = LeaseSession(
            lease_id=self.lease_id,
            peer=self._peer,
            probe_only=self.probe_only,
            execd=self._gateway.execd,
            audit=self._gateway.audit,
            facts=self._facts(),
            ended=self._session_ended,
            on_input=self._note_input,
        )
        self.sessions.add(session)
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
            limit = self._gateway.config.max_forwards
            if sum(len(connection.forwards) for connection in self._gateway.of(self.lease_id)) >= limit:
                raise _no_room(f"{limit} forwards are open in this lease, which is the limit")
            allowed = True
        finally:
            self._audit_forward(_plain(dest_host), dest_port, allowed=allowed)
        channel = self._connection.create_tcp_channel()
        forward = LeaseForward(ended=self._forward_ended, on_input=self._note_forward_input)
        self.forwards.add(forward)
        return channel, forward.reach(self._gateway.execd, self.lease_id, dest_host, dest_port, channel)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._gateway.startups.discard(self)
        if self in self._gateway.live:
            self._gateway.live.discard(self)
            for session in self.sessions:
                self._count(session)
            for forward in self.forwards:
                self._count(forward)
            self._audit("logout", bytes_in=self._bytes_in, bytes_out=self._bytes_out)

    def check_still_admitted(self) -> None:
        """Drop the connection if its lease has ended or its key was taken away."""
        keys = self._gateway.book.of(self.lease_id)
        if not (self._key in keys.authorities if self.portal else keys.admits(self._key)):
            self._audit("revoked")
            self.drop(f"{self.lease_id} has ended or no longer admits your key")

    def drop(self, reason: str) -> None:
        """End the connection, telling the client why if it listens; nothing that it still sends is looked at.

        asyncssh's own disconnect closes at once. What the client is sending then makes its system forget our last word.
        """
        self._connection.data_received = _ignore  # type: ignore[method-assign]
        last_word = (UInt32(asyncssh.DISC_BY_APPLICATION), String(f"lessor: {reason}"), String("en"))
        self._connection.send_packet(MSG_DISCONNECT, *last_word)
        asyncio.get_running_loop().call_later(LAST_WORD_S, self._connection.abort)

    async def wait_closed(self) -> None:
        """Wait until the connection is gone."""
        await self._connection.wait_closed()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _reading_certificates(self, judge: Judge) -> Judge:
        async def judged(username: str, blob: bytes, message: bytes, signature: bytes) -> bool:
            self._certificate = certificates.read(blob)
            return await judge(username, blob, message, signature)

        return judged

    def _refuse(self, why: str) -> bool:
        """Note a key that does not open; always False."""
        self._refused += 1
        if self._gateway.refusals.take():
            unwritten, self._gateway.unwritten = self._gateway.unwritten, 0
            self._audit("auth_refused", why=why or None, unwritten=unwritten or None)
        else:
            self._gateway.unwritten += 1
        if self._refused >= MAX_REFUSED_KEYS:
            self.drop("too many keys were tried")
        return False

    def _note_input(self) -> None:
        if not self.probe_only:
            self._gateway.activity.note(self.lease_id)

    def _note_forward_input(self) -> None:
        # Of the portal's forwards, which serve browsers, pages that ask by themselves are most.
        if not self.portal:
            self._note_input()

    def _session_ended(self, session: LeaseSession) -> None:
        if session in self.sessions:
            self.sessions.discard(session)
            self._count(session)

    def _forward_ended(self, forward: LeaseForward) -> None:
        if forward in self.forwards:
            self.forwards.discard(forward)
            self._count(forward)

    def _count(self, ended: LeaseSession | LeaseForward) -> None:
        self._bytes_in += ended.bytes_in
        self._bytes_out += ended.bytes_out

    def _audit_forward(self, host: str, port: int, *, allowed: bool) -> None:
        """Once for each target of a connection: a browser opens hundreds to the same one."""
        if (host, port) not in self._targets and len(self._targets) < MAX_TARGETS:
            self._targets.add((host, port))
            self._audit("forward", host=host, port=port, allowed=allowed)

    def _facts(self) -> dict[str, Fact]:
        return {
            "lease": _plain(self.lease_id),
            "peer": self._peer,
            "fingerprint": self._fingerprint,
            "probe": self.probe_only or None,
            "portal": self.portal or None,
        }

    def _audit(self, event: str, **facts: Fact) -> None:
        self._gateway.audit.write(event, **self._facts(), **facts)


def _ignore(data: bytes, datatype: int | None = None) -> None:
    """What a dropped client sends."""


def _no_room(reason: str) -> asyncssh.ChannelOpenError:
    return asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, reason)


def _plain(text: str) -> str:
    """A name from outside, fit for a message: printable and short."""
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_NAME])

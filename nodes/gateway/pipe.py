"""Bytes between an SSH channel and a socket of the node, with back-pressure both ways."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from asyncssh import EXTENDED_DATA_STDERR, SSHServerChannel, SSHTCPChannel

from nodes.gateway.frames import STDERR, FrameError, FrameParser

WRITE_BUFFER_BYTES = 256 * 1024
# What may still be on its way when a process has ended: its pipe, the engine's buffer of 1 MiB and the sockets between.
REST_BYTES = 4 * 1024 * 1024

Channel = SSHServerChannel[bytes] | SSHTCPChannel[bytes]


class Pipe(asyncio.Protocol):
    """The node's end of a channel: what the socket delivers is written to the channel.

    `framed` streams are unpacked, their second stream goes to stderr. `ended` is set when the socket will deliver no
    more, `delivered` counts what it has so far. The channel's session must call `pause` and `resume` when the channel
    asks it to.
    """

    def __init__(self, channel: Channel, *, framed: bool = False) -> None:
        self.ended = asyncio.Event()
        self.closed = asyncio.Event()
        self.delivered = 0
        self._channel = channel
        self._parser = FrameParser() if framed else None
        self._transport: asyncio.Transport | None = None
        self._taking_rest = False

    @classmethod
    async def over(cls, stream: socket.socket, channel: Channel, *, framed: bool = False) -> Pipe:
        """Put a connected, non-blocking socket behind a channel."""
        pipe = cls(channel, framed=framed)
        loop = asyncio.get_running_loop()
        if stream.family == socket.AF_UNIX:
            await loop.create_unix_connection(lambda: pipe, sock=stream)
        else:
            await loop.create_connection(lambda: pipe, sock=stream)
        return pipe

    # -- from the channel ----------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send on what the client sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_eof(self) -> None:
        """Half-close towards the node. Never for a terminal: the engine would hang up the shell."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause(self) -> None:
        """Read nothing more for now: the client takes no more."""
        if self._taking_rest and self._channel.get_write_buffer_size() < REST_BYTES:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def take_rest(self) -> None:
        """Read on whatever the client does.

        Engines throw away what they cannot deliver within 2 s of a process's end.
        """
        self._taking_rest = True
        self.resume()

    def close(self) -> None:
        """Drop the socket, with whatever the node has not taken yet."""
        if self._transport is not None:
            self._transport.abort()

    # -- from the socket (asyncio.Protocol) ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is ours now."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        """Hand on; a stream that is not what it should be ends here."""
        if self._channel.is_closing():
            return
        try:
            if self._parser is None:
                self.delivered += len(data)
                self._channel.write(data)
            else:
                for stream, piece in self._parser.feed(data):
                    self.delivered += len(piece)
                    self._channel.write(piece, EXTENDED_DATA_STDERR if stream == STDERR else None)
        except FrameError:
            self.close()
        if self._taking_rest and self._channel.get_write_buffer_size() > REST_BYTES:
            self.pause()

    def eof_received(self) -> bool:
        """No more will come; the other direction stays open."""
        self.ended.set()
        return True

    def pause_writing(self) -> None:
        """The node takes no more for now: let the client's window close."""
        self._channel.pause_reading()

    def resume_writing(self) -> None:
        """The node has caught up."""
        self._channel.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone in both directions."""
        self.ended.set()
        self.closed.set()
        self._channel.resume_reading()  # so that what the client still sends is dropped and not held

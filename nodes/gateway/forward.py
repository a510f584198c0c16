"""A forwarded TCP connection (ssh -L, -D, VS Code, the portal's web apps) to a port of the lease's own loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import asyncssh

from nodes.gateway.execd_client import ExecdClient, ExecdError
from nodes.gateway.pipe import Pipe

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def require_loopback(host: str) -> None:
    """Only the lease itself: the gateway is no way to other machines."""
    if host not in LOOPBACK:
        raise asyncssh.ChannelOpenError(
            asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "only 127.0.0.1, localhost and ::1 of the lease can be reached"
        )


class LeaseForward(asyncssh.SSHTCPSession[bytes]):
    """What asyncssh calls for one forwarded connection.

    `ended` is called once, when it no longer counts; `on_input` whenever the client has sent something.
    """

    def __init__(self, *, ended: Callable[[LeaseForward], None], on_input: Callable[[], None]) -> None:
        self.bytes_in = 0
        self._ended = ended
        self._on_input = on_input
        self._channel: asyncssh.SSHTCPChannel[bytes]
        self._pipe: Pipe | None = None
        self._task: asyncio.Task[None] | None = None
        self._client_done = asyncio.Event()

    @property
    def bytes_out(self) -> int:
        """What came out of the lease so far."""
        return self._pipe.delivered if self._pipe is not None else 0

    async def reach(
        self, execd: ExecdClient, lease_id: str, host: str, port: int, channel: asyncssh.SSHTCPChannel[bytes]
    ) -> LeaseForward:
        """Connect inside the lease; raises ChannelOpenError with the reason where nothing answers."""
        try:
            stream = await execd.connect(lease_id, host, port)
            self._pipe = await Pipe.over(stream, channel)
        except (ExecdError, OSError) as error:
            self._ended(self)
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(error)) from error
        self._pipe.pause()  # until the client has been told that it is open
        return self

    def connection_made(self, chan: asyncssh.SSHTCPChannel[bytes]) -> None:
        """The client was told."""
        self._channel = chan

    def session_started(self) -> None:
        """Bytes may flow."""
        if self._pipe is not None:
            self._task = asyncio.get_running_loop().create_task(self._until_closed(self._pipe))
            self._pipe.resume()

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """From the client."""
        self.bytes_in += len(data)
        self._on_input()
        if self._pipe is not None:
            self._pipe.write(data)

    def eof_received(self) -> bool:
        """The client's direction is done; the other may go on."""
        self._client_done.set()
        if self._pipe is not None:
            self._pipe.write_eof()
        return True

    def pause_writing(self) -> None:
        """The client does not keep up."""
        if self._pipe is not None:
            self._pipe.pause()

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._pipe is not None:
            self._pipe.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed."""
        if self._pipe is not None:
            self._pipe.close()
        if self._task is not None:
            self._task.cancel()
        self._ended(self)

    async def _until_closed(self, pipe: Pipe) -> None:
        """Over when both directions have ended, each by itself, or the lease's side broke off."""
        await pipe.ended.wait()
        if not self._channel.is_closing():
            self._channel.write_eof()
        halves = {asyncio.ensure_future(event.wait()) for event in (pipe.closed, self._client_done)}
        _, waiting = await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        for half in waiting:
            half.cancel()
        self._channel.close()

"""One SSH session: a shell, a command or sftp, each a process in the lease's container started by execd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import asyncssh

from nodes.gateway.audit import AuditLog, Fact
from nodes.gateway.execd_client import ExecdClient, ExecdError
from nodes.gateway.pipe import Pipe

FAILED = 255  # what ssh itself answers where there was no exit status
DRAIN_S = 2.0  # a terminal's last output after its shell has ended
MAX_SIDE = 4096  # execd's limit for a terminal, in characters


class LeaseSession(asyncssh.SSHServerSession[bytes]):
    """What asyncssh calls for one session channel.

    `ended` is called once, when the session no longer counts; `on_input` whenever the client has sent something. A
    session opened with a lease's probe key (`probe_only`) may run the command "probe" and nothing else.
    """

    def __init__(
        self,
        *,
        lease_id: str,
        peer: str,
        probe_only: bool,
        execd: ExecdClient,
        audit: AuditLog,
        facts: Mapping[str, Fact],
        ended: Callable[[LeaseSession], None],
        on_input: Callable[[], None],
    ) -> None:
        self.bytes_in = 0
        self._request: dict[str, Any] = {"lease": lease_id, "peer": peer, "kind": "", "tty": False, "command": None}
        self._probe_only = probe_only
        self._execd = execd
        self._audit = audit
        self._facts = facts
        self._ended = ended
        self._on_input = on_input
        self._channel: asyncssh.SSHServerChannel[bytes]
        self._pipe: Pipe | None = None
        self._early: list[
            bytes
        ] = []  # what came before there was a pipe; the channel is paused then, so it stays small
        self._eof = False
        self._started = False
        self._gone = asyncio.Event()
        self._slow = False
        self._size = (80, 24)
        self._session_id = ""
        self._resizing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- asked by the client -------------------------------------------------------------------------------------------

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """The channel is open."""
        self._channel = chan

    def pty_requested(self, term_type: str, term_size: tuple[int, int, int, int], term_modes: Any) -> bool:
        """A terminal; its modes are the container's own."""
        if self._probe_only:
            return False
        self._size = _sides(term_size[0], term_size[1])
        self._request |= {"tty": True, "term": term_type or "xterm"}
        return True

    def shell_requested(self) -> bool:
        """An interactive shell, or a script on stdin."""
        return self._admit("shell")

    def exec_requested(self, command: str) -> bool:
        """A command; for the probe key the probe."""
        if self._probe_only:
            return command == "probe" and self._admit("probe", allowed=True)
        self._request["command"] = command
        return self._admit("command")

    def subsystem_requested(self, subsystem: str) -> bool:
        """sftp, which scp uses too, is the only subsystem there is."""
        return subsystem == "sftp" and self._admit("sftp")

    def session_started(self) -> None:
        """Accepted: start the process."""
        self._started = True
        self._spawn(self._live())

    def terminal_size_changed(self, width: int, height: int, pixwidth: int, pixheight: int) -> None:
        """The client's window changed; several changes in a row become one."""
        self._size = _sides(width, height)
        if self._session_id and (self._resizing is None or self._resizing.done()):
            self._resizing = self._spawn(self._resize())

    def signal_received(self, signal: str) -> None:
        """A signal for the process group of the session."""
        if self._session_id:
            self._spawn(self._steer("signal", name=signal))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Input."""
        self.bytes_in += len(data)
        self._on_input()
        if self._pipe is None:
            self._early.append(data)
            self._channel.pause_reading()
        else:
            self._pipe.write(data)

    def eof_received(self) -> bool:
        """End of input. A terminal has no such thing, and half-closing its stream would hang up the shell."""
        self._eof = True
        if self._pipe is not None and not self._request["tty"]:
            self._pipe.write_eof()
        return True

    def pause_writing(self) -> None:
        """The client does not keep up."""
        if self._pipe is not None:
            self._pipe.pause()
            if not self._slow:
                self._slow = True
                self._spawn(self._take_rest_at_end(self._pipe))

    def resume_writing(self) -> None:
        """The client has caught up."""
        if self._pipe is not None:
            self._pipe.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """The channel is closed, by either side."""
        self._gone.set()
        if not self._started:
            self._ended(self)

    # -- asked by the gateway ------------------------------------------------------------------------------------------

    @property
    def bytes_out(self) -> int:
        """What came out of the lease so far."""
        return self._pipe.delivered if self._pipe is not None else 0

    def show(self, line: bytes) -> bool:
        """Write a line to the client's terminal; False where there is none: output of programs stays untouched."""
        if not self._request["tty"] or self._pipe is None or self._channel.is_closing():
            return False
        self._channel.write(line)
        return True

    # -- the life of the process ---------------------------------------------------------------------------------------

    def _admit(self, kind: str, *, allowed: bool = False) -> bool:
        self._request["kind"] = kind
        return allowed or not self._probe_only

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _live(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        facts: dict[str, Fact] = {
            **self._facts, "session": uuid.uuid4().hex, "kind": self._request["kind"], "tty": self._request["tty"],
        }  # fmt: skip
        self._audit.write("session", **facts)
        code: int | None = None
        try:
            code = await self._run()
        except ExecdError as error:
            facts["error"] = error.code
            self._say(str(error))
        finally:
            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
            self._exit(FAILED if code is None else code)
            took = round(loop.time() - began, 3)
            traffic = {"bytes_in": self.bytes_in, "bytes_out": self.bytes_out}
            self._audit.write("session_end", **facts, **traffic, exit_code=code, seconds=took)
            self._ended(self)

    async def _run(self) -> int | None:
        """From start to end; the exit code, None where the client left first."""
        size = self._size
        request = {**self._request, "cols": size[0], "rows": size[1]}
        session_id, stream, held = await self._execd.exec(request)
        duty = _Duty(self._execd, session_id, held)
        try:
            pipe = await self._open(session_id, stream)
            if size != self._size:
                self._resizing = self._spawn(self._resize())
            try:
                return await self._follow(session_id, pipe)
            finally:
                pipe.close()
        finally:
            await duty.release()

    async def _open(self, session_id: str, stream: socket.socket) -> Pipe:
        pipe = await Pipe.over(stream, self._channel, framed=not self._request["tty"])
        self._session_id, self._pipe = session_id, pipe
        for data in self._early:
            pipe.write(data)
        self._early.clear()
        if self._eof and not self._request["tty"]:
            pipe.write_eof()
        self._channel.resume_reading()
        return pipe

    async def _follow(self, session_id: str, pipe: Pipe) -> int | None:
        process = asyncio.ensure_future(self._execd.control(session_id, "wait"))
        ended = asyncio.ensure_future(pipe.ended.wait())
        gone = asyncio.ensure_future(self._gone.wait())
        first = process if self._request["tty"] else ended
        try:
            await asyncio.wait({first, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                await asyncio.wait({ended, gone}, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({process, gone}, return_when=asyncio.FIRST_COMPLETED)
            if process.done():
                return int(process.result()["exit_code"])
            await self._steer("close")
            return None
        finally:
            for task in (process, ended, gone):
                task.cancel()
            await asyncio.gather(process, ended, gone, return_exceptions=True)

    async def _take_rest_at_end(self, pipe: Pipe) -> None:
        """Asked for sessions only whose client did not keep up at least once."""
        with contextlib.suppress(ExecdError):
            await self._execd.control(self._session_id, "ended")
            pipe.take_rest()

    async def _resize(self) -> None:
        applied = None
        while applied != self._size:
            applied = self._size
            await self._steer("resize", cols=applied[0], rows=applied[1])

    async def _steer(self, operation: str, **facts: str | int) -> None:
        """A request whose failure means the session is ending anyway."""
        with contextlib.suppress(ExecdError, TimeoutError):
            await self._execd.control(self._session_id, operation, **facts)

    def _say(self, message: str) -> None:
        if not self._channel.is_closing():
            self._channel.write_stderr(f"lessor: {message}\r\n".encode())

    def _exit(self, code: int) -> None:
        if not self._channel.is_closing():
            self._channel.exit(code)


class _Duty:
    """Keeps the connection open on which execd sees that the gateway still wants the session.

    Renews it when the agent restarts.
    """

    def __init__(self, execd: ExecdClient, session_id: str, held: socket.socket) -> None:
        self._execd = execd
        self._session_id = session_id
        self._held = held
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def release(self) -> None:
        """The session has ended.

        The watch is awaited before its descriptor is closed, whose number may be reused at once.
        """
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._held.close()

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):
                if await loop.sock_recv(self._held, 4096):
                    continue
            self._held.close()
            try:
                self._held = await self._execd.attach(self._session_id)
            except (ExecdError, TimeoutError):
                return  # it has ended, and its stream says so too


def _sides(cols: int, rows: int) -> tuple[int, int]:
    return min(cols, MAX_SIDE), min(rows, MAX_SIDE)

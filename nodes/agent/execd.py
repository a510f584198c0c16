"""execd: what the agent does for the SSH gateway, over a Unix socket (docs/node-protocol.md, "On the node").

The gateway faces the Internet and has no rights; execd has them and does three things only, each after asking whether
the lease runs here: start a process in its container, connect to a port of its loopback, and steer a session it
started. The descriptor of the stream is passed to the gateway, so no byte of a session flows through the agent and
restarting it cuts none.

One event loop on a thread of its own; calls that block (engine, /proc, the lookup) run on a small pool.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from nodes.agent.exec_entry import KINDS, command_line, environment
from nodes.agent.exec_net import LOOPBACK, connect_inside
from nodes.agent.exec_request import RefusedError, Request, await_close, read_request, send, side, text
from nodes.agent.exec_sessions import Session, SessionKeeper, SessionStore
from nodes.agent.exec_stream import EngineError, ExecEngine
from nodes.agent.exec_tree import signal_group

log = logging.getLogger(__name__)

REQUEST_LIMIT_S = 10.0  # a request is one line; who connects and says nothing is dropped
WIND_DOWN_LIMIT_S = 5.0
ATTACH_LIMIT_S = 15.0  # after a restart, sessions nobody takes over within this time are closed
SIGNALS = {"HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2", "ALRM", "CONT", "STOP", "TSTP", "WINCH"}

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True)
class RunningContainer:
    """The container a lease runs in on this node; `pid` is the host pid of its first process."""

    lease_id: str
    container_id: str
    pid: int


class Execd:
    """The server. `lookup` gives the running container of a lease id, or None; it is called from execd's own threads.

    `start` binds the socket and raises OSError where it cannot; `stop` leaves every session running, for the next
    start to take up.
    """

    def __init__(
        self,
        *,
        socket_path: Path,
        docker_socket: Path,
        lookup: Callable[[str], RunningContainer | None],
        group: str | None = None,
    ) -> None:
        self._socket_path = socket_path
        self._engine = ExecEngine(docker_socket)
        self._lookup = lookup
        self._group = group
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: set[asyncio.Future[Any]] = set()
        self._stopping = False

    def start(self) -> None:
        """Bind and serve from now on, in the background."""
        listener = _listen(self._socket_path, self._group)
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop, listener), name="execd", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving. Returns when the thread has ended; sessions go on."""
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._wind_down(self._loop), self._loop)
        self._thread.join()
        self._loop = self._thread = None

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _serve(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        asyncio.set_event_loop(loop)
        self._threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="execd")
        store = SessionStore(self._socket_path.with_suffix(".sessions"))
        self._keeper = SessionKeeper(self._engine, store, self._threads)
        try:
            self._spawn(self._accept(listener))
            self._spawn(self._close_unattached(list(self._keeper.sessions.values())))
            loop.run_forever()
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
            self._threads.shutdown(wait=True, cancel_futures=True)
            loop.close()

    async def _wind_down(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let sessions that are being started come up, so that their gateway gets its answer; then stop."""
        self._stopping = True
        if self._starting:
            await asyncio.wait(self._starting, timeout=WIND_DOWN_LIMIT_S)
        loop.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None  # noqa: S101  set by start, before the thread runs
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request to execd failed unexpectedly", exc_info=error)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of descriptors, say: the next one may go through
                log.warning("execd could not accept a connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            self._spawn(self._converse(connection))

    async def _close_unattached(self, inherited: list[Session]) -> None:
        if not inherited:
            return
        await asyncio.gather(*map(self._keeper.adopt, inherited))
        await asyncio.sleep(ATTACH_LIMIT_S)
        for session in inherited:
            if session.holder is None and session.id in self._keeper.sessions:
                log.info("session of %s was not taken over after the restart; closing it", session.lease_id)
                await self._keeper.let_go(session)

    # -- one connection: one request, one answer, and for exec and attach the session's life ---------------------------

    async def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(0.0)
            held: Session | None = None
            try:
                request = await asyncio.wait_for(read_request(connection), REQUEST_LIMIT_S)
                held = await self._answer(connection, request)
            except RefusedError as error:
                send(connection, {"ok": False, "code": error.code, "error": str(error)})
            except EngineError as error:
                send(connection, {"ok": False, "code": "failed", "error": str(error)})
            except (OSError, TimeoutError):
                return
            if held is not None:
                await self._hold(connection, held)

    async def _answer(self, connection: socket.socket, request: Request) -> Session | None:
        verb = request.get("verb")
        if verb == "exec":
            return await self._exec(connection, request)
        if verb == "connect":
            await self._connect(connection, request)
            return None
        if verb == "control":
            return await self._control(connection, request)
        raise RefusedError("bad_request", "the verb is none of exec, connect, control")

    async def _hold(self, connection: socket.socket, session: Session) -> None:
        """Wait for the gateway's side to close, then end the session, unless another connection took it over."""
        await await_close(connection)
        if session.holder is connection:
            await self._keeper.let_go(session)

    async def _blocking(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        work = functools.partial(call, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _container(self, lease_id: str) -> RunningContainer:
        container = await self._blocking(self._lookup, lease_id)
        if container is None:
            raise RefusedError("not_running", f"lease {lease_id} is not running")
        return container

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def _exec(self, connection: socket.socket, request: Request) -> Session:
        kind, tty = text(request, "kind"), request.get("tty") is True
        if kind not in KINDS:
            raise RefusedError("bad_request", f"kind is none of {', '.join(KINDS)}")
        command = text(request, "command") if kind == "command" else ""
        term = text(request, "term", default="xterm") if tty else None
        rows, cols = (side(request, "rows"), side(request, "cols")) if tty else (0, 0)
        container = await self._container(text(request, "lease"))
        try:
            env = environment(container.pid, term=term, peer=text(request, "peer", default="127.0.0.1"))
        except OSError as error:
            raise RefusedError("not_running", f"lease {container.lease_id} is not running") from error
        argv = command_line(kind=kind, command=command, rows=rows, cols=cols)
        starting = asyncio.ensure_future(self._start(connection, container, argv, env, tty=tty))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)
        return await starting

    async def _start(
        self, connection: socket.socket, container: RunningContainer, argv: list[str], env: list[str], *, tty: bool
    ) -> Session:
        exec_id = await self._blocking(self._engine.create, container.container_id, argv=argv, env=env, tty=tty)
        session = Session(exec_id, container.lease_id, container.container_id, tty, holder=connection)
        self._keeper.announce(session)
        try:
            stream = await self._blocking(self._engine.start, exec_id, tty=tty)
        except EngineError:
            self._keeper.forget(session)
            raise
        self._spawn(self._keeper.adopt(session))
        with stream:
            try:
                send(connection, {"ok": True, "session": exec_id}, stream)
            except OSError:  # the gateway is gone; holding its closed connection ends the session
                log.info("the gateway left while a session of %s was starting", container.lease_id)
        return session

    async def _connect(self, connection: socket.socket, request: Request) -> None:
        host, port = text(request, "host"), request.get("port")
        if host not in LOOPBACK:
            raise RefusedError("bad_request", "only 127.0.0.1, localhost and ::1 can be reached inside a lease")
        if not isinstance(port, int) or not 1 <= port <= 65535:  # noqa: PLR2004  the range of ports
            raise RefusedError("bad_request", "port is not a number from 1 to 65535")
        container = await self._container(text(request, "lease"))
        try:
            inside = await connect_inside(container.pid, host, port)
        except OSError as error:
            raise RefusedError(
                "unreachable", f"nothing answers on port {port} of the lease: {error.strerror}"
            ) from error
        with inside:
            send(connection, {"ok": True}, inside)

    async def _control(self, connection: socket.socket, request: Request) -> Session | None:
        session = self._keeper.sessions.get(text(request, "session"))
        operation = request.get("op")
        if session is None:
            await self._control_ended(connection, request)
            return None
        if operation == "close":
            await self._keeper.end(session)
            send(connection, {"ok": True})
            return None
        if operation == "ended":
            await self._until(connection, self._keeper.process_end(session), lambda _: {})
            return None
        if operation == "wait":
            await self._until(connection, self._keeper.exit_code(session), lambda code: {"exit_code": code})
            return None
        await self._container_of(session)
        if operation == "attach":
            session.holder = connection
            send(connection, {"ok": True})
            return session
        await self._steer(session, request)
        send(connection, {"ok": True})
        return None

    async def _control_ended(self, connection: socket.socket, request: Request) -> None:
        """A session execd does not follow (any more).

        Its exit code can still be asked, ending it again is a success.
        """
        operation, exec_id = request.get("op"), text(request, "session")
        if not exec_id.isalnum():
            raise RefusedError("bad_request", "session is not the id of a session")
        if operation in {"close", "ended"}:
            send(connection, {"ok": True})
            return
        if operation != "wait":
            raise RefusedError("failed", "the session has ended")
        state = await self._blocking(self._engine.inspect, exec_id)
        send(connection, {"ok": True, "exit_code": 255 if state.exit_code is None else state.exit_code})

    async def _until(
        self,
        connection: socket.socket,
        event: Coroutine[Any, Any, Result],
        facts: Callable[[Result], Request],
    ) -> None:
        """Answer when `event` has come, or give up when the asker has gone."""
        waiting = asyncio.ensure_future(event)
        gone = asyncio.ensure_future(await_close(connection))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                send(connection, {"ok": True, **facts(waiting.result())})
        finally:
            # Awaited, not only cancelled: a pending read gives up its descriptor's number when its task ends, and by
            # then the number could belong to somebody else's connection.
            waiting.cancel()
            gone.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    async def _steer(self, session: Session, request: Request) -> None:
        await session.appeared.wait()
        operation = request.get("op")
        if operation == "resize":
            cols, rows = side(request, "cols"), side(request, "rows")
            await self._blocking(self._engine.resize, session.id, cols=cols, rows=rows)
        elif operation == "signal":
            name = text(request, "name")
            if name not in SIGNALS:
                raise RefusedError("bad_request", "that signal is not passed on")
            if session.leader is None or not signal_group(session.leader, signal.Signals[f"SIG{name}"]):
                raise RefusedError("failed", "the session has ended")
        else:
            raise RefusedError("bad_request", "op is none of resize, signal, ended, wait, close, attach")

    async def _container_of(self, session: Session) -> None:
        container = await self._container(session.lease_id)
        if container.container_id != session.container_id:
            raise RefusedError("not_running", f"lease {session.lease_id} runs in another container now")


def _listen(path: Path, group: str | None) -> socket.socket:
    """A listening socket at `path`.

    It is made beside and moved into place, so nobody meets it with the wrong mode or not at all.
    """
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(draft))
        if group is not None:
            shutil.chown(draft, group=group)
        draft.chmod(0o660)
        listener.listen(128)
        listener.settimeout(0.0)
        draft.replace(path)
    except OSError:
        listener.close()
        raise
    return listener

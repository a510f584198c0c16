"""The sessions execd answers for, and their memory across a restart of the agent.

One small file per session, root only, beside execd's socket (a run directory, gone at boot like the sessions
themselves). It holds ids and the identity of the first process, never what is typed.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from nodes.agent.exec_stream import EngineError, ExecEngine, ExecState
from nodes.agent.exec_tree import Leader, end_tree, find_leader, is_alive

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

APPEAR_LIMIT_S = 30.0  # how long an engine may take from "start" to a running process
POLL_S = 0.005
SLOW_POLL_S = 0.5
LOST = 255  # the exit code of a session whose end nobody saw


@dataclass
class Session:
    """One exec. `holder` is the connection whose end ends it; None while nobody has taken it over after a restart."""

    id: str
    lease_id: str
    container_id: str
    tty: bool
    leader: Leader | None = None
    holder: object | None = None
    appeared: asyncio.Event = field(default_factory=asyncio.Event)


class SessionStore:
    """Remembers sessions in a directory. An unreadable entry counts as absent: its session is then nobody's to keep."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def save(self, session: Session) -> None:
        """Write a session, before it is started and again when its first process is known."""
        facts = {
            "lease": session.lease_id,
            "container": session.container_id,
            "tty": session.tty,
            "leader": None if session.leader is None else [session.leader.pid, session.leader.start_ticks],
        }
        path = self._directory / session.id
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(facts))
        draft.replace(path)

    def remove(self, session_id: str) -> None:
        """Forget a session; an unknown one is forgotten already."""
        (self._directory / session_id).unlink(missing_ok=True)

    def load(self) -> list[Session]:
        """The remembered sessions, but those whose first process has ended, which are forgotten."""
        sessions = []
        for path in sorted(self._directory.iterdir()):
            session = _read(path)
            if session is None or (session.leader is not None and not is_alive(session.leader)):
                path.unlink(missing_ok=True)
                continue
            sessions.append(session)
        return sessions


def _read(path: Path) -> Session | None:
    try:
        facts = json.loads(path.read_text())
        leader = None if facts["leader"] is None else Leader(*map(int, facts["leader"]))
        return Session(path.name, str(facts["lease"]), str(facts["container"]), bool(facts["tty"]), leader)
    except (OSError, ValueError, KeyError, TypeError):
        return None


class SessionKeeper:
    """Follows sessions from their start to their end.

    Lives on one event loop; engine and /proc are asked on `threads`.
    """

    def __init__(self, engine: ExecEngine, store: SessionStore, threads: Executor) -> None:
        self._engine = engine
        self._store = store
        self._threads = threads
        self.sessions: dict[str, Session] = {session.id: session for session in store.load()}

    def announce(self, session: Session) -> None:
        """Remember a session that is about to be started.

        Should the agent die in between, its successor will find it.
        """
        self.sessions[session.id] = session
        self._store.save(session)

    async def adopt(self, session: Session) -> None:
        """Follow a session from now on.

        The engine says "started" a moment before there is a process, so look for it.
        """
        try:
            if session.leader is None:
                await self._run(self._await_leader, session)
        except EngineError:
            session.leader = None  # nothing to follow; `wait` asks the engine
        finally:
            session.appeared.set()

    async def process_end(self, session: Session) -> None:
        """Wait until its first process has ended.

        The kernel says so before the engine does, which empties the pipes first.
        """
        await session.appeared.wait()
        if session.leader is not None:
            await _process_end(session.leader)

    async def exit_code(self, session: Session) -> int:
        """Wait until its first process has ended; the exit code, 255 where the engine no longer knows it."""
        await self.process_end(session)
        code = await self._settled_exit_code(session.id)
        self.forget(session)
        return code

    async def _settled_exit_code(self, session_id: str) -> int:
        """Ask until the engine has noticed the end too, which it does when the last output was taken.

        A slow client delays it.
        """
        pause = POLL_S
        while True:
            try:
                state = await self._run(self._engine.inspect, session_id)
            except EngineError:
                return LOST
            if _has_ended(state):
                return LOST if state.exit_code is None else state.exit_code
            await asyncio.sleep(pause)
            pause = min(2 * pause, SLOW_POLL_S)

    async def end(self, session: Session) -> None:
        """End every process of the session (see exec_tree for which those are)."""
        await session.appeared.wait()
        if session.leader is not None:
            await self._run(end_tree, session.leader)
        self.forget(session)

    async def let_go(self, session: Session) -> None:
        """The holder has left.

        A session that still runs is ended; after a logout, what was left behind on purpose stays.
        """
        await session.appeared.wait()
        if session.leader is not None and is_alive(session.leader):
            await self._run(end_tree, session.leader)
        self.forget(session)

    def forget(self, session: Session) -> None:
        """Drop a session that has ended from memory and disk."""
        self.sessions.pop(session.id, None)
        self._store.remove(session.id)

    async def _run(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        work = functools.partial(call, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _await_leader(self, session: Session) -> None:
        deadline = time.monotonic() + APPEAR_LIMIT_S
        while time.monotonic() < deadline:
            state = self._engine.inspect(session.id)
            if state.pid and state.running:
                session.leader = find_leader(state.pid)
                self._store.save(session)
                return
            if _has_ended(state):
                return
            time.sleep(POLL_S)


def _has_ended(state: ExecState) -> bool:
    return not state.running and state.exit_code is not None


async def _process_end(leader: Leader) -> None:
    """Wait for the exit of a process that is not our child: a pidfd turns readable then."""
    try:
        handle = os.pidfd_open(leader.pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        if not is_alive(leader):
            return
        loop.add_reader(handle, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)

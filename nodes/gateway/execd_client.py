"""The gateway's side of execd's protocol (docs/node-protocol.md).

One connection a request, descriptors received beside answers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

ANSWER_LIMIT_S = 40.0  # above what execd grants the engine for a start
AWAY_LIMIT_S = 15.0  # how long an agent may take to restart before a new request fails
RETRY_S = 0.1
MAX_ANSWER_BYTES = 65536


class ExecdError(Exception):
    """execd refused; `code` is the protocol's, "unavailable" where there was no answer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ExecdClient:
    """Asks the execd behind a socket. A request made while the agent restarts waits for it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def exec(self, request: dict[str, Any]) -> tuple[str, socket.socket, socket.socket]:
        """Start a session; (id, engine stream, held connection).

        The session lives as long as the held connection is open.
        """
        held = await self._dial(AWAY_LIMIT_S)
        try:
            answer, stream = await asyncio.wait_for(_ask(held, {"verb": "exec", **request}), ANSWER_LIMIT_S)
            return str(answer["session"]), _present(stream), held
        except BaseException:
            held.close()
            raise

    async def connect(self, lease_id: str, host: str, port: int) -> socket.socket:
        """A TCP socket connected to a port of the lease's own loopback."""
        request = {"verb": "connect", "lease": lease_id, "host": host, "port": port}
        with await self._dial(AWAY_LIMIT_S) as connection:
            _, inside = await asyncio.wait_for(_ask(connection, request), ANSWER_LIMIT_S)
        return _present(inside)

    async def control(self, session: str, operation: str, **facts: str | int) -> dict[str, Any]:
        """Steer a session; the answer.

        "ended" and "wait" take as long as the session does, across restarts of the agent.
        """
        request = {"verb": "control", "session": session, "op": operation, **facts}
        patient = operation in {"ended", "wait"}
        while True:
            with await self._dial(None if patient else AWAY_LIMIT_S) as connection:
                try:
                    answer, _ = await asyncio.wait_for(_ask(connection, request), None if patient else ANSWER_LIMIT_S)
                except ExecdError as error:
                    if error.code != "unavailable" or not patient:
                        raise
                else:
                    return answer
            await asyncio.sleep(RETRY_S)

    async def attach(self, session: str) -> socket.socket:
        """Take a session over after a restart of the agent; waits for execd as long as it takes.

        Raises ExecdError if it is gone.
        """
        while True:
            held = await self._dial(None)
            try:
                await asyncio.wait_for(
                    _ask(held, {"verb": "control", "session": session, "op": "attach"}), ANSWER_LIMIT_S
                )
            except ExecdError as error:
                held.close()
                if error.code != "unavailable":
                    raise
            except BaseException:
                held.close()
                raise
            else:
                return held
            await asyncio.sleep(RETRY_S)

    async def _dial(self, patience_s: float | None) -> socket.socket:
        """Connect; where nobody listens, try again for `patience_s` (None: for ever)."""
        loop = asyncio.get_running_loop()
        deadline = None if patience_s is None else loop.time() + patience_s
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(0.0)
            try:
                await loop.sock_connect(connection, str(self._path))
            except OSError as error:
                connection.close()
                if deadline is not None and loop.time() > deadline:
                    raise ExecdError("unavailable", "the node's agent does not answer") from error
            except BaseException:
                connection.close()
                raise
            else:
                return connection
            await asyncio.sleep(RETRY_S)


async def _ask(connection: socket.socket, request: dict[str, Any]) -> tuple[dict[str, Any], socket.socket | None]:
    loop = asyncio.get_running_loop()
    descriptors: list[int] = []
    line = b""
    try:
        await loop.sock_sendall(connection, json.dumps(request).encode() + b"\n")
        while not line.endswith(b"\n"):
            chunk, received = await _receive(connection)
            descriptors += received
            line = _extended(line, chunk)
        answer = _accepted(json.loads(line))
    except (OSError, ValueError) as error:
        _close_all(descriptors)
        raise ExecdError("unavailable", "the node's agent does not answer") from error
    except BaseException:
        _close_all(descriptors)
        raise
    return answer, _socket_of(descriptors)


def _extended(line: bytes, chunk: bytes) -> bytes:
    if not chunk or len(line) > MAX_ANSWER_BYTES:
        raise ExecdError("unavailable", "the node's agent closed the connection")
    return line + chunk


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("ok"):
        raise ExecdError(str(answer.get("code", "failed")), str(answer.get("error", "the node refused")))
    return answer


def _present(descriptor: socket.socket | None) -> socket.socket:
    if descriptor is None:
        raise ExecdError("failed", "the node's agent sent no descriptor")
    return descriptor


async def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """recvmsg for an event loop: asyncio has none."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            chunk, descriptors, _, _ = socket.recv_fds(connection, MAX_ANSWER_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            readable = asyncio.Event()
            loop.add_reader(connection, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(connection)
        else:
            return chunk, list(descriptors)


def _socket_of(descriptors: list[int]) -> socket.socket | None:
    if not descriptors:
        return None
    _close_all(descriptors[1:])
    received = socket.socket(fileno=descriptors[0])
    received.settimeout(0.0)
    return received


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        socket.close(descriptor)

"""The four engine calls behind an SSH session: create, start, inspect and resize an exec.

A tiny HTTP client over the engine's Unix socket, and not the docker SDK, because the socket of a started exec is
handed on to another process: the SDK reads the answer's head through a buffered file, so the first bytes of the
session may already sit in a buffer that cannot be handed on. Here the head is read byte by byte and everything after
it stays in the kernel. Each call opens its own connection and has a time limit, so an engine that hangs cannot hold a
thread for ever. Paths carry no API version: the engine answers with its newest, and these four calls have kept their
shape.
"""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_HEAD_BYTES = 16384
STARTED = (101, 200)  # engines answer 200 where a proxy dropped the upgrade header


class EngineError(Exception):
    """The engine refused or did not answer; `status` is its HTTP status, 0 where there was none."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class ExecState:
    """What the engine knows of an exec.

    `pid` is the host's, 0 before the start; `exit_code` is None until it has ended.
    """

    running: bool
    pid: int
    exit_code: int | None
    container_id: str


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = _dial(self._path, self.timeout or 0.0)


class ExecEngine:
    """Talks to one engine by its Unix socket. Safe to use from several threads: no state is shared between calls."""

    def __init__(self, socket_path: Path, *, timeout_s: float = 10.0, start_timeout_s: float = 30.0) -> None:
        self._path = socket_path
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s

    def create(self, container_id: str, *, argv: list[str], env: list[str], tty: bool) -> str:
        """Prepare a process in a running container, as the container's own user; returns the exec's id."""
        body = {
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": tty,
            "Cmd": argv,
            "Env": env,
        }
        exec_id = self._call("POST", f"/containers/{container_id}/exec", body).get("Id")
        if not isinstance(exec_id, str):
            raise EngineError("the engine created an exec without an id")
        return exec_id

    def start(self, exec_id: str, *, tty: bool) -> socket.socket:
        """Start it; returns the hijacked connection, blocking, with no byte of the session read yet."""
        body = json.dumps({"Detach": False, "Tty": tty}).encode()
        head = (
            f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection = _dial(self._path, self._start_timeout_s)
        try:
            connection.sendall(head.encode() + body)
            _expect_start(connection)
            connection.settimeout(None)
        except OSError as error:
            connection.close()
            raise EngineError(f"the engine did not start the session: {error}") from error
        except EngineError:
            connection.close()
            raise
        return connection

    def inspect(self, exec_id: str) -> ExecState:
        """What became of it. Raises EngineError with status 404 where the engine has forgotten it."""
        answer = self._call("GET", f"/exec/{exec_id}/json", None)
        return ExecState(
            running=bool(answer.get("Running")),
            pid=int(answer.get("Pid") or 0),
            exit_code=answer.get("ExitCode"),
            container_id=str(answer.get("ContainerID", "")),
        )

    def resize(self, exec_id: str, *, cols: int, rows: int) -> None:
        """Set the size of its terminal, in characters."""
        self._call("POST", f"/exec/{exec_id}/resize?w={cols}&h={rows}", None)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        connection = _UnixConnection(self._path, self._timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", "Connection": "close"})
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"the engine did not answer: {error}") from error
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise EngineError(_message(content), status=response.status)
        answer = json.loads(content) if content.strip() else {}
        return answer if isinstance(answer, dict) else {}


def _dial(path: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise EngineError(f"the engine is not reachable: {error}") from error
    return connection


def _read_status(connection: socket.socket) -> int:
    """Read the head of the answer and not one byte more; returns the HTTP status."""
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > MAX_HEAD_BYTES:
            raise EngineError("the engine closed the connection within its answer")
        head += byte
    words = bytes(head).split(b" ", 2)
    if not words[0].startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004  version and status
        raise EngineError("the engine's answer is not HTTP")
    return int(words[1])


def _expect_start(connection: socket.socket) -> None:
    status = _read_status(connection)
    if status not in STARTED:
        words = _message(connection.recv(4096))
        raise EngineError(f"the engine did not start the session: {words}", status=status)


def _message(content: bytes) -> str:
    """The engine's own sentence out of an error body (JSON, chunked or plain)."""
    start, end = content.find(b"{"), content.rfind(b"}")
    try:
        return str(json.loads(content[start : end + 1])["message"])
    except (ValueError, KeyError, TypeError):
        return content.decode("utf-8", "replace").strip()[:200] or "no reason given"

"""One request and its answer on execd's socket: one line of JSON each way, whatever the verb.

What a verb means is in execd.py. Nothing here knows sessions, the engine or containers.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

MAX_REQUEST_BYTES = 256 * 1024
MAX_SIDE = 4096  # characters; larger terminals are not asked for by people

Request = dict[str, Any]


class RefusedError(Exception):
    """A request that is answered with ok=false; `code` is one of the codes of the protocol."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


async def read_request(connection: socket.socket) -> Request:
    """The next request. Raises RefusedError where it is none, ConnectionResetError where the peer closes before."""
    loop = asyncio.get_running_loop()
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = await loop.sock_recv(connection, 65536)
        if not chunk:
            raise ConnectionResetError("closed before a request was complete")
        line += chunk
        if len(line) > MAX_REQUEST_BYTES:
            raise RefusedError("bad_request", f"a request has at most {MAX_REQUEST_BYTES} bytes")
    try:
        request = json.loads(line)
    except ValueError as error:
        raise RefusedError("bad_request", "a request is one line of JSON") from error
    if not isinstance(request, dict):
        raise RefusedError("bad_request", "a request is a JSON object")
    return request


async def await_close(connection: socket.socket) -> None:
    """Return when the peer has closed its side; what it still sends is dropped."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(connection, 4096):
            continue
    except OSError:
        return


def send(connection: socket.socket, answer: dict[str, Any], descriptor: socket.socket | None = None) -> None:
    """Answer, with an open descriptor if there is one: one short line into an empty socket buffer does not block."""
    line = json.dumps(answer).encode() + b"\n"
    if descriptor is None:
        connection.send(line)
    else:
        socket.send_fds(connection, [line], [descriptor.fileno()])


def text(request: Request, name: str, *, default: str | None = None) -> str:
    """A field that is text, without NUL. Raises RefusedError, which names it."""
    value = request.get(name, default)
    if not isinstance(value, str) or "\0" in value:
        raise RefusedError("bad_request", f"{name} is missing or is not text")
    return value


def side(request: Request, name: str) -> int:
    """A field that is a side of a terminal in characters. Raises RefusedError, which names it."""
    value = request.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIDE:
        raise RefusedError("bad_request", f"{name} is not a number from 0 to {MAX_SIDE}")
    return value

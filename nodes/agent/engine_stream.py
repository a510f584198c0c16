"""Answers of the engine that go on for a while, line by line, over a connection that another thread can cut at once.

Not by `requests`: its streams keep their socket to themselves, and a reader that waits for the next line cannot be
called off.
"""

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nodes.agent.failures import EngineError, EngineUnreachableError

CONNECT_S = 10.0


class Cut:
    """Calls a stream off, once and for good; safe to use from several threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def set(self) -> None:
        """The stream ends now, wherever its reader is."""
        with self._lock:
            self._event.set()
            self._shut()

    def is_set(self) -> bool:
        """Whether it was called off."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for `set`; whether it came."""
        return self._event.wait(seconds)

    @contextmanager
    def watching(self, connection: socket.socket) -> Iterator[None]:
        """While this lasts, `set` cuts that connection."""
        with self._lock:
            self._socket = connection
            if self._event.is_set():
                self._shut()
        try:
            yield
        finally:
            with self._lock:
                self._socket = None

    def _shut(self) -> None:
        if self._socket:
            with suppress(OSError):  # the other side was faster
                self._socket.shutdown(socket.SHUT_RDWR)


class QuietError(EngineUnreachableError):
    """Nothing was said on an open stream for too long."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("docker", timeout=CONNECT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(CONNECT_S)
        self.sock.connect(str(self._path))


@contextmanager
def lines(
    path: Path, method: str, url: str, params: Mapping[str, str], quiet_s: float, cut: Cut | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """The JSON objects of one streamed answer, as they come.

    Args:
        path: the engine's Unix socket.
        quiet_s: seconds without a line, or before the first, after which the stream is given up.
        cut: ends the iteration from another thread; what is read afterwards looks like the end of the stream.

    Raises:
        EngineError: the engine refused.
        QuietError: nothing came for `quiet_s`.
        EngineUnreachableError: no connection, or it broke.
    """
    cut = cut or Cut()
    connection = _Connection(path)
    try:
        with _errors():
            connection.connect()
        with cut.watching(connection.sock):
            yield _read(connection, method, f"{url}?{urlencode(params)}", quiet_s, cut)
    finally:
        connection.close()


def _read(connection: _Connection, method: str, url: str, quiet_s: float, cut: Cut) -> Iterator[dict[str, Any]]:
    try:
        with _errors():
            connection.sock.settimeout(quiet_s)
            connection.request(method, url, headers={"Content-Length": "0"})
            answer = connection.getresponse()
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise EngineError(_message(answer.read()), status=answer.status)
            with answer:
                while line := answer.readline():
                    if line.strip():
                        yield json.loads(line)
    except EngineUnreachableError:
        if not cut.is_set():
            raise


def _message(content: bytes) -> str:
    with suppress(ValueError, AttributeError):
        return str(json.loads(content).get("message"))
    return content.decode(errors="replace")[:300]


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise QuietError("the container engine said nothing for too long") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise EngineUnreachableError(f"the container engine does not answer: {type(error).__name__}") from error

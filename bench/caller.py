"""Calls of the API on kept connections, with as little of a client of its own in the times as possible."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import Any

KEPT_S = 20.0  # less than the server keeps a quiet connection


class Caller:
    """A program with a token; each of its threads keeps one connection."""

    def __init__(self, host: str, port: int, authorization: str) -> None:
        self._host, self._port = host, port
        self._headers = {"Authorization": authorization, "Content-Type": "application/json"}
        self._own = threading.local()

    def call(self, method: str, path: str, body: object = None) -> tuple[dict[str, Any], float, float]:
        """The answer, the wall clock before its request's first byte, and the milliseconds until its last byte.

        Raises SystemExit for anything but a success.
        """
        connection = self._connection()
        content = None if body is None else json.dumps(body)
        began, begin = time.time(), time.perf_counter()
        connection.request(method, f"/api/v1/{path}", content, self._headers)
        answer = connection.getresponse()
        told = answer.read()
        took = (time.perf_counter() - begin) * 1000
        self._own.at = time.monotonic()
        if answer.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"{method} {path}: {answer.status} {told.decode(errors='replace')[:300]}")
        return json.loads(told), began, took

    def _connection(self) -> http.client.HTTPConnection:
        kept: http.client.HTTPConnection | None = getattr(self._own, "connection", None)
        if kept is None:
            kept = self._own.connection = http.client.HTTPConnection(self._host, self._port, timeout=20)
        elif time.monotonic() - self._own.at > KEPT_S:
            kept.close()  # the server is about to do so; the request opens it again
        return kept

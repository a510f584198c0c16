"""The agent's questions to the gateway, over RUN/gateway/control.sock: who would be let in, who typed when, notices.

Where several processes serve the port, the first listens there and asks the others over a pair of sockets each, so the
agent gets one answer for all.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodes.gateway.server import Gateway

REQUEST_LIMIT_S = 5.0
SIBLING_LIMIT_S = 2.0

Answer = dict[str, Any]


class RequestError(Exception):
    """A question that has no answer; the text says what is wrong with it."""


class ControlServer:
    """One JSON line in, one JSON line out, any number per connection."""

    def __init__(self, gateway: Gateway, host_key: str, siblings: Sequence[socket.socket] = ()) -> None:
        self._gateway = gateway
        self._host_key = host_key
        self._siblings = [_Sibling(end) for end in siblings]

    async def start(self, path: Path) -> asyncio.Server:
        """Listen for the agent; the socket of a gateway that died is replaced."""
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._converse, path)
        path.chmod(0o660)
        return server

    async def serve_first(self, end: socket.socket) -> None:
        """Answer the first process over this end of a pair, until it has gone."""
        reader, writer = await asyncio.open_unix_connection(sock=end)
        await self._converse(reader, writer, limit_s=None)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, limit_s: float | None = REQUEST_LIMIT_S
    ) -> None:
        try:
            while line := await asyncio.wait_for(reader.readline(), limit_s):
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            return
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> Answer:
        try:
            request = json.loads(line)
            operation = request["op"]
            own = self._own(operation, request)
        except (ValueError, KeyError, TypeError):
            return {"error": "a request is one line of JSON with op and what it needs"}
        except RequestError as error:
            return {"error": str(error)}
        for sibling in self._siblings if operation != "keys" else ():
            answer = await sibling.ask(line)
            if operation == "activity" and answer is None:
                # What nobody can say must not read as "nobody typed": the lease would be released as idle.
                return {"error": "a process of the gateway does not answer"}
            _add(own, answer or {})
        return own

    def _own(self, operation: str, request: dict[str, Any]) -> Answer:
        if operation == "keys":
            keys = self._gateway.book.of(_text(request, "lease")).keys
            return {"keys": sorted(keys.values()), "host_key": self._host_key}
        if operation == "activity":
            self._gateway.book.refresh()
            return {"leases": self._gateway.usage()}
        if operation == "notice":
            return {"terminals": self._gateway.notice(_text(request, "lease"), _text(request, "text"))}
        raise RequestError("op is none of keys, activity, notice")


class _Sibling:
    """Another process of this gateway, seen from the first; one question at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._turn = asyncio.Lock()

    async def ask(self, line: bytes) -> Answer | None:
        """Its answer; None where there is none in time. A process that hangs keeps nobody waiting for long."""
        async with self._turn:
            try:
                return await asyncio.wait_for(self._ask(line), SIBLING_LIMIT_S)
            except (OSError, TimeoutError, ValueError):
                if self._streams is not None:
                    self._streams[1].close()  # a late answer would be taken for that to the next question
                return None

    async def _ask(self, line: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(sock=self._end)
        reader, writer = self._streams
        writer.write(line)
        await writer.drain()
        answer: Answer = json.loads(await reader.readline())
        return answer


def _add(own: Answer, other: Answer) -> None:
    """Take what another process says into our own answer."""
    if "terminals" in own:
        own["terminals"] += other.get("terminals", 0)
    for lease_id, facts in other.get("leases", {}).items():
        mine = own["leases"].setdefault(lease_id, {"last_input_s": None, "sessions": 0})
        known = [s for s in (mine["last_input_s"], facts["last_input_s"]) if s is not None]
        mine["last_input_s"] = min(known, default=None)
        mine["sessions"] += facts["sessions"]


def _text(request: dict[str, Any], name: str) -> str:
    value = request[name]
    if not isinstance(value, str):
        raise RequestError(f"{name} must be text")
    return value

"""The agent's questions to the gateway, over RUN/gateway/control.sock: what would really be let in now?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from nodes.gateway.leases import LeaseBook

REQUEST_LIMIT_S = 5.0


class ControlServer:
    """One JSON line in, one JSON line out, any number per connection."""

    def __init__(self, path: Path, book: LeaseBook, host_key: str) -> None:
        self._path = path
        self._book = book
        self._host_key = host_key

    async def start(self) -> asyncio.Server:
        """Listen; the socket of a gateway that died is replaced."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._converse, self._path)
        self._path.chmod(0o660)
        return server

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await asyncio.wait_for(reader.readline(), REQUEST_LIMIT_S):
                writer.write(json.dumps(self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            return
        finally:
            writer.close()

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            operation, lease_id = request["op"], request["lease"]
        except (ValueError, KeyError, TypeError):
            return {"error": "a request is one line of JSON with op and lease"}
        if operation != "keys" or not isinstance(lease_id, str):
            return {"error": "the only op is keys"}
        return {"keys": sorted(self._book.of(lease_id).keys.values()), "host_key": self._host_key}

"""Several processes of one gateway: what the first says when another does not answer."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from nodes.gateway import control
from nodes.gateway.control import ControlServer

if TYPE_CHECKING:
    from pathlib import Path


class FirstProcess:
    """What the control server asks of its own process."""

    class Book:
        def refresh(self) -> None:
            pass

    book = Book()

    def usage(self) -> dict[str, dict[str, Any]]:
        return {"ls-a": {"last_input_s": 900.0, "sessions": 1}}

    def notice(self, lease: str, text: str) -> int:
        return 1


async def ask(path: Path, question: dict[str, Any]) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(json.dumps(question).encode() + b"\n")
    answer: dict[str, Any] = json.loads(await reader.readline())
    writer.close()
    return answer


async def test_a_process_that_hangs_makes_activity_unknown_and_hides_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # case D01
    monkeypatch.setattr(control, "SIBLING_LIMIT_S", 0.05)
    ours, theirs = socket.socketpair()
    server = ControlServer(FirstProcess(), "ssh-ed25519 AAAA", [ours])  # type: ignore[arg-type]  # the part it asks
    async with await server.start(tmp_path / "control.sock"):
        for _ in range(2):  # it is not forgotten after the first time either
            assert "error" in await ask(tmp_path / "control.sock", {"op": "activity"})
        told = await ask(tmp_path / "control.sock", {"op": "notice", "lease": "ls-a", "text": "x"})
    assert told == {"terminals": 1}
    theirs.close()

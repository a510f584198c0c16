"""execd's answers on its socket, with a small engine of the test's own behind it."""

from __future__ import annotations

import grp
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodes.agent.exec_request import MAX_REQUEST_BYTES
from nodes.agent.exec_stream import EngineError, ExecEngine
from nodes.agent.execd import Execd, RunningContainer

EXEC_ID = "e" * 64


class FakeEngine:
    """Answers the four calls over HTTP. A started exec says hello in the very packet that carries the answer's head."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.requests: list[tuple[str, Any]] = []
        self.refuse = ""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            first = lines.readline().decode().split()
            length = 0
            while (line := lines.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = json.loads(lines.read(length)) if length else None
            self.requests.append((f"{first[0]} {first[1]}", body))
            if self.refuse:
                connection.sendall(_http("500 Oops", {"message": self.refuse}))
            elif first[1].endswith("/exec"):
                connection.sendall(_http("201 Created", {"Id": EXEC_ID}))
            elif first[1].endswith("/json"):
                ended = {"Running": False, "Pid": 0, "ExitCode": 3, "ContainerID": "c1"}
                connection.sendall(_http("200 OK", ended))
            elif first[1].endswith("/start"):
                connection.sendall(b"HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nhello")
                lines.read()


def _http(status: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short name: socket paths have a limit."""
    with tempfile.TemporaryDirectory(prefix="lessor-execd-") as name:
        yield Path(name)


@pytest.fixture
def engine(directory: Path) -> Iterator[FakeEngine]:
    """Answers at DIRECTORY/docker.sock."""
    engine = FakeEngine(directory / "docker.sock")
    yield engine
    engine.close()


@pytest.fixture
def execd(directory: Path, engine: FakeEngine) -> Iterator[Path]:
    """The path of the socket of an execd that knows one lease, ls-1, whose first process is this very test."""
    execd = Execd(
        socket_path=directory / "execd.sock",
        docker_socket=directory / "docker.sock",
        lookup={"ls-1": RunningContainer("ls-1", "c1", os.getpid())}.get,
        group=grp.getgrgid(os.getgid()).gr_name,
    )
    execd.start()
    yield directory / "execd.sock"
    execd.stop()


def ask(path: Path, request: object) -> tuple[dict[str, Any], list[int]]:
    """One request, its answer, and the descriptors beside it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        line = request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n"
        connection.sendall(line)
        answer, descriptors, _, _ = socket.recv_fds(connection, 65536, 4)
        return json.loads(answer), list(descriptors)


def exec_request(**facts: object) -> dict[str, object]:
    """A good request for a command, with some facts changed."""
    return {"verb": "exec", "lease": "ls-1", "kind": "command", "command": "true", "tty": False} | facts


def test_the_descriptor_of_an_exec_delivers_from_the_first_byte(execd: Path, engine: FakeEngine) -> None:
    answer, descriptors = ask(execd, exec_request(command="echo it's"))

    assert answer == {"ok": True, "session": EXEC_ID}
    with socket.socket(fileno=descriptors[0]) as stream:
        assert stream.recv(100) == b"hello"
    created = engine.requests[0][1]
    assert created["Cmd"][:2] == ["/.lease/bin/busybox", "sh"]
    assert created["Cmd"][-4:] == ["command", "0", "0", "echo it's"]
    assert "User" not in created
    assert any(line.startswith("PATH=") and line.endswith(":/.lease/bin") for line in created["Env"])


def test_only_the_gateways_group_can_reach_the_socket(execd: Path) -> None:
    facts = execd.stat()

    assert stat.S_IMODE(facts.st_mode) == 0o660
    assert facts.st_gid == os.getgid()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (exec_request(lease="ls-2"), "not_running"),
        (exec_request(kind="root"), "bad_request"),
        (exec_request(command=None), "bad_request"),
        (exec_request(command="a\0b"), "bad_request"),
        (exec_request(lease=None), "bad_request"),
        (exec_request(tty=True, rows=-1, cols=80), "bad_request"),
        (exec_request(tty=True, rows="1; reboot", cols=80), "bad_request"),
        ({"verb": "reboot"}, "bad_request"),
        ([], "bad_request"),
        (b"not json\n", "bad_request"),
        (b"x" * (MAX_REQUEST_BYTES + 65536), "bad_request"),
        ({"verb": "connect", "lease": "ls-1", "host": "169.254.169.254", "port": 80}, "bad_request"),
        ({"verb": "connect", "lease": "ls-1", "host": "127.0.0.1", "port": 0}, "bad_request"),
        ({"verb": "connect", "lease": "ls-1", "host": "127.0.0.1", "port": "22"}, "bad_request"),
        ({"verb": "connect", "lease": "ls-2", "host": "127.0.0.1", "port": 80}, "not_running"),
        ({"verb": "control", "session": "../../containers/c1", "op": "wait"}, "bad_request"),
        ({"verb": "control", "session": "abc", "op": "resize", "cols": 1, "rows": 1}, "failed"),
        ({"verb": "control", "session": "abc", "op": "attach"}, "failed"),
    ],
)
def test_a_request_that_is_not_allowed_is_refused_by_its_code(
    execd: Path, engine: FakeEngine, request_: object, code: str
) -> None:
    answer, descriptors = ask(execd, request_)

    assert (answer["ok"], answer["code"], descriptors) == (False, code, [])
    assert answer["error"]
    assert engine.requests == []


def test_ending_a_session_that_is_gone_is_a_success_and_its_exit_code_can_still_be_asked(execd: Path) -> None:
    assert ask(execd, {"verb": "control", "session": EXEC_ID, "op": "close"})[0] == {"ok": True}
    assert ask(execd, {"verb": "control", "session": EXEC_ID, "op": "wait"})[0] == {"ok": True, "exit_code": 3}


def test_the_engines_own_words_are_passed_on(execd: Path, engine: FakeEngine) -> None:
    engine.refuse = "container c1 is paused"

    assert ask(execd, exec_request())[0] == {"ok": False, "code": "failed", "error": "container c1 is paused"}


def test_an_engine_that_hangs_or_is_gone_is_an_error_in_time(directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(directory / "silent.sock"))
        silent.listen()
        with pytest.raises(EngineError, match="did not answer"):
            ExecEngine(directory / "silent.sock", timeout_s=0.2).inspect("x")
        with pytest.raises(EngineError, match="did not start"):
            ExecEngine(directory / "silent.sock", start_timeout_s=0.2).start("x", tty=True)
    with pytest.raises(EngineError, match="not reachable"):
        ExecEngine(directory / "missing.sock").inspect("x")

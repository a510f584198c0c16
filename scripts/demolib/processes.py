"""Starting processes that are ended again by pid, in reverse order, with nothing else touched."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class DemoError(Exception):
    """Something the reader of the screen can act on."""


def free_port() -> int:
    """A loopback TCP port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Whether we could listen on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(what: str, true: Callable[[], bool], *, seconds: float = 60, pause: float = 0.05) -> None:
    """Return as soon as ``true()``; DemoError naming ``what`` after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        time.sleep(pause)
    raise DemoError(f"{what} did not happen within {seconds:.0f} s.")


def accepts(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something answers on the port."""
    try:
        with socket.create_connection((host, port), 0.5):
            return True
    except OSError:
        return False


class Processes:
    """The processes of one demo: each with its own session, log file and pid file under ``var``."""

    def __init__(self, var: Path) -> None:
        self.logs = var / "log"
        self.run = var / "run"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.run.mkdir(parents=True, exist_ok=True)
        self._at_end: list[Callable[[], None]] = []
        self._running: list[tuple[str, subprocess.Popen[bytes], IO[bytes]]] = []

    def end_leftovers(self) -> None:
        """End what an earlier demo left behind when it was killed: pids it wrote down, if still the same program."""
        for record in sorted(self.run.glob("*.pid"), reverse=True):
            pid_text, _, started = record.read_text().partition(" ")
            pid = int(pid_text)
            if _start_time(pid) == started.strip():
                _end_group(pid)
            record.unlink()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start ``argv`` in its own process group; output goes to var/log/<name>.log."""
        log = (self.logs / f"{name}.log").open("wb")
        process = subprocess.Popen(
            list(argv),
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running.append((name, process, log))
        (self.run / f"{name}.pid").write_text(f"{process.pid} {_start_time(process.pid)}")
        return process

    def check(self) -> None:
        """DemoError with the end of its log if one of ours has ended by itself."""
        for name, process, log in self._running:
            if process.poll() is not None:
                tail = Path(log.name).read_text(errors="replace").splitlines()[-12:]
                raise DemoError(f"{name} ended with exit status {process.returncode}:\n  " + "\n  ".join(tail))

    def stop(self, name: str) -> None:
        """End one by name."""
        for entry in [entry for entry in self._running if entry[0] == name]:
            self._end(*entry)

    def at_end(self, action: Callable[[], None]) -> None:
        """Do this first when all is ended."""
        self._at_end.append(action)

    def kill(self, name: str) -> None:
        """End one by name without a word: SIGKILL to it and to its children."""
        for entry in [entry for entry in self._running if entry[0] == name]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(entry[1].pid, signal.SIGKILL)
            self._end(*entry)

    def stop_all(self) -> None:
        """End all, the last started first."""
        for action in self._at_end:
            action()
        for entry in reversed(list(self._running)):
            self._end(*entry)

    def alive(self) -> int:
        """How many of ours still run."""
        return sum(process.poll() is None for _, process, _ in self._running)

    def _end(self, name: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
        log.close()
        (self.run / f"{name}.pid").unlink(missing_ok=True)
        self._running = [entry for entry in self._running if entry[1] is not process]


def _start_time(pid: int) -> str:
    """The kernel's start time of a process, so that a reused pid is never taken for ours; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _end_group(pid: int) -> None:
    for sig, patience in ((signal.SIGTERM, 15.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(pid, sig)
        except ProcessLookupError:
            return
        end = time.monotonic() + patience
        while time.monotonic() < end and _start_time(pid):
            time.sleep(0.1)

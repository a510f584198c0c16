"""The OpenSSH client in a terminal of the test's own, as a person sits at one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import termios
import time
from contextlib import suppress
from typing import Self

LIMIT_S = 60.0


class Terminal:
    """Runs a command in a pseudo terminal. A context manager."""

    def __init__(self, command: list[str], env: dict[str, str], *, rows: int = 24, cols: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(self._ours, (rows, cols))
        self.client = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )  # fmt: skip
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.kill()
        self.client.wait()
        os.close(self._ours)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def resize(self, rows: int, cols: int) -> None:
        """Change the window; the client learns of it by a signal, as from a terminal emulator."""
        termios.tcsetwinsize(self._ours, (rows, cols))
        self.client.send_signal(signal.SIGWINCH)

    def ask(self, text: str) -> str:
        """Type, and read what comes within a moment."""
        self.type(text)
        return self._read(0.5)

    def read_all(self) -> str:
        """Everything until the client has gone."""
        return self._read(5.0)

    def read_until(self, text: str) -> str:
        """What is shown up to the first ``text``; AssertionError with what was shown when it does not come."""
        shown, end = "", time.monotonic() + LIMIT_S
        while text not in shown:
            ready = select.select([self._ours], [], [], max(0.0, end - time.monotonic()))[0]
            piece = b""
            with suppress(OSError):  # the other side has closed
                piece = os.read(self._ours, 65536) if ready else b""
            assert piece, f"no {text!r} in {shown!r}"
            shown += piece.decode(errors="replace")
        return shown

    def _read(self, seconds: float) -> str:
        shown = b""
        while select.select([self._ours], [], [], seconds)[0]:
            try:
                shown += os.read(self._ours, 65536)
            except OSError:  # the other side has closed
                break
        return shown.decode()

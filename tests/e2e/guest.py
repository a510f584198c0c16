"""A renter in a lease: the OpenSSH programs with the renter's key, as a renter types them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from scripts.demolib.processes import accepts, free_port, wait_until
from tests.rig.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripts.demolib.renter import Renter

LIMIT_S = 60.0
Done = subprocess.CompletedProcess[str]


class Guest:
    """One renter with one key in one lease (the API's JSON of it)."""

    def __init__(self, renter: Renter, lease: dict[str, Any], key: Path) -> None:
        self.renter, self.lease, self.key = renter, lease, key

    @property
    def id(self) -> str:
        """The lease's id."""
        return str(self.lease["id"])

    @property
    def place(self) -> str:
        """user@host."""
        return f"{self.lease['ssh']['user']}@{self.lease['ssh']['host']}"

    def run(self, command: str, *, text: str = "") -> Done:
        """`ssh … command`."""
        return _run(*self.renter.ssh_command(self.lease, self.key, command), text=text)

    def copy(self, program: str, *words: str) -> Done:
        """scp or sftp; ``{there}`` in a word is this lease."""
        port = ["-P", str(self.lease["ssh"]["port"])]
        options = self.renter.ssh_options(self.lease, self.key)
        return _run(program, *options, *port, *(word.format(there=self.place) for word in words))

    def rsync(self, *words: str) -> Done:
        """rsync over ssh; ``{there}`` in a word is this lease."""
        shell = " ".join(["ssh", *self.renter.ssh_options(self.lease, self.key), "-p", str(self.lease["ssh"]["port"])])
        return _run("rsync", "-a", "-e", shell, *(word.format(there=self.place) for word in words))

    def probe(self) -> dict[str, Any]:
        """What the static probe inside the container sees."""
        found: dict[str, Any] = json.loads(self.run("/.lease/bin/probe").stdout)
        return found | {"devices": sorted(found["devices"])}

    @contextmanager
    def forward(self, port: int) -> Iterator[int]:
        """`ssh -N -L`: yields the local port that leads to 127.0.0.1:`port` inside."""
        local = free_port()
        options = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{local}:127.0.0.1:{port}"]
        command = self.renter.ssh_command(self.lease, self.key, options=options)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as client:
            try:
                wait_until("the forwarded port", lambda: accepts(local), seconds=LIMIT_S)
                yield local
            finally:
                client.kill()

    def terminal(self, *, rows: int, cols: int) -> Terminal:
        """A login shell in a terminal of this size."""
        command = self.renter.ssh_command(self.lease, self.key, options=["-tt"])
        return Terminal(command, {**os.environ, "TERM": "xterm"}, rows=rows, cols=cols)


def fetch(port: int, path: str) -> str:
    """The body of http://127.0.0.1:port/path, by a client of our own, so that no proxy setting is in the way."""
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with connection.makefile("rb") as stream:
            return stream.read().decode().partition("\r\n\r\n")[2]


def _run(*command: str, text: str = "") -> Done:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=LIMIT_S)

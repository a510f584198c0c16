"""The Docker engine of the demo: the one that runs, else one of our own under var/ that ends with us."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.demolib.processes import DemoError, wait_until

if TYPE_CHECKING:
    from scripts.demolib.processes import Processes

DEFAULT_SOCKET = Path("/var/run/docker.sock")


def answers(socket: Path) -> bool:
    """Whether an engine answers on this Unix socket."""
    if not socket.exists():
        return False
    done = subprocess.run(
        ["docker", "-H", f"unix://{socket}", "version", "--format", "{{.Server.Version}}"],
        capture_output=True,
        check=False,
        timeout=20,
    )
    return done.returncode == 0


def find_or_start(processes: Processes, var: Path) -> tuple[Path, str]:
    """``(socket, where it came from)``; an engine that already runs is used as it is."""
    named = os.environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        raise DemoError(f"DOCKER_HOST is {named}; the demo needs the engine of this machine (unix://…).")
    socket = Path(named.removeprefix("unix://")) if named else DEFAULT_SOCKET
    if answers(socket):
        return socket, "already running"
    if named:
        raise DemoError(f"No engine answers at DOCKER_HOST={named}.")
    return _start_own(processes, var), "started by the demo"


def _start_own(processes: Processes, var: Path) -> Path:
    dockerd = shutil.which("dockerd")
    if dockerd is None:
        raise DemoError("No Docker engine answers and dockerd is not installed (apt-get install docker.io).")
    home = var / "docker"
    # Unix socket paths are limited to 107 letters, and a checkout may lie deep.
    sockets = Path("/run/lessor-demo")
    sockets.mkdir(mode=0o711, parents=True, exist_ok=True)
    socket = sockets / "docker.sock"
    processes.start(
        "dockerd",
        [dockerd, "--host", f"unix://{socket}", "--data-root", str(home / "data"), "--exec-root", str(sockets / "exec"),
         "--pidfile", str(sockets / "docker.pid"), "--log-level", "warn"],
    )  # fmt: skip
    wait_until("the Docker engine", lambda: _up(processes, socket), seconds=60, pause=0.2)
    return socket


def _up(processes: Processes, socket: Path) -> bool:
    processes.check()
    return answers(socket)

"""What an engine has made on this machine, found by name and removed: processes, mounts, cgroups, network.

Works from the engine's directory and number alone, so that it also cleans up after a test run that was killed.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from tests.rig.network import remove_network

CGROUPS = Path("/sys/fs/cgroup")
WAIT_SECONDS = 10.0


def cgroup_dirs(number: int) -> list[Path]:
    """The engine's cgroups, in every hierarchy of version 1 or the one of version 2, deepest first."""
    name = f"lessor-rig-{number}"
    tops = [top for top in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if top.is_dir()]
    return [Path(path) for top in tops for path, _, _ in os.walk(top, topdown=False)]


def container_pids(number: int) -> set[int]:
    """Processes in the engine's containers."""
    pids: set[int] = set()
    for directory in cgroup_dirs(number):
        with contextlib.suppress(OSError):
            pids.update(int(pid) for pid in (directory / "cgroup.procs").read_text().split())
    return pids


def engine_pids(root: Path) -> set[int]:
    """dockerd, containerd, shims: whoever names the engine's directory in its command line."""
    pids = set()
    marker = os.fsencode(root) + b"/"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            if Path(os.fsdecode(arguments[0])).name in {"dockerd", "containerd", "containerd-shim-runc-v2"} and any(
                marker in argument for argument in arguments
            ):
                pids.add(int(entry.name))
    return pids


def mounts_below(root: Path) -> list[str]:
    """Mount points below the engine's directory, innermost first."""
    points = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return sorted((point for point in points if point.startswith(f"{root}/")), key=len, reverse=True)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _gone(pids: set[int]) -> bool:
    """Whether none of them runs any more; a zombie does not."""
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                return False
    return True


def _wait_gone(pids: set[int]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not _gone(pids) and time.monotonic() < end:
        time.sleep(0.02)


def remove_leftovers(root: Path, number: int, *, containers_only: bool = False) -> None:
    """Ends the engine's containers and, unless `containers_only`, everything else it has made. Safe to repeat."""
    containers = container_pids(number)
    _kill(containers)
    _wait_gone(containers)
    if containers_only:
        return
    own = engine_pids(root)
    _kill(own)
    _wait_gone(own)
    for point in mounts_below(root):
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
    for directory in cgroup_dirs(number):
        with contextlib.suppress(OSError):
            directory.rmdir()
    remove_network(number)

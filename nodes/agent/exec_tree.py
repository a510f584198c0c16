"""Which processes belong to an SSH session, and how they are ended.

The runtime gives every exec a kernel session of its own (setsid), so "the session's processes" are those whose session
id is the pid of the exec's first process. That draws the line where sshd draws it:

* foreground and background children, pipelines and stopped jobs carry the session id: they get HUP and CONT, and KILL
  a second later;
* what the renter detached on purpose stays: `setsid` and daemons such as tmux left the session, `nohup` ignores HUP.

Everything here reads the host's /proc, where ids are the host's. A pid may be reused, so a process counts as the
session's first only with the start time noted when it was found, and signals go through a pidfd that was checked after
it was opened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HANGUP_GRACE_S = 1.0
PROC = Path("/proc")
HUP_BIT = 1 << (signal.SIGHUP - 1)


@dataclass(frozen=True)
class Leader:
    """The first process of an exec: its host pid and its start time in clock ticks since boot."""

    pid: int
    start_ticks: int


def find_leader(pid: int) -> Leader | None:
    """Note a process that runs now; None where it is gone already."""
    stat = _stat(pid)
    return Leader(pid, stat.start_ticks) if stat else None


def is_alive(leader: Leader) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    stat = _stat(leader.pid)
    return stat is not None and stat.start_ticks == leader.start_ticks and stat.state not in "ZX"


def members(leader: Leader) -> list[int]:
    """Host pids of the processes of the leader's session, the leader included while it runs."""
    occupant = _stat(leader.pid)
    if occupant is not None and occupant.start_ticks != leader.start_ticks:
        return []  # the pid is somebody else's now, so the session has no process left
    found = []
    for pid in _pids():
        stat = _stat(pid)
        if stat is not None and stat.session == leader.pid and stat.state not in "ZX":
            found.append(pid)
    return found


def signal_group(leader: Leader, number: int) -> bool:
    """Send a signal to the leader's process group, as sshd does; False where the leader is gone."""
    if not is_alive(leader):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, number)
        return True
    return False


def end_tree(leader: Leader, *, grace_s: float = HANGUP_GRACE_S) -> None:
    """HUP and CONT to every process of the session, KILL to what is left after `grace_s` and does not ignore HUP.

    Blocks.
    """
    for pid in members(leader):
        _send(pid, leader.pid, signal.SIGHUP)
        _send(pid, leader.pid, signal.SIGCONT)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline:
        if not _killable(leader):
            return
        time.sleep(0.02)
    while victims := _killable(leader):  # again until quiet: a process may fork while it is looked for
        for pid in victims:
            _send(pid, leader.pid, signal.SIGKILL)
        time.sleep(0.01)
        if time.monotonic() > deadline + grace_s:
            return  # stuck in the kernel; the end of the lease takes the container with it


@dataclass(frozen=True)
class _Stat:
    state: str
    session: int
    start_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name before may hold blanks and brackets
    return _Stat(state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _ignores_hup(pid: int) -> bool:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return True
    ignored = next((line.split()[1] for line in lines if line.startswith("SigIgn:")), "0")
    return bool(int(ignored, 16) & HUP_BIT)


def _killable(leader: Leader) -> list[int]:
    return [pid for pid in members(leader) if not _ignores_hup(pid)]


def _send(pid: int, session: int, number: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        stat = _stat(pid)
        if stat is not None and stat.session == session:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)

"""Which processes a session's end takes along, on real processes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent import exec_tree
from nodes.agent.exec_tree import Leader, end_tree, find_leader, is_alive, members, signal_group


def find(mark: str) -> list[int]:
    """The processes with this word on their command line, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark in (entry / "cmdline").read_text().split("\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for(mark: str) -> int:
    """The process, as soon as it runs."""
    end = time.monotonic() + 10
    while not (found := find(mark)):
        assert time.monotonic() < end, mark
        time.sleep(0.01)
    return found[0]


@pytest.fixture
def mark() -> Iterator[str]:
    """A number of seconds nobody else sleeps; whoever still does at the end of the test is ended."""
    number = f"{os.getpid()}.{time.monotonic_ns()}"
    yield number
    for pid in (pid for suffix in ("", *"12345") for pid in find(f"{number}{suffix}")):
        os.kill(pid, signal.SIGKILL)


def session(command: str) -> tuple[subprocess.Popen[bytes], Leader]:
    """A shell in a session of its own, as the runtime starts an exec."""
    process = subprocess.Popen(["/bin/bash", "-c", command], start_new_session=True)
    leader = find_leader(process.pid)
    assert leader is not None
    return process, leader


def test_children_end_even_when_stopped_and_what_was_detached_on_purpose_stays(mark: str) -> None:
    process, leader = session(
        f"sleep {mark}1 & sleep {mark}2 & nohup sleep {mark}3 >/dev/null 2>&1 & setsid sleep {mark}4 & sleep {mark}5"
    )
    for number in range(1, 6):
        wait_for(f"{mark}{number}")
    os.kill(wait_for(f"{mark}2"), signal.SIGSTOP)

    end_tree(leader, grace_s=0.3)
    process.wait(10)

    assert [number for number in range(1, 6) if find(f"{mark}{number}")] == [3, 4]


def test_a_program_that_catches_the_hangup_gets_its_second_and_is_then_killed(mark: str) -> None:
    script = (
        f"import signal, time; signal.signal(signal.SIGHUP, lambda *_: print('caught', flush=True)); time.sleep({mark})"
    )
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE)
    leader = find_leader(process.pid)
    assert leader is not None
    status = Path(f"/proc/{process.pid}/status")
    end = time.monotonic() + 10
    while int(status.read_text().split("SigCgt:")[1].split()[0], 16) & 1 == 0:
        assert time.monotonic() < end
        time.sleep(0.01)

    end_tree(leader, grace_s=0.3)

    output, _ = process.communicate(timeout=10)
    assert output == b"caught\n"
    assert process.returncode == -signal.SIGKILL


def test_members_of_a_session_are_found_after_its_first_process_has_gone(mark: str) -> None:
    process, leader = session(f"sleep {mark}1 >/dev/null 2>&1 & exit 0")
    process.wait(10)
    wait_for(f"{mark}1")

    assert not is_alive(leader)
    assert len(members(leader)) == 1
    end_tree(leader, grace_s=0.3)
    assert not find(f"{mark}1")


def test_a_reused_process_id_is_left_alone(mark: str) -> None:
    process, leader = session(f"sleep {mark}")
    impostor = Leader(leader.pid, leader.start_ticks - 1)

    assert not is_alive(impostor)
    assert members(impostor) == []
    assert not signal_group(impostor, signal.SIGKILL)
    end_tree(impostor, grace_s=0.1)
    assert is_alive(leader)
    process.kill()
    process.wait(10)


def test_a_name_with_brackets_and_blanks_does_not_confuse_the_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = ["S", "1", "77", "66", *["0"] * 15, "12345"]
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "stat").write_text(f"5 (a) S (b c) {' '.join(fields)}")
    monkeypatch.setattr(exec_tree, "PROC", tmp_path)

    assert find_leader(5) == Leader(5, 12345)
    assert members(Leader(66, 1)) == [5]

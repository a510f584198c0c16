"""What the gateway wrote comes to the portal: every line once, in order, whatever is rotated, restarted or away."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent.audit_files import AuditFiles, Place
from nodes.agent.contact import Contact, boot_id
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError
from nodes.agent.ssh_events import SshEvents, event_of
from nodes.gateway.audit import AuditLog
from tests.nodes.agent.fake_portal import TOKEN, FakePortal

LEASE = "ls-a"


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        yield portal


def sender(tmp_path: Path, portal: FakePortal) -> SshEvents:
    """An agent's sender; another call is the agent started again."""
    client = PortalClient(portal.url, TOKEN, Contact(tmp_path / "contact.json", 900))
    return SshEvents(client, tmp_path / "audit.log", tmp_path / "place.json")


def write(log: AuditLog, *names: int) -> None:
    """One login for each number."""
    for name in names:
        log.write("login", lease=LEASE, peer=f"192.0.2.{name}", fingerprint="SHA256:abc")


def send_all(events: SshEvents) -> None:
    """Until nothing is left."""
    while events.send():
        pass


def peers(portal: FakePortal) -> list[int]:
    """The numbers of the logins the portal has had, in order."""
    return [int(event["peer"].rpartition(".")[2]) for event in portal.ssh_events]


def test_each_line_is_sent_once_and_the_place_outlives_a_restart(tmp_path: Path, portal: FakePortal) -> None:
    log = AuditLog(tmp_path / "audit.log")
    write(log, 1, 2)
    send_all(sender(tmp_path, portal))
    write(log, 3)
    again = sender(tmp_path, portal)
    send_all(again)
    send_all(again)

    assert peers(portal) == [1, 2, 3]
    assert len({event["id"] for event in portal.ssh_events}) == 3


@pytest.mark.parametrize("status", [500, 429, 403])
def test_nothing_is_lost_while_the_portal_is_away(tmp_path: Path, portal: FakePortal, status: int) -> None:
    log = AuditLog(tmp_path / "audit.log", file_bytes=1000)
    events = sender(tmp_path, portal)
    portal.status = status
    for number in range(1, 6):
        write(log, number)
        with pytest.raises((PortalUnavailableError, PortalRefusedError)):
            events.send()
    portal.status = 0
    send_all(events)

    assert peers(portal) == [1, 2, 3, 4, 5]
    assert [event["age_s"] >= 0 for event in portal.ssh_events] == [True] * 5


def test_files_that_were_moved_away_are_sent_to_their_end_first(tmp_path: Path, portal: FakePortal) -> None:
    log = AuditLog(tmp_path / "audit.log", file_bytes=1000, old_files=50)
    events = sender(tmp_path, portal)
    write(log, 1)
    send_all(events)
    write(log, *range(2, 60))
    assert len(list(tmp_path.glob("audit.log.*"))) > 10
    send_all(events)

    assert peers(portal) == list(range(1, 60))


def test_what_was_thrown_away_before_it_was_sent_is_a_hole_and_no_stop(tmp_path: Path, portal: FakePortal) -> None:
    log = AuditLog(tmp_path / "audit.log", file_bytes=1000, old_files=2)
    events = sender(tmp_path, portal)
    write(log, 1)
    send_all(events)
    write(log, *range(2, 60))
    send_all(events)

    assert peers(portal) == [1, *range(peers(portal)[1], 60)]
    assert len(list(tmp_path.glob("audit.log*"))) == 3


def _write_many(path: Path, begin: int) -> None:
    log = AuditLog(path, file_bytes=5000, old_files=1000)
    for number in range(begin, begin + 300):
        log.write("login", lease=LEASE, peer=f"0.0.0.{number}")


def test_no_line_is_lost_or_doubled_while_several_processes_write_and_rotate(
    tmp_path: Path, portal: FakePortal
) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_many, args=(tmp_path / "audit.log", 1000 * n)) for n in (1, 2, 3)]
    events = sender(tmp_path, portal)
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        events.send()
    for writer in writers:
        writer.join()
    send_all(events)

    assert sorted(peers(portal)) == [1000 * n + number for n in (1, 2, 3) for number in range(300)]
    for n in (1, 2, 3):  # and each writer's own in its order
        assert [peer for peer in peers(portal) if peer // 1000 == n] == [1000 * n + i for i in range(300)]


def test_a_line_that_the_portal_refuses_blocks_none_behind_it(tmp_path: Path, portal: FakePortal) -> None:
    write(AuditLog(tmp_path / "audit.log"), 1, 2, 3)
    bad = json.loads((tmp_path / "audit.log").read_text().splitlines()[1])["id"]
    portal.unreadable = {bad}

    send_all(sender(tmp_path, portal))

    assert peers(portal) == [1, 3]


def test_garbage_between_lines_is_left_out_and_half_a_line_waits(tmp_path: Path, portal: FakePortal) -> None:
    path, log = tmp_path / "audit.log", AuditLog(tmp_path / "audit.log")
    write(log, 1)
    with path.open("ab") as file:
        file.write(b'not json\n[]\n{"event":"login"}\n{"event":"lo')
    events = sender(tmp_path, portal)
    send_all(events)
    assert peers(portal) == [1]
    with path.open("ab") as file:
        file.write(b'gin","lease":"ls-a","id":"x","peer":"192.0.2.2"}\n')
    send_all(events)

    assert peers(portal) == [1, 2]


def test_strangers_probes_and_gateway_internals_stay_on_the_node(tmp_path: Path, portal: FakePortal) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.write("auth_refused", lease="root", peer="192.0.2.9")
    log.write("login", lease=LEASE, peer="127.0.0.1", probe=True)
    log.write("logout", lease=LEASE, peer="192.0.2.1")
    log.write("revoked", lease=LEASE, peer="192.0.2.1")
    log.write("auth_refused", lease=LEASE, peer="192.0.2.1", fingerprint="SHA256:x", why="certificate: expired")
    log.write("session", lease=LEASE, peer="192.0.2.2", session="s1", kind="shell", tty=True, portal=True)
    log.write("forward", lease=LEASE, peer="192.0.2.3", host="127.0.0.1", port=8888, allowed=True)
    log.write("forward", lease=LEASE, peer="192.0.2.4", host="10.0.0.1", port=22, allowed=False)
    log.write("session_end", lease=LEASE, peer="192.0.2.5", session="s1", kind="sftp", bytes_in=7, bytes_out=9)

    send_all(sender(tmp_path, portal))

    assert [(e["kind"], e["detail"]) for e in portal.ssh_events] == [
        ("login_refused", "certificate: expired"),
        ("session_start", "portal shell"),
        ("forward", "127.0.0.1:8888"),
        ("forward", "10.0.0.1:22 refused"),
        ("session_end", "sftp"),
    ]
    assert (portal.ssh_events[-1]["bytes_in"], portal.ssh_events[-1]["bytes_out"]) == (7, 9)


def test_the_age_is_told_by_the_clock_that_nobody_sets(tmp_path: Path, portal: FakePortal) -> None:
    clock = time.clock_gettime(time.CLOCK_BOOTTIME)
    line = {"event": "login", "lease": LEASE, "id": "x", "time": "2001-01-01T00:00:00Z"}

    this_boot = event_of({**line, "boot": boot_id()[:8], "clock": clock - 50})
    earlier_boot = event_of({**line, "boot": "00000000", "clock": clock - 50, "time": "2026-01-01T00:00:00Z"})

    assert this_boot is not None
    assert 50 <= float(str(this_boot["age_s"])) < 100
    assert earlier_boot is not None
    assert float(str(earlier_boot["age_s"])) > 1000


def test_a_first_start_without_any_file_waits_for_one(tmp_path: Path, portal: FakePortal) -> None:
    events = sender(tmp_path, portal)
    assert not events.send()
    assert AuditFiles(tmp_path / "audit.log").read(Place("gone", 5), 10) == ([], Place())
    write(AuditLog(tmp_path / "audit.log"), 1)
    send_all(events)

    assert peers(portal) == [1]


@pytest.mark.parametrize("name", ["audit.log", "audit.log.1"])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, portal: FakePortal, name: str, what: str) -> None:
    write(AuditLog(tmp_path / "elsewhere"), 1)
    write(AuditLog(tmp_path / "audit.log"), 2)
    (tmp_path / name).unlink(missing_ok=True)
    if what == "link":
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(tmp_path / name)

    with pytest.raises(OSError, match=r"audit\.log|plain file"):
        sender(tmp_path, portal).send()

    assert portal.ssh_events == []


def test_the_thread_sends_by_itself_and_ends(tmp_path: Path, portal: FakePortal) -> None:
    client = PortalClient(portal.url, TOKEN, Contact(tmp_path / "contact.json", 900))
    events = SshEvents(client, tmp_path / "audit.log", tmp_path / "place.json", every_s=0.01)
    events.start()
    write(AuditLog(tmp_path / "audit.log"), 1)
    portal.wait_for(lambda: peers(portal) == [1], "the event")
    events.stop()

    assert "ssh-events" not in {thread.name for thread in threading.enumerate()}

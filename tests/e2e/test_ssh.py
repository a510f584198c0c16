"""What a renter does over SSH, in the workspace image and in one from scratch, with the OpenSSH programs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.e2e.guest import fetch
from tests.rig.images import SCRATCH, WORKSPACE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk
    from tests.e2e.guest import Guest

pytestmark = pytest.mark.rig


@pytest.fixture(scope="module")
def leases(desk: Desk, renter: Renter) -> Iterator[dict[str, Guest]]:
    """One lease of each image for the whole module."""
    guests = {image: desk.rent(renter, image=image) for image in (WORKSPACE, SCRATCH)}
    yield guests
    for guest in guests.values():
        desk.stop(renter, guest.id)
        desk.assert_gone(guest.id)


@pytest.fixture(params=[WORKSPACE, SCRATCH])
def guest(request: pytest.FixtureRequest, leases: dict[str, Guest]) -> Guest:
    """Each image in turn."""
    return leases[request.param]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A megabyte of nothing in particular."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(3).randbytes(1_000_000))  # noqa: S311  # the same in each run
    return path


def test_a_terminal_has_the_size_of_the_window_and_follows_it(leases: dict[str, Guest]) -> None:
    with leases[WORKSPACE].terminal(rows=31, cols=97) as terminal:
        terminal.type("stty size; tty\n")
        shown = terminal.read_until("/dev/pts/")
        assert "31 97" in shown
        terminal.resize(40, 120)
        terminal.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.1; done; echo now''resized\n")
        terminal.read_until("nowresized")
        terminal.type("pwd; exit 5\n")
        terminal.read_until("/workspace")
        assert terminal.client.wait(30) == 5


def test_a_command_keeps_its_output_apart_and_its_exit_status(guest: Guest) -> None:
    done = guest.run("echo out; echo err >&2; exit 42")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 42)
    assert guest.run("read line; echo got $line", text="input\n").stdout == "got input\n"


def test_files_go_both_ways_by_scp(guest: Guest, file: Path, tmp_path: Path) -> None:
    there = guest.copy("scp", str(file), "{there}:scp-copy")
    back = guest.copy("scp", "{there}:scp-copy", str(tmp_path / "back"))

    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    assert guest.run("/.lease/bin/busybox wc -c < /workspace/scp-copy").stdout.strip() == "1000000"


def test_files_go_both_ways_by_sftp(guest: Guest, file: Path, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.write_text(f"pwd\nput {file} sftp-copy\nget sftp-copy {tmp_path}/back\nrm sftp-copy\n")

    done = guest.copy("sftp", "-b", str(batch), "{there}")

    assert done.returncode == 0, done.stderr
    assert "Remote working directory: /workspace" in done.stdout
    assert (tmp_path / "back").read_bytes() == file.read_bytes()


def test_files_go_both_ways_by_rsync(guest: Guest, file: Path, tmp_path: Path) -> None:
    there = guest.rsync(str(file), "{there}:rsync-copy")
    back = guest.rsync("{there}:rsync-copy", str(tmp_path / "back"))

    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert (tmp_path / "back").read_bytes() == file.read_bytes()


def test_a_forwarded_port_reaches_a_server_on_the_leases_own_loopback(guest: Guest) -> None:
    guest.run("echo served inside > /workspace/page; /.lease/bin/busybox httpd -p 127.0.0.1:8000 -h /workspace")
    with guest.forward(8000) as port:
        assert fetch(port, "/page") == "served inside\n"


def test_a_killed_client_leaves_no_process_behind(desk: Desk, guest: Guest) -> None:
    guest.run("true")
    with guest.terminal(rows=24, cols=80) as terminal:
        terminal.type("/.lease/bin/busybox sleep 4711 & echo star''ted\n")
        terminal.read_until("started")
    top = ("top", guest.lease["container_id"], "-o", "pid,args")
    desk.stack.wait("the end of what it had started", lambda: "4711" not in desk.stack.engine.docker(*top).stdout)

"""Memory and open files of the gateway stay flat, whatever goes through it and however often somebody logs in."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.nodes.gateway.rig import Lease, Node, client_environment, wait_until

pytestmark = [pytest.mark.rig]

MIB = 1 << 20
GROWTH_BYTES = 48 * MIB  # windows, buffers and what the allocator keeps; far below what is transferred
SIZES = [pytest.param(64 * MIB, id="64 MiB"), pytest.param(10 << 30, id="10 GiB", marks=pytest.mark.long)]
LOGINS = [pytest.param(20, id="20"), pytest.param(2000, id="2,000", marks=pytest.mark.long)]

BOTH_WAYS = """
import socket, sys
size = int(sys.argv[1])
with socket.create_server(("127.0.0.1", 8005)) as listener, listener.accept()[0] as connection:
    left = size
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))
    for _ in range(size >> 20):
        connection.sendall(bytes(1 << 20))
"""


class Gauge:
    """What the gateway process has of memory, bytes, and open files; `peak` is the most while measuring."""

    def __init__(self, node: Node) -> None:
        assert node.gateway is not None
        self._process = Path(f"/proc/{node.gateway.pid}")
        self.peak = 0

    @property
    def memory(self) -> int:
        status = (self._process / "status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    @property
    def files(self) -> int:
        return len(list((self._process / "fd").iterdir()))

    @contextlib.contextmanager
    def measuring(self) -> Iterator[int]:
        """Yields what it has at the beginning."""
        stop, begin = threading.Event(), self.memory
        self.peak = begin

        def look() -> None:
            while not stop.wait(0.05):
                self.peak = max(self.peak, self.memory)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            yield begin
        finally:
            stop.set()
            watcher.join()


def sparse(path: Path, size: int) -> Path:
    """A file of this size that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(size)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("size", SIZES)
def test_a_long_transfer_by_sftp_takes_no_more_memory_than_a_short_one(node: Node, lease: Lease, size: int) -> None:
    gauge = Gauge(node)
    node.ssh(lease.id, "true")
    sparse(node.directory / f"workspace-{lease.id}/big", size)
    local = sparse(node.directory / "big", size)
    (node.directory / "batch").write_text(f"put {local} /dev/null\nget big /dev/null\n")
    command = ["sftp", *node.options(), "-P", str(node.port), "-b", str(node.directory / "batch")]

    with gauge.measuring() as begin:
        subprocess.run([*command, f"{lease.id}@127.0.0.1"], check=True, env=client_environment(), capture_output=True)

    assert gauge.peak - begin < GROWTH_BYTES
    wait_until(lambda: node.audit()[-1]["event"] == "logout", "the logout")
    logout = node.audit()[-1]
    assert logout["bytes_in"] > size
    assert logout["bytes_out"] > size


@pytest.mark.parametrize("size", SIZES)
def test_a_long_transfer_through_a_forward_takes_no_more_memory_than_a_short_one(
    node: Node, lease: Lease, size: int
) -> None:
    gauge = Gauge(node)
    node.ssh(lease.id, "true")
    local = sparse(node.directory / "big", size)
    inside = ["nsenter", "-t", str(lease.pid), "-n", sys.executable, "-c", BOTH_WAYS, str(size)]
    with node.background(inside) as server:
        wait_until(lambda: "0100007F:1F45" in Path(f"/proc/{lease.pid}/net/tcp").read_text(), "the server")
        with gauge.measuring() as begin, local.open("rb") as source:
            client = node.command(lease.id, options=("-W", "127.0.0.1:8005"))
            pipe = subprocess.PIPE
            with subprocess.Popen(client, stdin=source, stdout=pipe, env=client_environment()) as running:
                counted = subprocess.run(["wc", "-c"], stdin=running.stdout, capture_output=True, text=True, check=True)
        server.wait(10)

    assert int(counted.stdout) == size
    assert gauge.peak - begin < GROWTH_BYTES


@pytest.mark.parametrize("number", LOGINS)
def test_logins_leave_no_open_file_and_no_memory_behind(node: Node, lease: Lease, number: int) -> None:
    node.stop_gateway()
    node.start_gateway("--login-rate", "1000")
    gauge = Gauge(node)
    with ThreadPoolExecutor(4) as pool:
        assert {done.stdout for done in pool.map(lambda _: node.ssh(lease.id, "echo in"), range(20))} == {b"in\n"}
        wait_until(lambda: node.control("activity")["leases"][lease.id]["sessions"] == 0, "the end of the first")
        files, memory = gauge.files, gauge.memory
        assert {done.stdout for done in pool.map(lambda _: node.ssh(lease.id, "echo in"), range(number))} == {b"in\n"}
    wait_until(lambda: gauge.files <= files, "the closing of files")

    assert gauge.memory - memory < GROWTH_BYTES / 3
    node.stop_gateway()
    node.start_gateway()

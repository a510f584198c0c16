"""ssh -L, -D and -W into the lease's own loopback, and nowhere else."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.gateway.rig import Lease, Node, free_port, wait_until

pytestmark = [pytest.mark.rig]

SERVED = "served inside the lease\n"


@pytest.fixture(scope="module")
def server(node: Node, lease: Lease) -> int:
    """The port of a small web server on the container's 127.0.0.1."""
    (node.directory / f"workspace-{lease.id}/page.txt").write_text(SERVED * 1000)
    node.ssh(lease.id, "/.lease/bin/busybox httpd -p 127.0.0.1:8000 -h /workspace")
    return 8000


@contextlib.contextmanager
def forwarding(node: Node, lease: Lease, *options: str) -> Iterator[int]:
    """A client that only forwards, from a free local port, which it puts in place of {port}."""
    port = free_port()
    given = tuple(option.format(port=port) for option in options)
    with node.background(node.command(lease.id, options=(*given, "-N", "-o", "ExitOnForwardFailure=yes"))):
        wait_until(lambda: _connects(port), "the forwarded port")
        yield port


def _connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def fetch(*words: str) -> subprocess.CompletedProcess[str]:
    """curl, which speaks SOCKS too."""
    return subprocess.run(["curl", "-sS", "-m", "20", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_local_forward_reaches_a_server_on_the_leases_loopback(
    node: Node, lease: Lease, server: int, host: str
) -> None:
    with forwarding(node, lease, "-L", f"{{port}}:{host}:{server}") as port:
        assert fetch(f"http://127.0.0.1:{port}/page.txt").stdout == SERVED * 1000

    written = node.audit("forward")[-1]
    assert {name: written[name] for name in written if name not in {"time", "boot", "clock", "id"}} == {
        "event": "forward",
        "lease": lease.id,
        "peer": "127.0.0.1",
        "fingerprint": node.audit("login")[-1]["fingerprint"],
        "host": host,
        "port": server,
        "allowed": True,
    }


def test_a_socks_proxy_reaches_the_leases_loopback_and_no_other_host(node: Node, lease: Lease, server: int) -> None:
    with forwarding(node, lease, "-D", "{port}") as port:
        inside = fetch("--socks5-hostname", f"127.0.0.1:{port}", f"http://localhost:{server}/page.txt")
        outside = fetch("--socks5-hostname", f"127.0.0.1:{port}", f"http://{node.engine.host_ip}:{server}/page.txt")

    assert inside.stdout == SERVED * 1000
    assert outside.returncode != 0
    assert node.audit("forward")[-1]["allowed"] is False


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "example.com", "127.0.0.2", "localhost.example.com"])
def test_a_forward_to_another_host_is_refused_with_the_reason(node: Node, lease: Lease, host: str) -> None:
    done = node.ssh(lease.id, options=("-W", f"{host}:22"))

    assert done.returncode == 255
    assert b"only 127.0.0.1, localhost and ::1 of the lease can be reached" in done.stderr


def test_a_port_nobody_listens_on_is_refused_with_the_reason(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, options=("-W", "127.0.0.1:9"))

    assert b"nothing answers on port 9 of the lease" in done.stderr


ANSWER_AT_THE_END = """
import hashlib, socket
with socket.create_server(("127.0.0.1", 8001)) as listener, listener.accept()[0] as connection:
    seen = hashlib.sha256()
    while data := connection.recv(65536):
        seen.update(data)
    connection.sendall(seen.hexdigest().encode())
"""


def test_a_half_closed_forward_still_delivers_the_answer(node: Node, lease: Lease) -> None:
    inside = ["nsenter", "-t", str(lease.pid), "-n", sys.executable, "-c", ANSWER_AT_THE_END]
    with node.background(inside) as server:
        listening = Path(f"/proc/{lease.pid}/net/tcp")
        wait_until(lambda: "0100007F:1F41" in listening.read_text(), "the server")
        done = node.ssh(lease.id, options=("-W", "127.0.0.1:8001"), stdin=b"abc" * 1_000_000)
        server.wait(10)

    assert done.stdout.decode() == hashlib.sha256(b"abc" * 1_000_000).hexdigest()


@pytest.mark.parametrize(
    "options",
    [("-R", "0:127.0.0.1:22"), ("-R", "/run/lease.sock:127.0.0.1:22"), ("-w", "0:0"), ("-L", "0:/run/docker.sock")],
)
def test_remote_forwards_tunnels_and_sockets_are_off(node: Node, lease: Lease, options: tuple[str, str]) -> None:
    done = node.ssh(lease.id, "echo never", options=("-o", "ExitOnForwardFailure=yes", *options))

    assert done.returncode == 255
    assert b"never" not in done.stdout


def test_the_clients_agent_and_display_do_not_reach_the_lease(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "echo agent=$SSH_AUTH_SOCK display=$DISPLAY", options=("-A", "-X"))

    assert b"agent= display=\n" in done.stdout

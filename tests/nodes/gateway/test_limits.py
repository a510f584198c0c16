"""How much one lease, one address and one process may take, and what the client is told."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

import pytest

from nodes.gateway.rates import Bucket, DoorRate
from tests.nodes.gateway.rig import Lease, Node, free_port, wait_until


@contextlib.contextmanager
def limited(node: Node, *options: str) -> Iterator[None]:
    """A gateway with other limits than usual."""
    node.stop_gateway()
    node.start_gateway(*options)
    try:
        yield
    finally:
        node.stop_gateway()
        node.start_gateway()


@pytest.mark.rig
def test_sessions_of_a_lease_are_counted_over_its_connections(node: Node, lease: Lease) -> None:
    control = str(node.directory / "limited")
    mux = ("-o", f"ControlPath={control}")
    shared = node.command(lease.id, "cat", options=("-o", "ControlMaster=yes", *mux))
    with limited(node, "--max-sessions", "2"), node.background(shared):
        wait_until(lambda: os.path.exists(control), "the shared connection")  # noqa: PTH110  a socket
        with node.background(node.command(lease.id, "cat")):
            wait_until(lambda: len(lease.processes("cat")) >= 2, "two sessions")
            third = node.ssh(lease.id, "echo third", options=mux)
            fourth = node.ssh(lease.id, "echo fourth")
        wait_until(lambda: len(lease.processes("cat")) == 1, "the end of one")
        again = node.ssh(lease.id, "echo again")

    assert b"third" not in third.stdout
    assert b"2 sessions are open in this lease, which is the limit" in third.stderr + fourth.stderr
    assert again.stdout == b"again\n"


@pytest.mark.rig
def test_forwards_of_a_lease_have_a_limit(node: Node, lease: Lease) -> None:
    node.ssh(lease.id, "/.lease/bin/busybox httpd -p 127.0.0.1:8004 -h /workspace")
    local = free_port()
    forward = node.command(lease.id, options=("-N", "-L", f"{local}:127.0.0.1:8004"))
    with limited(node, "--max-forwards", "1"), node.background(forward):
        first = wait_until(lambda: _connected(local), "the forward")
        with first:
            wait_until(lambda: node.control("activity")["leases"][lease.id]["sessions"] == 1, "the open forward")
            second = node.ssh(lease.id, options=("-W", "127.0.0.1:8004"))

    assert b"1 forwards are open in this lease, which is the limit" in second.stderr


def _connected(port: int) -> socket.socket | None:
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), 20)
    return None


@pytest.mark.rig
def test_an_address_that_logs_in_too_often_is_told_so_and_let_in_again_later(node: Node, lease: Lease) -> None:
    with limited(node, "--login-rate", "1"):
        done = node.ssh(lease.id, "true")
        for _ in range(40):
            if done.returncode:
                break
            done = node.ssh(lease.id, "true")
        wait_until(lambda: node.ssh(lease.id, "echo in").stdout == b"in\n", "another login")

    assert b"more than 1 connections a second from 127.0.0.1; try again" in done.stderr


@pytest.mark.rig
def test_connections_that_only_stand_at_the_door_are_limited_and_the_next_is_told(node: Node, lease: Lease) -> None:
    with limited(node, "--max-startups", "2"), contextlib.ExitStack() as exits:
        for _ in range(2):
            waiting = exits.enter_context(socket.create_connection(("127.0.0.1", node.port), 20))
            assert waiting.recv(4) == b"SSH-"
        told = node.ssh(lease.id, "true")

    assert b"2 connections are logging in, which is the limit; try again" in told.stderr


@pytest.mark.rig
def test_what_strangers_try_fills_no_file(node: Node, lease: Lease) -> None:
    for number in range(3):
        node.make_key(f"stranger-{number}", "ed25519")
    before = len(node.audit("auth_refused"))
    keys = tuple(word for number in range(3) for word in ("-i", str(node.keys / f"stranger-{number}")))
    with limited(node, "--login-rate", "1000"):
        for _ in range(3):
            node.ssh(lease.id, "true", key="stranger-0", options=keys)

    assert len(node.audit("auth_refused")) == before + 9


def test_refusals_beyond_the_burst_are_counted_by_time() -> None:
    bucket = Bucket(per_s=0.0, burst=2)

    assert [bucket.take() for _ in range(4)] == [True, True, False, False]


def test_each_address_has_its_own_pace_and_an_ipv6_network_is_one_address() -> None:
    door = DoorRate(per_s=0.0, burst=1)

    assert door.admits("192.0.2.1")
    assert not door.admits("192.0.2.1")
    assert door.admits("192.0.2.2")
    assert door.admits("2001:db8::1")
    assert not door.admits("2001:db8::2")
    assert door.admits("2001:db8:0:1::1")
    assert not door.admits("::ffff:192.0.2.1") or door.admits("192.0.2.3")

"""What becomes of a session's processes when its client goes, and what is meant to stay."""

from __future__ import annotations

import signal

import pytest

from tests.nodes.gateway.rig import Lease, Node, Terminal, wait_until

pytestmark = [pytest.mark.rig]


def test_a_killed_client_leaves_no_command_behind(node: Node, lease: Lease) -> None:
    with node.background(node.command(lease.id, "sleep 11111 & sleep 11112 | cat; true")) as client:
        wait_until(lambda: lease.processes("11111") and lease.processes("11112"), "both programs")
        client.kill()
        wait_until(lambda: not lease.processes("1111"), "their end")


def test_a_killed_client_leaves_no_program_of_its_terminal_behind(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id) as terminal:
        terminal.type("sleep 22221 & sleep 22222\n")
        wait_until(lambda: lease.processes("22221") and lease.processes("22222"), "both programs")
        terminal.client.kill()
        wait_until(lambda: not lease.processes("2222"), "their end")


def test_a_program_that_catches_the_hangup_is_killed_a_second_later(node: Node, lease: Lease) -> None:
    command = "trap 'echo caught > /tmp/caught' HUP; while :; do sleep 33333; done"
    with node.background(node.command(lease.id, command)) as client:
        wait_until(lambda: lease.processes("sleep 33333"), "the program")
        client.kill()
        wait_until(lambda: not lease.processes("33333"), "its end")

    assert node.ssh(lease.id, "cat /tmp/caught").stdout == b"caught\n"


def test_what_was_detached_on_purpose_outlives_a_killed_client(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id) as terminal:
        terminal.type("setsid sleep 44441 & nohup sleep 44442 >/dev/null 2>&1 & sleep 44443\n")
        for mark in ("44441", "44442", "44443"):
            wait_until(lambda mark=mark: lease.processes(f"sleep {mark}"), "the programs")  # type: ignore[misc]
        terminal.client.kill()
        wait_until(lambda: not lease.processes("sleep 44443"), "the end of the one in the foreground")

    assert lease.processes("sleep 44441")
    assert lease.processes("sleep 44442")


def test_a_background_program_outlives_a_logout(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "nohup sleep 55551 >/dev/null 2>&1 & sleep 55552 >/dev/null 2>&1 & exit 0")

    assert done.returncode == 0
    assert lease.processes("sleep 55551")
    assert lease.processes("sleep 55552")


def test_a_logout_is_not_held_up_by_a_program_that_keeps_the_terminal(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id) as terminal:
        terminal.type("sleep 66666 & disown\nexit 3\n")
        assert terminal.client.wait(20) == 3


def test_a_gateway_that_is_killed_leaves_no_process_behind(node: Node, lease: Lease) -> None:
    with node.background(node.command(lease.id, "sleep 77771")), Terminal(node, lease.id, "sleep 77772"):
        wait_until(lambda: lease.processes("sleep 77771") and lease.processes("sleep 77772"), "both programs")
        node.stop_gateway(signal.SIGKILL)
        try:
            wait_until(lambda: not lease.processes("7777"), "their end")
        finally:
            node.start_gateway()

"""The agent restarts while renters work: no session notices."""

from __future__ import annotations

import re
import subprocess

import pytest

from nodes.agent import execd as execd_module
from tests.nodes.gateway.rig import Lease, Node, Terminal, wait_until

pytestmark = [pytest.mark.rig]


def test_a_restart_of_the_agent_cuts_no_session_and_keeps_its_exit_status(node: Node, lease: Lease) -> None:
    command = node.command(lease.id, "while read line; do echo got $line; done; exit 9")
    with node.background(command) as client, Terminal(node, lease.id) as terminal:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(b"one\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"got one\n"
        wait_until(lambda: "43" in terminal.ask("echo $((6*7+1))\n"), "the terminal")
        node.stop_execd()
        client.stdin.write(b"two\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"got two\n"
        assert "42" in terminal.ask("echo $((6*7))\n")
        node.start_execd()
        terminal.type("exit 8\n")
        client.stdin.close()

        assert client.wait(30) == 9
        assert terminal.client.wait(30) == 8


def test_a_session_taken_over_after_a_restart_still_ends_with_its_client(node: Node, lease: Lease) -> None:
    with node.background(node.command(lease.id, "sleep 88881")) as client:
        wait_until(lambda: lease.processes("sleep 88881"), "the program")
        node.stop_execd()
        node.start_execd()
        wait_until(node.all_sessions_are_held, "the take-over")
        client.kill()
        wait_until(lambda: not lease.processes("88881"), "its end")


def test_a_session_nobody_takes_over_is_closed(node: Node, lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    with node.background(node.command(lease.id, "sleep 99991")):
        wait_until(lambda: lease.processes("sleep 99991"), "the program")
        node.stop_execd()
        node.stop_gateway()
        assert lease.processes("sleep 99991")
        monkeypatch.setattr(execd_module, "ATTACH_LIMIT_S", 0.2)
        node.start_execd()
        try:
            wait_until(lambda: not lease.processes("99991"), "its end")
        finally:
            node.start_gateway()


def test_a_login_during_a_restart_waits_for_the_agent(node: Node, lease: Lease) -> None:
    node.stop_execd()
    with node.background(node.command(lease.id, "echo late")) as client:
        with pytest.raises(subprocess.TimeoutExpired):
            client.wait(1)
        node.start_execd()
        output, _ = client.communicate(timeout=30)

    assert output == b"late\n"


def test_an_agent_that_dies_while_a_session_starts_leaves_no_process_behind(
    node: Node, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.ssh(lease.id, "true")
    with node.background(node.command(lease.id, "sleep 13131")) as client:
        wait_until(lambda: lease.processes("sleep 13131"), "the program")
        note = wait_until(lambda: list((node.run / "execd.sessions").iterdir()), "the note about it")[0]
        node.stop_execd()
        # as the note was before the process was known
        note.write_text(re.sub(r'"leader": \[.*?\]', '"leader": null', note.read_text()))
        client.kill()
        node.stop_gateway()
        monkeypatch.setattr(execd_module, "ATTACH_LIMIT_S", 0.2)
        node.start_execd()
        try:
            wait_until(lambda: not lease.processes("13131"), "its end")
        finally:
            node.start_gateway()

"""An image from scratch: no shell, no passwd, no program but what the bundle brings."""

from __future__ import annotations

import json

import pytest

from tests.nodes.gateway.rig import Lease, Node, Terminal

pytestmark = [pytest.mark.rig]


def test_a_command_runs_under_the_bundles_shell(node: Node, empty_lease: Lease) -> None:
    done = node.ssh(empty_lease.id, "echo $USER $HOME; ls / >/dev/null && echo listed; exit 6")

    assert (done.stdout, done.returncode) == (b"root /root\nlisted\n", 6)


def test_an_interactive_shell_has_a_prompt_and_a_terminal(node: Node, empty_lease: Lease) -> None:
    with Terminal(node, empty_lease.id, rows=30, cols=90) as terminal:
        shown = terminal.ask("stty size\n") + terminal.ask("echo $((6*7))\n")
        terminal.type("exit 2\n")
        assert terminal.client.wait(30) == 2

    assert "30 90" in shown
    assert "42" in shown


def test_the_probe_key_runs_the_probe_and_nothing_else(node: Node, empty_lease: Lease) -> None:
    node.make_key("probe", "ed25519")
    node.admit(empty_lease.id, "ed25519", probe="probe")

    probed = node.ssh(empty_lease.id, "probe", key="probe")

    seen = json.loads(probed.stdout)
    assert (seen["source"], seen["devices"]) == ("proc1_environ", ["GPU-test"])
    for words, options in ((("id",), ()), ((), ("-T",)), ((), ("-s",)), (("sftp",), ("-s",))):
        refused = node.ssh(empty_lease.id, *words, key="probe", options=options)
        assert refused.returncode == 255, (words, options, refused)
    forward = node.ssh(empty_lease.id, key="probe", options=("-W", "127.0.0.1:80"))
    assert b"the probe key opens nothing" in forward.stderr


def test_the_word_probe_is_an_ordinary_command_for_the_renters_key(node: Node, lease: Lease) -> None:
    assert json.loads(node.ssh(lease.id, "probe").stdout)["devices"] == ["GPU-test"]
    assert node.audit("session")[-1]["kind"] == "command"

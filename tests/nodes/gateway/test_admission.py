"""Who comes in, who is kept out and told what, and who is put out again."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.nodes.gateway.rig import Lease, Node, wait_until

pytestmark = [pytest.mark.rig]


@pytest.mark.parametrize(("kind", "bits"), [("ed25519", "256"), ("rsa", "3072"), ("ecdsa", "384")])
def test_each_accepted_kind_of_key_logs_in(node: Node, lease: Lease, kind: str, bits: str) -> None:
    node.make_key(f"of-{kind}", kind, "-b", bits)
    node.admit(lease.id, "ed25519", f"of-{kind}")

    assert node.ssh(lease.id, "echo in", key=f"of-{kind}").stdout == b"in\n"


def test_a_wrong_key_and_an_unknown_lease_get_the_same_answer(node: Node, lease: Lease) -> None:
    node.make_key("wrong", "ed25519")

    wrong = node.ssh(lease.id, "echo in", key="wrong")
    unknown = node.ssh("ls-nowhere", "echo in")

    assert (wrong.returncode, unknown.returncode) == (255, 255)
    assert b"in\n" not in wrong.stdout + unknown.stdout
    assert b"no running lease ls-distro admits the keys you offered" in wrong.stderr
    assert wrong.stderr.replace(lease.id.encode(), b"ls-nowhere") == unknown.stderr
    refused = node.audit("auth_refused")[-2:]
    assert [line["lease"] for line in refused] == [lease.id, "ls-nowhere"]
    assert all(line["fingerprint"].startswith("SHA256:") for line in refused)


def test_the_explanation_does_not_disturb_who_has_another_key_that_fits(node: Node, lease: Lease) -> None:
    node.make_key("first", "ed25519")
    done = node.ssh(lease.id, "echo in", key="first", options=("-i", str(node.keys / "ed25519")))

    assert (done.stdout, done.stderr) == (b"in\n", b"")


def test_no_password_is_ever_asked(node: Node, lease: Lease) -> None:
    options = ("-v", "-o", "PubkeyAuthentication=no", "-o", "LogLevel=DEBUG1")

    done = node.ssh(lease.id, options=options)

    offered = re.findall(r"Authentications that can continue: (.*)", done.stderr.decode().replace("\r", ""))
    assert done.returncode == 255
    assert offered[-1] == "publickey"


def test_a_lease_whose_container_is_gone_says_so(node: Node) -> None:
    lease = node.make_lease("ls-going", "distro")
    del node.leases[lease.id]

    done = node.ssh(lease.id, "echo in")

    assert (done.returncode, done.stderr) == (255, b"lessor: lease ls-going is not running\r\n")


@pytest.mark.parametrize("what", ["the key", "the lease"])
def test_taking_away_the_key_or_the_lease_drops_a_live_connection(node: Node, lease: Lease, what: str) -> None:
    node.make_key(f"taken {what}", "ed25519")
    node.admit(lease.id, "ed25519", f"taken {what}")
    with node.background(node.command(lease.id, "sleep 12121", key=f"taken {what}")) as client:
        wait_until(lambda: lease.processes("sleep 12121"), "the program")
        if what == "the key":
            node.admit(lease.id, "ed25519")
        else:
            node.admitted.pop(lease.id)
            node.write_leases()
        try:
            _, told = client.communicate(timeout=10)
            wait_until(lambda: not lease.processes("12121"), "the program's end")
        finally:
            node.admit(lease.id, "ed25519")

    assert client.returncode == 255
    assert node.audit("revoked")[-1]["lease"] == lease.id
    assert b"has ended or no longer admits your key" in told or told == b""


def test_a_connection_with_another_key_survives_the_revocation(node: Node, lease: Lease) -> None:
    node.make_key("stays", "ed25519")
    node.admit(lease.id, "ed25519", "stays")
    revoked = len(node.audit("revoked"))
    with node.background(node.command(lease.id, "cat", key="stays")) as stays:
        assert stays.stdin is not None
        assert stays.stdout is not None
        with node.background(node.command(lease.id, "cat")) as goes:
            wait_until(lambda: len(lease.processes("cat")) >= 2, "both sessions")
            node.admit(lease.id, "stays")
            goes.wait(10)
        stays.stdin.write(b"alive\n")
        stays.stdin.flush()
        assert stays.stdout.readline() == b"alive\n"

    node.admit(lease.id, "ed25519")
    assert len(node.audit("revoked")) == revoked + 1


def test_the_agent_can_ask_what_would_be_let_in_now(node: Node, lease: Lease) -> None:
    node.make_key("asked", "ed25519")
    node.admit(lease.id, "ed25519", "asked")

    answer = node.ask_gateway(lease.id)

    shown = [
        subprocess.run(["ssh-keygen", "-lf", str(node.keys / name)], capture_output=True, text=True, check=True).stdout
        for name in ("asked", "ed25519")
    ]
    assert answer["keys"] == sorted(line.split()[1] for line in shown)
    public = (node.state / "gateway/ssh_host_ed25519_key.pub").read_text().split()[:2]
    assert answer["host_key"] == " ".join(public)
    assert node.ask_gateway("ls-nowhere")["keys"] == []


def test_the_host_key_stays_the_same_over_a_restart(node: Node, lease: Lease) -> None:
    before = node.ask_gateway(lease.id)["host_key"]
    node.stop_gateway()
    node.start_gateway()

    assert node.ask_gateway(lease.id)["host_key"] == before
    assert oct((node.state / "gateway/ssh_host_ed25519_key").stat().st_mode)[-3:] == "600"


def test_the_gateway_process_has_no_privilege_left(node: Node) -> None:
    assert node.gateway is not None
    status = Path(f"/proc/{node.gateway.pid}/status").read_text()

    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in facts["Uid"].split() + facts["Gid"].split()
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0000000000000000"}
    assert facts["NoNewPrivs"] == "1"
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            ["curl", "-sf", "--unix-socket", str(node.engine.socket), "http://engine/version"],
            user="nobody", check=True, capture_output=True,
        )  # fmt: skip


def test_the_audit_log_tells_who_and_what_kind_but_never_what_was_typed(node: Node, lease: Lease) -> None:
    node.ssh(lease.id, "echo hunter2-in-the-command", stdin=b"hunter2-on-the-input")
    wait_until(lambda: node.audit()[-1]["event"] == "logout", "the logout")

    events = node.audit()[-4:]
    assert [line["event"] for line in events] == ["login", "session", "session_end", "logout"]
    assert events[2]["exit_code"] == 0
    assert {line["fingerprint"] for line in events} == {events[0]["fingerprint"]}
    assert "hunter2" not in (node.state / "gateway/audit.log").read_text()


def test_a_connection_may_open_so_many_sessions_and_a_lease_so_many_connections(node: Node, lease: Lease) -> None:
    node.stop_gateway()
    node.start_gateway("--max-sessions", "2", "--max-connections", "1")
    control = str(node.directory / "limited")
    mux = ("-o", f"ControlPath={control}")
    try:
        with node.background(node.command(lease.id, "cat", options=("-o", "ControlMaster=yes", *mux))):
            wait_until(lambda: os.path.exists(control), "the shared connection")  # noqa: PTH110  a socket
            assert node.ssh(lease.id, "echo second", options=mux).stdout == b"second\n"
            with node.background(node.command(lease.id, "cat", options=mux)):
                wait_until(lambda: len(lease.processes("cat")) >= 2, "two sessions")
                third = node.ssh(lease.id, "echo third", options=mux)
            another = node.ssh(lease.id, "echo in")
    finally:
        node.stop_gateway()
        node.start_gateway()

    assert b"third" not in third.stdout
    assert b"in" not in another.stdout
    assert b"has 1 connections already, which is the limit" in another.stderr


def test_several_processes_share_one_port(node: Node, lease: Lease) -> None:
    node.stop_gateway()
    node.start_gateway("--processes", "2")
    try:
        shown = {node.ssh(lease.id, "echo in").stdout for _ in range(4)}
        assert node.ask_gateway(lease.id)["keys"]
    finally:
        node.stop_gateway()
        node.start_gateway()

    assert shown == {b"in\n"}

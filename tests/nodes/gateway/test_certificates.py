"""The portal's certificates at the gateway: the one kind that opens a lease, and all the others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.nodes.gateway.rig import Lease, Node, Terminal, wait_until

pytestmark = [pytest.mark.rig]

GOOD = ("-n", "ls-distro", "-V", "-30s:+30s")


@pytest.fixture(scope="module", autouse=True)
def authority(node: Node, lease: Lease) -> Iterator[None]:
    """A portal whose key the lease knows, another whose it does not, and a lease without any key of a renter's."""
    node.make_key("portal", "ed25519")
    node.make_key("other-portal", "ed25519")
    node.admit(lease.id, "ed25519", authority="portal")
    yield
    node.admit(lease.id, "ed25519")


def certify(node: Node, name: str, *options: str, by: str = "portal", kind: str = "ed25519") -> str:
    """A new key with a certificate beside it, which the client shows by itself; the key's name."""
    if not (node.keys / name).exists():
        node.make_key(name, kind)
    command = ["ssh-keygen", "-q", "-s", str(node.keys / by), "-I", "test", *options, str(node.keys / f"{name}.pub")]
    subprocess.run(command, check=True, capture_output=True)
    return name


def test_a_certificate_for_this_lease_opens_it_and_is_marked_in_the_audit(node: Node, lease: Lease) -> None:
    key = certify(node, "good", *GOOD)

    assert node.ssh(lease.id, "echo in", key=key).stdout == b"in\n"
    wait_until(lambda: node.audit()[-1]["event"] == "logout", "the logout")

    assert all(line["portal"] is True for line in node.audit()[-4:])
    node.ssh(lease.id, "true")
    assert "portal" not in node.audit("login")[-1]


def test_a_terminal_and_a_forward_may_be_opened_with_it(node: Node, lease: Lease) -> None:
    certify(node, "good", *GOOD)
    with Terminal(node, lease.id, "tty; exit 6", key="good") as terminal:
        assert terminal.client.wait(30) == 6
    assert b"nothing answers on port 9" in node.ssh(lease.id, key="good", options=("-W", "127.0.0.1:9")).stderr


REFUSED = {
    "another lease's": ("-n", "ls-empty", "-V", "-30s:+30s"),
    "one for two leases": ("-n", "ls-distro,ls-empty", "-V", "-30s:+30s"),
    "one for every lease": ("-V", "-30s:+30s"),
    "a longer one": ("-n", "ls-distro", "-V", "-30s:+31s"),
    "one without an end": ("-n", "ls-distro"),
    "an expired one": ("-n", "ls-distro", "-V", "-60s:-1s"),
    "one that is not valid yet": ("-n", "ls-distro", "-V", "+20s:+60s"),
    "one with a forced command": (*GOOD, "-O", "force-command=id"),
    "one with a source address": (*GOOD, "-O", "source-address=127.0.0.1/32"),
    "a host's": (*GOOD, "-h"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_a_certificate_that_is_not_for_exactly_this_is_refused(node: Node, lease: Lease, which: str) -> None:
    key = certify(node, "bad", *REFUSED[which])

    done = node.ssh(lease.id, "echo in", key=key)

    assert (done.returncode, done.stdout) == (255, b"")


def test_a_certificate_of_somebody_else_is_refused_and_written_down(node: Node, lease: Lease) -> None:
    key = certify(node, "foreign", *GOOD, by="other-portal")

    assert node.ssh(lease.id, "echo in", key=key).returncode == 255
    assert "certificate: not of this portal" in [line.get("why") for line in node.audit("auth_refused")[-2:]]


@pytest.mark.parametrize("kind", ["ecdsa", "rsa"])
def test_a_certificate_for_another_kind_of_key_is_refused(node: Node, lease: Lease, kind: str) -> None:
    key = certify(node, f"kind-{kind}", *GOOD, kind=kind)

    assert node.ssh(lease.id, "echo in", key=key).returncode == 255


def test_a_lease_that_knows_no_authority_takes_no_certificate(node: Node, empty_lease: Lease) -> None:
    key = certify(node, "empty", "-n", empty_lease.id, "-V", "-30s:+30s")

    assert node.ssh(empty_lease.id, "echo in", key=key).returncode == 255


def test_a_session_of_the_portal_ends_when_the_lease_no_longer_knows_its_key(node: Node, lease: Lease) -> None:
    certify(node, "good", *GOOD)
    with node.background(node.command(lease.id, "sleep 31313", key="good")) as client:
        wait_until(lambda: lease.processes("31313"), "the program")
        node.admit(lease.id, "ed25519", authority="other-portal")
        try:
            assert client.wait(10) == 255
        finally:
            node.admit(lease.id, "ed25519", authority="portal")

"""Who may come into a lease at this moment: what is taken away ends live sessions, and what happened is kept."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.guest import Guest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack
    from tests.rig.terminal import Terminal

pytestmark = pytest.mark.rig

AS_OPERATOR = """
from portal import deletion, members, suspension
from portal.actor import Actor
from portal.models import Membership, Tenant, User
from rental import notices, ssh_certificates
from rental.models import Lease
actor = Actor.system("rig")
lease = Lease.objects.select_related("tenant", "created_by").get(pk={lease!r})
visitor = User.objects.filter(email={visitor!r}).first()
{do}
"""
TELL = "members.tell_change(user=visitor, tenant_id=lease.tenant_id)"
JOIN = f"Membership.objects.create(tenant=lease.tenant, user=visitor, role='member')\n{TELL}"
LEAVE = f"Membership.objects.filter(tenant=lease.tenant, user=visitor).delete()\n{TELL}"
CLOSE = "deletion.deactivate(user=visitor, actor=actor)"
OPEN = "deletion.reactivate(user=visitor, actor=actor)"


class Operator:
    """Does in the portal's own code what an operator's or owner's page does."""

    def __init__(self, stack: Stack, lease: Guest, visitor: str) -> None:
        self._stack, self._lease, self._visitor = stack, lease, visitor

    def do(self, code: str) -> str:
        """Run it; the last line it printed."""
        script = AS_OPERATOR.format(lease=self._lease.id, visitor=self._visitor, do=code)
        return (self._stack.portal.manage("shell", "-c", script).strip().splitlines() or [""])[-1]


@pytest.fixture(scope="module")
def visitor(stack: Stack) -> Renter:
    """Somebody who comes and goes."""
    return stack.renter("vera")


@pytest.fixture(scope="module")
def address(stack: Stack, visitor: Renter) -> str:
    """The visitor's."""
    [(found,)] = stack.query("select email from portal_user where email like ?", "vera-%")
    return str(found)


@pytest.fixture(scope="module")
def guest(desk: Desk, renter: Renter) -> Iterator[Guest]:
    """One lease for the whole module."""
    guest = desk.rent(renter)
    yield guest
    desk.stop(renter, guest.id)


def begin(terminal: Terminal, word: str) -> None:
    """Type something, and see it answered."""
    terminal.type(f"echo {word[:2]}''{word[2:]}\n")
    terminal.read_until(word)


@pytest.mark.parametrize(
    ("end", "afterwards"), [(LEAVE, "pass"), (CLOSE, OPEN)], ids=["a removed member", "a disabled user"]
)
def test_who_may_come_in_no_longer_is_out_at_once_and_the_others_stay(
    stack: Stack, guest: Guest, visitor: Renter, address: str, end: str, afterwards: str
) -> None:  # case A11
    operator = Operator(stack, guest, address)
    theirs = Guest(visitor, guest.lease, visitor.home / "demo_ed25519")
    operator.do(JOIN)
    stack.wait("the visitor's first login", lambda: theirs.run("true").returncode == 0)
    with guest.terminal(rows=24, cols=80) as own, theirs.terminal(rows=24, cols=80) as other:
        begin(own, "own")
        begin(other, "other")
        operator.do(end)
        assert other.client.wait(60) == 255
        begin(own, "still")
    assert theirs.run("true").returncode == 255
    operator.do(f"{LEAVE}\n{afterwards}")


def test_a_suspended_tenant_s_sessions_end_with_its_lease(
    stack: Stack, desk: Desk, visitor: Renter, address: str
) -> None:
    guest = desk.rent(visitor)
    operator = Operator(stack, guest, address)
    with guest.terminal(rows=24, cols=80) as terminal:
        begin(terminal, "before")
        operator.do("suspension.suspend(tenant=lease.tenant, reason='abuse', actor=actor)")
        assert terminal.client.wait(60) != 0  # 255 by the key, or 137 by the container, whichever ends first
    assert guest.run("true").returncode == 255
    assert desk.ended(visitor, guest.id)["end_reason"] == "tenant_suspended"
    desk.assert_gone(guest.id)


def test_the_portal_enters_with_a_certificate_for_one_lease(
    stack: Stack, guest: Guest, rent: Rent, neighbour: Renter, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    public = (tmp_path / "key.pub").read_text().strip()
    operator = Operator(stack, guest, "")
    (tmp_path / "key-cert.pub").write_text(operator.do(f"print(ssh_certificates.for_lease(lease, {public!r}))"))

    portal = Guest(guest.renter, guest.lease, tmp_path / "key")
    assert portal.run("echo in").stdout == "in\n"
    assert portal.run("true", text="").returncode == 0
    elsewhere = Guest(neighbour, rent(neighbour).lease, tmp_path / "key")
    assert elsewhere.run("echo in").returncode == 255
    stack.wait("what the portal did", lambda: ("login", "portal") in seen(stack, guest))
    assert ("session_end", "portal command") in seen(stack, guest)


def seen(stack: Stack, guest: Guest) -> list[tuple[Any, ...]]:
    """Kind and detail of what the portal knows about SSH in a lease, in the order it happened."""
    return stack.query("select kind, detail from nodes_sshevent where lease_ref = ? order by at, id", guest.id)


def test_what_happened_comes_to_the_portal_once_also_over_a_restart_of_the_agent(stack: Stack, guest: Guest) -> None:
    def sessions() -> list[tuple[Any, ...]]:
        return stack.query(
            "select session, bytes_in, bytes_out from nodes_sshevent where lease_ref = ? and kind = 'session_end'"
            " and bytes_in = 12345",
            guest.id,
        )

    assert guest.run("/.lease/bin/busybox wc -c", text="x" * 12345).stdout == "12345\n"
    stack.wait("the session", sessions)
    stack.node.kill_agent()
    stack.node.start_agent()
    stack.wait("a login by the new agent", lambda: guest.run("true").returncode == 0)
    assert guest.run("/.lease/bin/busybox wc -c", text="x" * 12345).stdout == "12345\n"
    stack.wait("both sessions", lambda: len(sessions()) > 1)

    assert [(i, o) for _, i, o in sessions()] == [(12345, 6), (12345, 6)]
    key = subprocess.run(["ssh-keygen", "-lf", f"{guest.key}.pub"], capture_output=True, text=True, check=True).stdout
    [(used,)] = stack.query("select last_used_at from portal_sshkey where fingerprint = ?", key.split()[1])
    assert used is not None


def test_a_warning_comes_to_an_open_terminal_once_also_over_a_restart_of_the_agent(stack: Stack, guest: Guest) -> None:
    operator = Operator(stack, guest, "")
    tell = "notices.tell(lease=lease, kind={kind!r}, key={key!r}, actor=actor, data={data})"
    kind, data = (
        "idle_released",
        {"window_s": 900, "signals": [], "since": "ready", "idle_since": "2026-01-01T00:00:00Z"},
    )
    with guest.terminal(rows=24, cols=80) as terminal:
        begin(terminal, "before")
        operator.do(tell.format(kind=kind, key="rig:1", data=data))
        terminal.read_until("***\r\n")
        stack.node.kill_agent()
        stack.node.start_agent()
        operator.do(tell.format(kind=kind, key="rig:2", data=data))
        shown = terminal.read_until("***\r\n")
        assert shown.count("*** ") == 1

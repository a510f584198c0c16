"""Somebody deletes their account while things run: on the whole stack, with real SSH sessions (case A11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.demolib.processes import DemoError
from tests.e2e.guest import Guest
from tests.rig.stack import PASSWORD

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Desk, Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig

JOIN = """
from portal.models import Membership, User
owner, guest = (User.objects.get(pk=pk) for pk in {ids!r})
Membership.objects.create(tenant=owner.memberships.get(role="owner").tenant, user=guest, role="member")
"""
LIMIT_S = 60  # a hang is a fault; the seconds it takes on an idle machine (under one) are not judged here


def test_who_deletes_the_account_is_out_of_every_session_and_only_their_own_lease_ends(
    stack: Stack, desk: Desk, rent: Rent, renter: Renter
) -> None:  # case A11
    leaver = stack.renter("pat")
    [(address, leaver_id)] = stack.query("select email, id from portal_user where email like ?", "pat-%")
    [(owner_id,)] = stack.query("select id from portal_user where email like ?", "maya-%")
    stack.portal.manage("shell", "-c", JOIN.format(ids=(owner_id, leaver_id)))
    shared, own = rent(renter), desk.rent(leaver)
    inside = Guest(leaver, shared.lease, leaver.home / "demo_ed25519")

    with (
        shared.terminal(rows=24, cols=80) as stays,
        inside.terminal(rows=24, cols=80) as goes,
        own.terminal(rows=24, cols=80) as goes_too,
    ):
        for terminal in (stays, goes, goes_too):
            terminal.type("echo in''side\n")
            terminal.read_until("inside")
        leaver.form("/account/delete/", {"password": PASSWORD}, expect="/account/delete/")
        leaver.form("/account/delete/", {"email": address, "give_up": "on"}, expect="Your account is deleted")
        for terminal in (goes, goes_too):
            terminal.client.wait(LIMIT_S)
        stays.type("echo still''here\n")
        stays.read_until("stillhere")

    with pytest.raises(DemoError, match="401"):
        leaver.call("GET", "me")
    assert inside.run("true").returncode == 255
    assert renter.call("GET", f"leases/{shared.id}")["state"] == "running"
    over = "select 1 from rental_lease where id = ? and state = 'ended' and end_reason = 'released'"
    stack.wait("the end of the lease", lambda: stack.query(over, own.id))
    [(segment, ticks)] = stack.query("select id, ticks from rental_usagesegment where lease_id = ?", own.id)
    posted = stack.query("select -ticks from billing_ledgerentry where source = ?", f"segment:{segment}")
    assert posted == ([(ticks,)] if ticks else [])  # less than a second costs nothing, and is no line
    assert stack.query("select 1 from portal_user where email = ?", address) == []
    desk.assert_gone(own.id)

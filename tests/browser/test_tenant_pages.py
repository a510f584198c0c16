"""Pages of tenants, invitations, keys and tokens in a browser: accessible, and no wider than the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import make
from tests.browser.test_main_job import AXE, EMAIL, look_at, sign_in
from tests.browser.test_passkeys import confirm_with_password
from tests.matrix_tenants import make_invitation

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.redis]

LONG_NAME = "Northwind Research Laboratories for Computational Neuroscience"
LONG_ADDRESS = "bartholomew.fitzgerald-okonkwo-lindqvist@research-computing.university.example"


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
@pytest.mark.usefixtures("portal")
def test_every_page_of_tenants_and_access_is_accessible_and_fits(tab: Page) -> None:
    user, other = make.make_user(EMAIL), make.make_user(LONG_ADDRESS)
    org = make.make_tenant(LONG_NAME, members={user: "owner", other: "member"})
    invited = make_invitation(org, f"guest.{LONG_ADDRESS}", invited_by=other)
    make_invitation(make.make_tenant("Inviting", members={other: "owner"}), EMAIL, invited_by=other)
    make.make_balance(org)
    make.make_key(user)
    make.make_token(user, tenant=org)
    look_at(tab, "/tenants/roles/")
    tab.goto("/tenants/")
    sign_in(tab, "/tenants/")
    here = f"/tenants/{org.pk}/"
    tab.goto(f"{here}delete/")
    confirm_with_password(tab)
    tab.set_viewport_size({"width": 390, "height": 2400})  # nothing lies under the bar at the bottom
    places = ["", "delete/", "hand-over/", "leave/", f"members/{other.pk}/remove/"]
    for path in ("/tenants/", "/tenants/roles/", "/access/tokens/", "/access/keys/", "/invitations/open/"):
        look_at(tab, path)
    for place in places:
        look_at(tab, here + place)
    tab.set_viewport_size({"width": 1280, "height": 2400})
    for path in ("/access/tokens/", here):
        look_at(tab, path)
    assert invited.email in tab.content()

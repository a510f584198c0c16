"""Names that people and machines give, as long as they may be and without a blank, on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.utils import timezone

from nodes import ssh_events
from portal import invitation_links
from tests import make
from tests.browser.test_main_job import AXE, EMAIL, look_at, sign_in
from tests.matrix_tenants import make_invitation

if TYPE_CHECKING:
    from playwright.sync_api import Page, ViewportSize

pytestmark = [pytest.mark.browser, pytest.mark.redis]

ENDLESS = "averylongnamewithoutanyblank" * 3
PHONE: ViewportSize = {"width": 390, "height": 2400}  # nothing lies under the bar at the bottom


@pytest.mark.long
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
@pytest.mark.usefixtures("portal")
def test_no_name_makes_a_page_wider_than_a_phone(tab: Page) -> None:
    user, other = make.make_user(EMAIL), make.make_user()
    org = make.make_tenant(ENDLESS[:80], members={user: "owner", other: "member"})
    lease = make.make_lease(org, name=ENDLESS[:80])
    make.make_balance(org, 1_234_567_890_000)
    refused = {"kind": "forward", "detail": f"{ENDLESS}.example:8888 refused", "peer": "2001:db8:85a3::8a2e:370:7334"}
    event = {"id": str(uuid4()), "age_s": 0, "lease": lease.pk, "key": f"SHA256:{'k' * 43}", **refused}
    assert lease.node is not None
    ssh_events.record(node=lease.node, payload={"events": [event]}, now=timezone.now())
    asked = make_invitation(make.make_tenant(ENDLESS[40:], members={other: "owner"}), EMAIL, invited_by=other)
    tab.set_viewport_size(PHONE)
    tab.goto("/leases/")
    sign_in(tab)
    tab.locator(".tenant-menu summary").click()
    tab.get_by_role("button", name=ENDLESS[:80]).click()
    tab.wait_for_load_state()
    link = f"/invitations/link/{invitation_links.token_of(asked)}/"
    for path in ("/leases/", f"/leases/{lease.pk}/", f"/leases/{lease.pk}/receipt", link):
        look_at(tab, path)
    bar = tab.locator(".topbar .wrap")
    assert bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth"), "the bar at the top holds more than fits"

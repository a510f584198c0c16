"""Passkeys in a real browser, with Chromium's virtual authenticator: made, used alone, used after the password."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from allauth.mfa.models import Authenticator
from playwright.sync_api import expect

from tests import make
from tests.browser.test_main_job import AXE, EMAIL, arrive, look_at, sign_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import CDPSession, Page

pytestmark = [pytest.mark.browser, pytest.mark.redis]


@pytest.fixture
def key(tab: Page) -> Iterator[CDPSession]:
    """The browser has a fingerprint reader that always agrees."""
    session = tab.context.new_cdp_session(tab)
    session.send("WebAuthn.enable")
    options: dict[str, Any] = {
        "protocol": "ctap2",
        "transport": "internal",
        "hasResidentKey": True,
        "hasUserVerification": True,
        "isUserVerified": True,
        "automaticPresenceSimulation": True,
    }
    session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
    yield session
    session.detach()


def confirm_with_password(tab: Page) -> None:
    """Prove once more who it is."""
    tab.get_by_label("Password").fill(make.PASSWORD)
    tab.get_by_role("button", name="Confirm").click()


def sign_out(tab: Page) -> None:
    """By the account menu."""
    tab.locator("details.menu > summary").click()
    tab.get_by_role("button", name="Sign out").click()
    arrive(tab, "/")


@pytest.mark.usefixtures("key")
def test_a_passkey_is_made_and_signs_in_alone_and_after_the_password(tab: Page) -> None:
    user = make.make_user(EMAIL)
    tab.goto("/account/login/")
    sign_in(tab)
    cookies = {cookie["name"]: cookie for cookie in tab.context.cookies()}
    assert (cookies["sessionid"]["httpOnly"], cookies["sessionid"]["sameSite"]) == (True, "Lax")  # case H04
    assert cookies["csrftoken"]["sameSite"] == "Lax"

    tab.goto("/account/security/")
    expect(tab.get_by_text("Your password alone protects this account.")).to_be_visible()
    tab.get_by_role("link", name="Add a passkey").click()
    confirm_with_password(tab)
    tab.get_by_label("Name").fill("laptop")
    tab.get_by_role("button", name="Add passkey").click()
    expect(tab.get_by_text("You will not see these again.")).to_be_visible()
    with tab.expect_download() as saved:
        tab.get_by_role("link", name="Download codes").click()
    assert len(saved.value.path().read_text().split()) == 10
    tab.get_by_role("link", name="I have kept them").click()
    expect(tab.get_by_role("row", name="laptop signing in alone")).to_be_visible()
    assert Authenticator.objects.filter(user=user, type="webauthn").count() == 1

    sign_out(tab)
    tab.goto("/account/login/?next=/access/keys/")
    tab.get_by_role("button", name="Use a passkey").click()
    arrive(tab, "/access/keys/")

    sign_out(tab)
    tab.goto("/account/login/")
    sign_in(tab, "/account/security/authenticate/")
    tab.get_by_role("button", name="Use a passkey").click()
    arrive(tab, "/leases/")


def test_a_browser_without_the_passkey_says_so_and_stays(tab: Page, key: CDPSession) -> None:
    make.make_user(EMAIL)
    tab.goto("/account/login/")
    tab.get_by_role("button", name="Use a passkey").click()
    expect(tab.get_by_text("No passkey was used. Try again, or use another way.")).to_be_visible()
    sign_in(tab)


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
@pytest.mark.usefixtures("key")
def test_every_account_page_is_accessible_and_fits(tab: Page, portal: str) -> None:
    make.make_balance(make.tenant_of(make.make_user(EMAIL)))
    tab.goto("/account/login/")
    look_at(tab, "/account/login/")
    sign_in(tab)
    tab.goto("/account/delete/")
    confirm_with_password(tab)
    pages = ["security/", "security/totp/activate/", "security/webauthn/add/", "sessions/", "email/", "delete/"]
    tab.context.add_cookies([{"name": "theme", "value": "dark", "url": portal}])
    tab.set_viewport_size({"width": 390, "height": 1800})  # nothing lies under the bar at the bottom
    for page in pages:
        look_at(tab, f"/account/{page}")

"""The main job in a browser: sign up, add a key, rent, watch it become ready, stop, read the receipt."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from playwright.sync_api import expect

from portal.models import User
from rental.models import Lease
from rental.states import State
from tests import make
from tests.rental.factories import order, report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.redis]

EMAIL = "maya@example.test"


@pytest.fixture
def _fleet(portal: str) -> None:
    """Eight GPUs with a price."""
    make.make_price()
    make.make_node("ams-02", gpus=8)


def sign_up(tab: Page, mails: Path) -> User:
    """An account with a verified address, signed in."""
    tab.goto("/account/signup/")
    tab.get_by_label("E-mail address").fill(EMAIL)
    tab.get_by_label("Password", exact=True).fill(make.PASSWORD)
    tab.get_by_label("Password (again)").fill(make.PASSWORD)
    tab.locator("main").get_by_role("button").first.click()
    tab.wait_for_url("**/confirm-email/")
    written = "".join(path.read_text() for path in (mails / "mail").iterdir())
    link = re.search(r"http://localhost:\d+(/account/confirm-email/[^\s\"<]+)", written)
    assert link
    tab.goto(link[1])
    tab.locator("main").get_by_role("button").first.click()
    tab.goto("/account/login/")
    sign_in(tab)
    return User.objects.get(email=EMAIL)


def sign_in(tab: Page, target: str = "/leases/") -> None:
    """Fill in the form of the login page and get to where one wanted to go."""
    tab.get_by_label("E-mail address").fill(EMAIL)
    tab.get_by_label("Password").fill(make.PASSWORD)
    tab.locator("main").get_by_role("button", name="Sign in").click()
    arrive(tab, target)


def arrive(tab: Page, path: str) -> None:
    """Wait for a page; the login page has the path in its query."""
    tab.wait_for_url(lambda url: urlsplit(url).path == path)


def a_renter() -> User:
    """Somebody with a key and money."""
    user = make.make_user(EMAIL)
    make.make_key(user)
    make.make_balance(make.tenant_of(user))
    return user


@pytest.mark.usefixtures("_fleet")
def test_a_new_renter_gets_from_sign_up_to_a_receipt(tab: Page, tmp_path: Path) -> None:
    user = sign_up(tab, tmp_path)
    expect(tab.get_by_text("No leases yet")).to_be_visible()

    tab.get_by_role("link", name="Add an SSH key").click()
    tab.get_by_label("Public key").fill(make.ed25519_line("maya@laptop"))
    tab.get_by_role("button", name="Add key").click()
    expect(tab.get_by_text("maya@laptop").first).to_be_visible()

    tab.goto("/rent")
    expect(tab.get_by_text("Top up first.")).to_be_visible()
    make.make_balance(make.tenant_of(user))
    tab.locator("label", has_text=re.compile(r"^2$")).click()
    start = tab.get_by_role("button", name="Start for $4.98 / h")
    expect(start).to_be_visible()
    tab.locator("label.choice", has_text="Spot").click()
    expect(tab.get_by_role("button", name="Start for $0.996 / h")).to_be_visible()
    tab.locator("label.choice", has_text="On demand").click()
    tab.get_by_label("Name").fill("llama-finetune")
    expect(start).to_be_visible()
    start.click()
    tab.wait_for_url("**/leases/ls-*/")

    lease = Lease.objects.get()
    assert (lease.gpu_count, lease.name, lease.state) == (2, "llama-finetune", State.ASSIGNED)
    expect(tab.get_by_text("Not charged until it is ready")).to_be_visible()
    report(lease, "starting")
    report(lease, "pulling", detail="12 of 29 layers")
    expect(tab.get_by_text("12 of 29 layers").first).to_be_visible()
    report(lease, "started")
    report(lease, "ready")
    expect(tab.get_by_text(f"ssh -p 2222 {lease.pk}@127.0.0.1")).to_be_visible()
    expect(tab.locator("#state")).to_have_text("Running")
    before = tab.locator("aside .ticker").inner_text()
    expect(tab.locator("aside .ticker")).not_to_have_text(before)

    tab.get_by_role("link", name="Stop").click()
    expect(tab.get_by_role("button", name="Keep it running")).to_be_focused()
    tab.get_by_role("button", name="Stop and release").click()
    expect(tab.locator("#state")).to_have_text("Stopping")
    report(lease, "stopped")
    report(lease, "cleaned")
    expect(tab.locator("#state")).to_have_text("Ended")
    expect(tab.get_by_text("Released by the renter").first).to_be_visible()

    tab.get_by_role("link", name="Receipt", exact=True).click()
    expect(tab.get_by_role("heading", name="Receipt: llama-finetune")).to_be_visible()
    expect(tab.get_by_text("Charged: 2 × $2.49 / h")).to_be_visible()
    tab.get_by_role("link", name="Leases").first.click()
    expect(tab.get_by_role("row", name=re.compile("llama-finetune.*released by the renter"))).to_be_visible()


@pytest.mark.usefixtures("_fleet")
def test_a_lease_can_be_rented_and_stopped_with_the_keyboard_alone(tab: Page) -> None:
    a_renter()
    tab.goto("/rent")
    for name, text in (("login", EMAIL), ("password", make.PASSWORD)):
        press_until(tab, partial(has_focus, tab, name))
        tab.keyboard.type(text)
    press_until(tab, lambda: tab.evaluate("document.activeElement.type === 'submit'"))
    tab.keyboard.press("Enter")
    arrive(tab, "/rent")
    press_until(tab, lambda: focused_text(tab).startswith("Start for"))
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/leases/ls-*/")
    press_until(tab, lambda: "Cancel, free of charge" in focused_text(tab))
    tab.keyboard.press("Enter")
    press_until(tab, lambda: "Cancel the lease" in focused_text(tab))
    tab.keyboard.press("Enter")
    expect(tab.locator("#state")).to_have_text("Stopping")
    assert Lease.objects.get().end_reason == "cancelled"


def has_focus(tab: Page, name: str) -> bool:
    """Is this field where typing goes?"""
    return bool(tab.evaluate("document.activeElement.name") == name)


def focused_text(tab: Page) -> str:
    """The words on the link or button that has the focus."""
    return str(tab.evaluate("document.activeElement.matches('a, button') ? document.activeElement.innerText : ''"))


def press_until(tab: Page, reached: Callable[[], bool]) -> None:
    """Tab forward until the focus is where it should be."""
    for _step in range(60):
        if reached():
            return
        tab.keyboard.press("Tab")
    raise AssertionError("the keyboard does not get there")


@pytest.mark.usefixtures("_fleet")
def test_what_the_reader_opened_stays_open_while_the_page_is_updated(tab: Page) -> None:
    user = a_renter()
    lease = order(user, make.tenant_of(user))
    tab.goto(f"/leases/{lease.pk}/")
    sign_in(tab, f"/leases/{lease.pk}/")
    tab.get_by_role("link", name="Cancel, free of charge").click()
    report(lease, "starting")
    expect(tab.locator("#state")).to_have_text("Starting")
    expect(tab.get_by_role("dialog")).to_be_visible()
    tab.keyboard.press("Escape")
    report(lease, "started")
    report(lease, "ready")
    tab.get_by_text("SSH config and host key").click()
    report(lease, "exited", evidence={"exit_code": 3})
    expect(tab.locator("#state")).to_have_text("Stopping")
    expect(tab.get_by_text("The main process ended with exit code 3.").first).to_be_visible()


AXE = settings.NODE_MODULES / "axe-core" / "axe.min.js"


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
@pytest.mark.usefixtures("_fleet")
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_of_the_path_is_accessible_and_fits(tab: Page, portal: str, width: int, theme: str) -> None:
    user = a_renter()
    tenant = make.tenant_of(user)
    lease = order(user, tenant)
    over = make.make_lease(tenant, state=State.ENDED)
    tab.context.add_cookies([{"name": "theme", "value": theme, "url": portal}])
    tab.set_viewport_size({"width": width, "height": 900})
    look_at(tab, "/")
    tab.goto("/leases/")
    sign_in(tab)
    for path in ("/", "/rent", "/leases/", f"/leases/{lease.pk}/", f"/leases/{over.pk}/", f"/leases/{over.pk}/receipt"):
        look_at(tab, path)
    for event in ("starting", "ready"):
        report(lease, event)
    look_at(tab, f"/leases/{lease.pk}/")


def look_at(tab: Page, path: str) -> None:
    """No violation of WCAG 2.2 AA that axe can see, and nothing wider than the screen."""
    tab.goto(path)
    assert not axe(tab), path
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} is too wide"


def axe(tab: Page, *, preload: bool = True) -> list[tuple[str, list[str]]]:
    """``[(rule, [beginning of each element])]``: what of WCAG 2.2 AA the page violates, as far as axe can see."""
    tab.evaluate(AXE.read_text())
    options = {
        "preload": preload,
        "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
        # Experimental, and the initials of the avatar are a picture, not a label.
        "rules": {"label-content-name-mismatch": {"enabled": False}},
    }
    found = tab.evaluate("options => axe.run(document, options).then(said => said.violations)", options)
    return [(rule["id"], [node["html"][:200] for node in rule["nodes"]]) for rule in found]

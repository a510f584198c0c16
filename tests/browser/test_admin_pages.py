"""The operators' pages in a browser: accessible and no wider than the screen, also where Django's templates are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from portal.models import SshKey, Tenant
from tests import make
from tests.browser.test_main_job import AXE, axe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.redis]

WITH_ADD = {"nodes.node"}  # the others are made elsewhere


def pages() -> Iterator[str]:
    """Each model's list and the page of its first row."""
    yield reverse("admin:index")
    for model in admin.site._registry:
        name = model._meta.label_lower.replace(".", "_")
        yield reverse(f"admin:{name}_changelist")
        row = model._default_manager.first()
        if row is not None:
            yield reverse(f"admin:{name}_change", args=[row.pk])
        if model._meta.label_lower in WITH_ADD:
            yield reverse(f"admin:{name}_add")


@pytest.fixture
def desk(tab: Page, portal: str) -> Page:
    """The operator's browser; there is one of everything to look at."""
    user = make.make_user()
    org = make.make_tenant(members={user: "owner", make.make_user(): "member"})
    make.make_price()
    make.make_key(user)
    make.make_token(user, tenant=org)
    make.make_top_up(org)
    make.make_lease(org, state="running")
    operator = Client()
    operator.force_login(make.make_user(operator=True))
    tab.context.add_cookies([{"name": "sessionid", "value": operator.cookies["sessionid"].value, "url": portal}])
    return tab


def look_at_both(desk: Page, path: str) -> None:
    """Wide and light, narrow and dark."""
    for width in (1440, 390):
        desk.set_viewport_size({"width": width, "height": 900})
        desk.emulate_media(color_scheme="light" if width == 1440 else "dark")
        desk.goto(path)
        # Axe would load the style sheets once more, into a style element that our policy forbids.
        assert not axe(desk, preload=False), f"{path} at {width}"
        assert desk.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} at {width}"


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
def test_pages_with_rows_filters_and_long_words_are_accessible_and_fit(desk: Page) -> None:
    org = Tenant.objects.get(kind=Tenant.Kind.ORGANISATION)
    look_at_both(desk, reverse("admin:portal_tenant_change", args=[org.pk]))
    look_at_both(desk, reverse("admin:portal_sshkey_change", args=[SshKey.objects.get().pk]))
    look_at_both(desk, reverse("admin:nodes_node_changelist"))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is a development dependency: npm ci")
def test_every_page_of_the_admin_is_accessible_and_fits(desk: Page) -> None:
    for path in pages():
        look_at_both(desk, path)

"""The idle limit of a lease: what may be asked for, what the portal allows, what the quote says."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse

from portal.actor import Actor
from rental import services
from rental.models import Lease
from rental.states import State
from tests import make
from tests.rental.factories import a_quote, running
from tests.rental.idle.world import World, codes, state

if TYPE_CHECKING:
    from nodes.models import Node
    from portal.models import Tenant, User
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db


def quote(api: ApiClient, **values: Any) -> Any:
    return api.post("quotes", {"gpu_model": make.H100, **values}).json()


def test_off_nothing_and_zero_are_three_things_in_quote_and_lease(  # case D06
    api: ApiClient, renter: User, tenant: Tenant, node: Node, settings: Any
) -> None:
    assert quote(api)["inactive_timeout_s"] == quote(api, inactive_timeout_s=None)["inactive_timeout_s"] == 1800
    assert quote(api, inactive_timeout_s=0)["errors"]["inactive_timeout_s"]
    assert quote(api, inactive_timeout_s="off")["errors"]["inactive_timeout_s"]
    settings.IDLE_OFF_ALLOWED = True
    said = quote(api, inactive_timeout_s="off")
    assert said["inactive_timeout_s"] == "off"
    made = api.post("leases", {"quote": said["quote"]}).json()
    assert made["inactive_timeout_s"] == "off"  # as it is asked for: null would be the default
    assert Lease.objects.get(pk=made["id"]).inactive_timeout_s is None


def test_the_stricter_of_wish_and_portal_wins_and_is_in_the_quote(  # case D06
    api: ApiClient, renter: User, node: Node, settings: Any
) -> None:
    settings.IDLE_TIMEOUT_MAX_S = 7200
    said = quote(api, inactive_timeout_s=18_000)
    assert (said["inactive_timeout_s"], said["inactive_timeout_most_s"]) == (7200, 7200)
    assert quote(api, inactive_timeout_s=3600)["inactive_timeout_s"] == 3600
    settings.IDLE_TIMEOUT_MAX_S = 900
    assert quote(api)["inactive_timeout_s"] == 900
    made = api.post("leases", {"quote": quote(api)["quote"]}).json()
    assert made["inactive_timeout_s"] == 900


def test_the_rent_page_offers_what_the_portal_allows_and_shows_it_before_ordering(  # case D06
    page: Client, renter: User, tenant: Tenant, node: Node, settings: Any
) -> None:
    def options() -> list[str]:
        shown = page.get(reverse("rent")).content.decode()
        select = re.search(r'<select name="idle_timeout".*?</select>', shown, re.S)
        assert select
        return re.findall(r'value="(\w+)"', select[0])

    assert options() == ["900", "1800", "3600", "14400"]
    settings.IDLE_TIMEOUT_MAX_S = 7200
    settings.IDLE_OFF_ALLOWED = True
    assert options() == ["900", "1800", "3600", "7200", "off"]
    keys = list(renter.ssh_keys.values_list("pk", flat=True))
    form = {"gpu_model": make.H100, "gpu_count": 1, "plan": "on_demand", "ssh_keys": keys, "max_hours": "1"}
    panel = unescape(page.post(reverse("quote-panel"), {**form, "idle_timeout": "3600"}).content.decode())
    assert re.search(r"Released when idle for</dt><dd class=\"num\">1.h<", panel)
    assert "never" in page.post(reverse("quote-panel"), {**form, "idle_timeout": "off"}).content.decode()


def test_a_lease_without_a_limit_is_never_released_for_being_idle(
    world: World, renter: User, tenant: Tenant, settings: Any
) -> None:
    settings.IDLE_OFF_ALLOWED = True
    lease = running(renter, tenant, inactive_timeout_s="off")
    world.quiet(lease, 25)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), [])


def test_a_quote_from_before_keeps_its_idle_limit(world: World, renter: User, tenant: Tenant, settings: Any) -> None:
    token = a_quote(renter, tenant, inactive_timeout_s=7200)
    settings.IDLE_TIMEOUT_MAX_S = 900
    made, _ = services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert made.inactive_timeout_s == 7200

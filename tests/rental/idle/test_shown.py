"""What API, page and receipt tell of idleness."""

from __future__ import annotations

from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse

from rental.models import Lease
from tests.rental.idle.world import World

if TYPE_CHECKING:
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db


def test_the_api_tells_each_signal_and_when_it_would_be_released(world: World, lease: Lease, api: ApiClient) -> None:
    assert api.get(f"leases/{lease.pk}").json()["activity"] is None
    world.quiet(lease, 11, ssh_input=True)
    told = api.get(f"leases/{lease.pk}").json()["activity"]
    assert (told["state"], told["idle_since"], told["release_at"]) == ("active", None, None)
    world.quiet(lease, 6)
    told = api.get(f"leases/{lease.pk}").json()["activity"]
    assert told == {
        "state": "idle", "idle_since": "2026-03-01T12:11:00Z", "release_at": "2026-03-01T12:21:00Z",
        "last": "use", "last_at": "2026-03-01T12:11:00Z", "signal": "ssh_input", "known": True,
        "sampled_at": "2026-03-01T12:17:00Z",
        "signals": [
            {"name": "ssh_input", "value": False, "limit": None, "state": "idle",
             "last_active_at": "2026-03-01T12:11:00Z"},
            {"name": "gpu", "value": 0.0, "limit": 5.0, "state": "idle", "last_active_at": None},
            {"name": "cpu", "value": 0.4, "limit": 5.0, "state": "idle", "last_active_at": None},
            {"name": "network", "value": 120, "limit": 50000.0, "state": "idle", "last_active_at": None},
        ],
    }  # fmt: skip


def test_the_page_says_what_counted_last_and_has_the_button(world: World, lease: Lease, page: Client) -> None:
    address = reverse("lease", args=[lease.pk])
    assert "has not told yet what this lease does" in page.get(address).content.decode()
    world.quiet(lease, 11, gpu_percent=88.5)
    shown = unescape(page.get(address).content.decode())
    assert "GPU load" in shown
    assert "88.5 %" in shown
    assert reverse("lease-keep", args=[lease.pk]) not in shown
    world.quiet(lease, 6)
    shown = unescape(page.get(address).content.decode())
    assert "Released, with everything in it, unless it is used:" in shown
    assert shown.count(reverse("lease-keep", args=[lease.pk])) == 2


def test_the_receipt_of_an_idle_lease_says_why(world: World, lease: Lease, page: Client) -> None:
    world.quiet(lease, 20)
    shown = unescape(page.get(reverse("lease-receipt", args=[lease.pk])).content.decode())
    assert "Idle for 10 min." in shown
    assert "from 5 %" in shown


def test_what_idle_means_is_public_and_has_this_portals_numbers(db: None, settings: Any) -> None:
    settings.IDLE_NETWORK_BYTES_PER_S = 80_000
    shown = unescape(Client().get(reverse("idle-rules")).content.decode())
    assert "from 80 kB/s" in shown
    assert "The first 15 min after ready do not count" in shown

"""A warned lease is kept by a person: with the button, and with the link in the mail."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from portal.models import Membership
from rental import notices
from rental.models import Lease, LeaseNotice
from rental.states import EndReason, State
from tests import make
from tests.rental.idle.world import World, codes, state

if TYPE_CHECKING:
    from portal.models import User

pytestmark = pytest.mark.django_db


def test_keeping_takes_the_warning_back_and_a_later_stretch_is_warned_of_again(
    world: World, lease: Lease, page: Client
) -> None:
    world.quiet(lease, 17)
    answer = page.post(reverse("lease-keep", args=[lease.pk]))
    assert answer["Location"] == reverse("lease", args=[lease.pk])
    assert notices.standing([lease]) == {}
    world.quiet(lease, 9.75)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), ["idle_warning", "kept", "idle_warning"])
    world.quiet(lease, 0.25)
    assert state(lease) == (State.STOPPING, EndReason.IDLE)


def link_in(mail: Any) -> str:
    found = re.search(r"http://localhost:8000(/keep/\S+)", mail.body)
    assert found
    return found[1]


@pytest.fixture
def link(world: World, lease: Lease, mailoutbox: list[Any]) -> str:
    """The path behind the button of the warning's mail."""
    world.quiet(lease, 15)
    notices.mail(notice_id=str(LeaseNotice.objects.get(kind="idle_warning").pk))
    return link_in(mailoutbox[0])


def test_the_mails_link_keeps_the_lease_by_a_button_once_and_without_signing_in(lease: Lease, link: str) -> None:
    nobody = Client(enforce_csrf_checks=True)
    shown = nobody.get(link)
    lease.refresh_from_db()
    assert (shown.status_code, lease.kept_at) == (200, None)  # opening it changes nothing
    assert (shown["Cache-Control"], shown["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert nobody.post(link).status_code == 403  # not from another site
    token = nobody.cookies["csrftoken"].value
    assert nobody.post(link, {"csrfmiddlewaretoken": token}).status_code == 200
    lease.refresh_from_db()
    assert lease.kept_at == timezone.now()
    assert lease.events.get(code="kept").actor_label == "link in a mail"
    assert nobody.get(link).status_code == 410
    assert nobody.post(link, {"csrfmiddlewaretoken": token}).status_code == 410
    assert codes(lease).count("kept") == 1


def test_a_member_who_presses_the_mails_button_signs_for_it(lease: Lease, link: str, page: Client, user: User) -> None:
    assert page.post(link).status_code == 200
    assert lease.events.get(code="kept").actor_label == user.email


def test_the_link_is_worth_nothing_for_another_lease_or_after_the_release(
    world: World, lease: Lease, link: str
) -> None:
    assert Client().get(link[:-1] + ("A" if link[-1] != "A" else "B")).status_code == 404
    world.quiet(lease, 5)
    assert state(lease) == (State.STOPPING, EndReason.IDLE)
    assert Client().get(link).status_code == 410
    assert Client().post(link).status_code == 410


def test_the_link_ends_when_the_lease_is_used_again(world: World, lease: Lease, link: str) -> None:
    world.quiet(lease, 0.25, ssh_input=True)
    assert Client().get(link).status_code == 410


def test_who_may_only_look_may_not_keep(world: World, lease: Lease) -> None:
    viewer = make.make_user("viewer@example.test")
    Membership.objects.create(tenant=lease.tenant, user=viewer, role=Membership.Role.VIEWER)
    client = Client()
    client.force_login(viewer)
    client.post(reverse("lease-keep", args=[lease.pk]))
    lease.refresh_from_db()
    assert lease.kept_at is None

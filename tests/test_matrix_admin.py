"""Every route of the admin against every kind of caller (cases H03, H04): operators only, each within its rights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from django.apps import apps
from django.utils import timezone

from nodes.models import SshEvent
from portal.actor import Actor
from portal.services import audit
from tests import make
from tests.matrix_calls import ADMIN, address, browser, call, label, snapshot

if TYPE_CHECKING:
    from portal.models import User
    from portal.routes import Route

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

# Staff without rights: the frame of the admin itself is theirs, no object is.
FRAME = {
    "index",
    "login",
    "logout",
    "password_change",
    "password_change_done",
    "jsi18n",
    "app_list",
    "view_on_site",
    "",
}


@pytest.mark.parametrize("route", ADMIN, ids=label)
def test_the_admin_is_closed_to_nobody_and_to_renters(route: Route, user: User) -> None:
    arguments = admin_object(route, user)
    before = snapshot()
    for client in (browser(None), browser(user)):
        for method in ("GET", "POST"):
            answer = call(client, method, address(route, arguments), {}, json=False)
            # A renter who is signed in is refused or sent to the login; nobody is sent there.
            assert answer.status_code in {302, 403, 404}, method
            if answer.status_code == 302:
                assert "login" in answer["Location"] or route.name in {"logout", "login"}, answer["Location"]
    assert before == snapshot()


@pytest.mark.parametrize("route", [route for route in ADMIN if route.name not in FRAME], ids=label)
def test_staff_without_the_right_are_refused(route: Route, user: User) -> None:  # case H03
    staff = make.make_user("staff@example.test", is_staff=True)
    arguments = admin_object(route, user)
    before = snapshot()
    for method in ("GET", "POST"):
        answer = call(browser(staff), method, address(route, arguments), {}, json=False)
        assert answer.status_code in {403, 405}, method
    assert snapshot() == before


@pytest.mark.parametrize("route", ADMIN, ids=label)
def test_a_write_in_the_admin_needs_the_csrf_token(route: Route, user: User, operator: User) -> None:
    arguments = admin_object(route, user)
    before = snapshot()
    answer = call(browser(operator, csrf=True), "POST", address(route, arguments), {}, json=False)
    assert answer.status_code in {403, 405} or route.name in FRAME
    assert snapshot() == before


def admin_object(route: Route, user: User) -> dict[str, str]:
    """URL arguments that lead to an existing object, whatever the route calls them."""
    lease = make.make_lease(make.tenant_of(user), node=make.make_node(gpus=1))
    assert lease.node is not None
    make.make_key(user)
    make.make_token(user)
    make.make_top_up(lease.tenant)
    SshEvent.objects.create(
        event_id=uuid4(), node=lease.node, lease_ref=lease.pk, kind=SshEvent.Kind.LOGIN, at=timezone.now()
    )
    audit(actor=Actor.system("tests"), action="tested", obj=lease)
    model = re.match(r"admin/(portal|nodes|billing|rental|account)/(\w+)/", route.path)
    row = apps.get_model(model[1], model[2])._base_manager.first() if model else None
    found = str(row.pk) if row else "1"
    known = {
        "tenant_id": lease.tenant_id,
        "node_id": lease.node.pk,
        "gpu_id": str(lease.node.gpus.get().pk),
        "lease_id": lease.pk,
        "app_label": "portal",
    }
    return {name: known.get(name, found) for name in re.findall(r"<(?:\w+:)?(\w+)>", route.path)}

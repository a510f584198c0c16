"""The node API against every kind of caller (case H03): only nodes are known there, and each only with its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from tests import make
from tests.clients import ApiClient
from tests.matrix import NODE, Entry
from tests.matrix_calls import address, browser, call, cases, methods_of, program, snapshot

if TYPE_CHECKING:
    from portal.models import User
    from portal.routes import Route

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]


@cases(NODE)
def test_the_node_api_knows_nodes_only(route: Route, entry: Entry, user: User, operator: User) -> None:
    revoked = make.make_node_secret(make.make_node(revoked_at="2026-01-01T00:00:00Z"))
    bearer = Client(headers={"Authorization": f"Bearer {revoked}"})
    clients = [browser(None), browser(operator), program(user), bearer]
    before = snapshot()
    for client in clients:
        for method in methods_of(route, entry):
            answer = call(client, method, address(route), {"enrolment_token": "lne_x"}, json=True)
            assert answer.status_code in ({400, 401} if route.name == "node-enrol" else {401}), method
            assert answer["Content-Type"] == "application/problem+json"
    assert snapshot() == before


@cases(NODE)
def test_a_node_touches_only_its_own_leases(route: Route, entry: Entry, tenant: Any) -> None:  # case H03
    if "lease_id" not in route.path:
        return
    lease = make.make_lease(tenant)
    other = make.make_node_secret(make.make_node())
    client = Client(headers={"Authorization": f"Bearer {other}"})
    before = snapshot()
    for method in methods_of(route, entry):
        body = {"generation": 1, "event": "exited", "detail": "", "container_id": None, "failure": "", "evidence": {}}
        assert call(client, method, address(route, {"lease_id": lease.pk}), body, json=True).status_code == 404
    assert snapshot() == before


def test_a_node_token_opens_nothing_of_the_renters(user: User) -> None:
    secret = make.make_node_secret(make.make_node())
    assert ApiClient(secret).get("leases").status_code == 401

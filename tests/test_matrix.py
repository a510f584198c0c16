"""Every route of the URL conf against every kind of caller (cases H03, H04, H06); they join by tests/matrix.py.

Here are the routes of people and their programs; the nodes' are in test_matrix_nodes.py, the admin in
test_matrix_admin.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.test import AsyncClient
from django.urls import reverse

from portal import tokens
from portal.models import AuditEvent, User
from portal.permissions import ANYONE
from tests import make, matrix
from tests.matrix import ACCOUNT, OWNED, PERSON, PUBLIC, STREAM, Entry
from tests.matrix_calls import (
    ADMIN,
    OURS,
    ROUTES,
    WRITES,
    address,
    browser,
    call,
    cases,
    home,
    is_api,
    methods_of,
    program,
    scope_of,
    snapshot,
)

if TYPE_CHECKING:
    from portal.routes import Route

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

SENTINEL = "zz-mass-assigned"
# What callers have tried elsewhere (case H06) besides the columns of our own tables.
TRIED = frozenset(
    {
        "owner",
        "hourly_rate",
        "paid",
        "status",
        "balance",
        "role",
        "gpu_uuids",
        "privileged",
        "expires_at",
        "created",
        "is_admin",
        "cap_add",
        "devices",
        "runtime",
        "security_opt",
        "mounts",
        "pid_mode",
        "network_mode",
    }
)


# --- the table itself -----------------------------------------------------------------------------------------------


def test_every_route_is_declared() -> None:  # case H03
    undeclared = [route.path for route in ROUTES if route not in ADMIN and matrix.entry_of(route.path) is None]
    assert not undeclared, f"Declare in tests/matrix.py who may call: {undeclared}"


def test_the_table_names_no_route_that_is_gone() -> None:
    assert set(matrix.TABLE) <= {route.path for route in ROUTES}


@cases(PUBLIC, PERSON, OWNED)
def test_every_write_has_a_body_in_the_table(route: Route, entry: Entry) -> None:
    assert methods_of(route, entry), "A view that is a function says its methods in the table."
    missing = {method for method in methods_of(route, entry) if method in WRITES} - set(entry.bodies)
    assert entry.kind == PUBLIC or not missing, f"Give a valid body for {missing}."


# --- nobody ---------------------------------------------------------------------------------------------------------


@cases(PERSON, OWNED, api=True)
def test_the_api_answers_401_to_nobody(route: Route, entry: Entry, user: User) -> None:
    url = address(route, entry.make(user) if entry.make else None)
    before = snapshot()
    for method in methods_of(route, entry):
        assert call(browser(None), method, url, {}, json=True).status_code == 401, method
    assert snapshot() == before


@cases(PERSON, OWNED, api=False)
def test_a_page_sends_nobody_to_the_login(route: Route, entry: Entry, user: User) -> None:
    url = address(route, entry.make(user) if entry.make else None)
    before = snapshot()
    for method in methods_of(route, entry):
        answer = call(browser(None), method, url, {}, json=False)
        assert answer.status_code == 302, method
        assert answer["Location"].startswith(reverse(settings.LOGIN_URL)), method
    assert snapshot() == before


@cases(PUBLIC)
def test_public_routes_answer_everyone(route: Route, entry: Entry, user: User) -> None:
    for method in methods_of(route, entry):
        url = address(route, entry.make(user) if entry.make else None)
        assert call(browser(None), method, url, {}, json=is_api(route)).status_code < 400, method


# --- owners ---------------------------------------------------------------------------------------------------------


@cases(PERSON, OWNED)
def test_whoever_may_is_let_in(route: Route, entry: Entry, user: User) -> None:
    for method in methods_of(route, entry):
        arguments = entry.make(user) if entry.make else None
        url = address(route, arguments)
        body = entry.bodies[method](user) if method in entry.bodies else None
        client = program(user, **home(arguments)) if is_api(route) else browser(user)
        answer = call(client, method, url, body, json=is_api(route))
        assert answer.status_code < 400, (method, answer.content.decode()[:500])


# --- strangers ------------------------------------------------------------------------------------------------------


@cases(OWNED)
def test_a_stranger_gets_404_and_changes_nothing(route: Route, entry: Entry, user: User, stranger: User) -> None:
    # case H03
    assert entry.make is not None
    url = address(route, entry.make(user))
    clients = [browser(stranger)] + ([program(stranger)] if is_api(route) else [])
    before = snapshot()
    for client in clients:
        for method in methods_of(route, entry):
            body = entry.bodies[method](stranger) if method in entry.bodies else None
            assert call(client, method, url, body, json=is_api(route)).status_code == 404, method
    assert snapshot() == before


@cases(OWNED)
def test_an_operator_is_a_stranger_outside_the_admin(route: Route, entry: Entry, user: User, operator: User) -> None:
    # case H03
    assert entry.make is not None
    url = address(route, entry.make(user))
    for method in methods_of(route, entry):
        assert call(browser(operator), method, url, {}, json=is_api(route)).status_code == 404, method


@cases(OWNED, api=True)
def test_a_token_of_another_tenant_gets_404(route: Route, entry: Entry, user: User) -> None:  # case H03
    if entry.of_user:
        return
    assert entry.make is not None
    url = address(route, entry.make(user))
    client = program(user, tenant=make.make_tenant(members={user: "owner"}))
    before = snapshot()
    for method in methods_of(route, entry):
        assert call(client, method, url, {}, json=True).status_code == 404, method
    assert snapshot() == before


@cases(OWNED)
def test_a_made_up_id_is_indistinguishable_from_a_foreign_one(
    route: Route, entry: Entry, user: User, stranger: User
) -> None:  # case H03
    assert entry.make is not None
    foreign = address(route, entry.make(user))
    made_up = address(route, dict.fromkeys(entry.make(user), "zz-bbbbbbbbbbbbbbbb"))
    for method in methods_of(route, entry):
        if not is_api(route):
            continue
        client = program(stranger)
        answers = {call(client, method, url, {}, json=True).content for url in (foreign, made_up)}
        assert len(answers) == 1, method


@cases(PERSON, OWNED, api=True)
def test_a_token_without_the_scope_gets_403(route: Route, entry: Entry, user: User) -> None:
    before_making = entry.make(user) if entry.make else None
    for method in methods_of(route, entry):
        scope = scope_of(route, method)
        if scope == ANYONE:
            continue
        client = program(user, scopes=sorted(set(tokens.SCOPES) - {scope}))
        before = snapshot()
        answer = call(client, method, address(route, before_making), {}, json=True)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing"), method
        assert snapshot() == before


@cases(PERSON, OWNED, api=True)
def test_a_viewer_writes_no_leases(route: Route, entry: Entry, user: User, stranger: User) -> None:
    tenant = make.make_tenant(members={stranger: "owner", user: "viewer"})
    client = program(user, tenant=tenant)
    for method in methods_of(route, entry):
        if scope_of(route, method) == "leases:write":
            assert call(client, method, address(route), {}, json=True).status_code == 403, method


# --- cross-site requests --------------------------------------------------------------------------------------------


@cases(PUBLIC, PERSON, OWNED, ACCOUNT, write=True)
def test_a_write_with_a_cookie_needs_the_csrf_token(route: Route, entry: Entry, user: User) -> None:  # case H04
    url = address(route, entry.make(user) if entry.make else None)
    for method in set(methods_of(route, entry)) & set(WRITES):
        body = entry.bodies[method](user) if method in entry.bodies else {}
        before = snapshot()
        for client in [browser(user, csrf=True)] + ([browser(None, csrf=True)] if not is_api(route) else []):
            assert call(client, method, url, body, json=is_api(route)).status_code == 403, method
        assert snapshot() == before


@cases(PERSON, OWNED, write=True)
def test_get_changes_nothing(route: Route, entry: Entry, user: User) -> None:  # case H04
    url = address(route, entry.make(user) if entry.make else None)
    client = browser(user)
    before = snapshot()
    client.get(url)
    client.head(url)
    client.options(url)
    assert snapshot() == before


# --- fields nobody may set ------------------------------------------------------------------------------------------


def forbidden(entry: Entry) -> dict[str, str]:
    """Every column of every table, and what others have tried, less what this route lists as writable."""
    names = {
        name
        for app in OURS
        for model in apps.get_app_config(app).get_models()
        for column in model._meta.concrete_fields
        for name in (column.name, column.attname)
    }
    return dict.fromkeys(sorted((names | TRIED) - entry.writable), SENTINEL)


def unaudited() -> dict[str, list[tuple[Any, ...]]]:
    """The snapshot without audit rows: tries to set up a container are refused and written down (case H07)."""
    return {name: rows for name, rows in snapshot().items() if name != AuditEvent._meta.label}


@cases(PERSON, OWNED, api=True, write=True)
def test_the_api_refuses_every_field_that_is_not_listed(route: Route, entry: Entry, user: User) -> None:  # case H06
    for method in set(methods_of(route, entry)) & {"POST", "PUT", "PATCH"}:
        arguments = entry.make(user) if entry.make else None
        url = address(route, arguments)
        body = entry.bodies[method](user)
        client = program(user, **home(arguments))
        before = unaudited()
        answer = call(client, method, url, {**body, **forbidden(entry)}, json=True)
        assert answer.status_code == 400
        assert unaudited() == before
        for name, value in forbidden(entry).items():
            answer = call(client, method, url, {**body, name: value}, json=True)
            assert answer.status_code == 400, name
            assert name in answer.json()["errors"], name
        assert unaudited() == before


@cases(PERSON, OWNED, api=False, write=True)
def test_a_page_ignores_every_field_that_is_not_listed(route: Route, entry: Entry, user: User) -> None:  # case H06
    for method in set(methods_of(route, entry)) & {"POST"}:
        url = address(route, entry.make(user) if entry.make else None)
        body = entry.bodies[method](user)
        rights = User.objects.values("is_staff", "is_superuser", "is_active", "email").get(pk=user.pk)
        call(browser(user), method, url, {**body, **forbidden(entry)}, json=False)
        call(browser(user), method, url, {**body, **dict.fromkeys(forbidden(entry), "1")}, json=False)
        assert SENTINEL not in repr(snapshot())
        assert User.objects.values("is_staff", "is_superuser", "is_active", "email").get(pk=user.pk) == rights


# --- streams ---------------------------------------------------------------------------------------------------------


@cases(STREAM)
@pytest.mark.django_db(transaction=True)
async def test_a_stream_tells_a_stranger_nothing(route: Route, entry: Entry) -> None:
    """Whom it admits is shown in tests/rental; here: nobody and strangers get 404 where something is private."""
    try:
        owner = await sync_to_async(make.make_user)("owner@example.test")
        stranger = await sync_to_async(make.make_user)("other@example.test")
        url = address(route, await sync_to_async(entry.make)(owner) if entry.make else None)
        nobody, other = AsyncClient(), AsyncClient()
        await other.aforce_login(stranger)
        if route.name != "stream-offers":
            assert (await nobody.get(url)).status_code == 404
        if entry.make:
            assert (await other.get(url)).status_code == 404
        assert (await other.post(url)).status_code in {403, 405}
    finally:
        await sync_to_async(connections.close_all)()  # those of the thread that did the asking

"""Every route of the URL conf against every kind of caller (cases H03, H04, H06); they join by tests/matrix.py."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.db import connections
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone

from nodes.models import SshEvent
from portal import tokens
from portal.actor import Actor
from portal.models import AuditEvent, Tenant, TokenPlace, User
from portal.permissions import ANYONE
from portal.routes import Route, every_route
from portal.services import audit
from tests import make, matrix
from tests.clients import ApiClient
from tests.matrix import ACCOUNT, NODE, OWNED, PERSON, PUBLIC, STREAM, Entry

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]

OURS = ("portal", "nodes", "billing", "rental", "account")
ROUTES = list(every_route())
ADMIN = [route for route in ROUTES if route.path.startswith("admin/")]
DECLARED = [(route, entry) for route in ROUTES if route not in ADMIN and (entry := matrix.entry_of(route.path))]
SENTINEL = "zz-mass-assigned"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
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


def label(value: object) -> str:
    """Test ids: the path, nothing for an entry."""
    return (value.path or "/") if isinstance(value, Route) else "-"


def cases(*kinds: str, api: bool | None = None, write: bool = False) -> pytest.MarkDecorator:
    """Parametrise by the declared routes of these kinds."""
    found = [
        (route, entry)
        for route, entry in DECLARED
        if entry.kind in kinds
        and (api is None or is_api(route) is api)
        and (not write or set(methods_of(route, entry)) & set(WRITES))
    ]
    return pytest.mark.parametrize(("route", "entry"), found, ids=label)


def is_api(route: Route) -> bool:
    """Does it speak JSON?"""
    return route.path.startswith("api/")


def methods_of(route: Route, entry: Entry) -> list[str]:
    """What the route answers: the class tells, a function's entry tells."""
    return sorted(route.methods() or entry.methods)


def address(route: Route, arguments: dict[str, str] | None = None) -> str:
    """The URL with its arguments; an argument nobody gave is ``us-1``, which fits all patterns."""
    given = arguments or {}
    path = re.sub(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)", lambda found: given.get(found[1], "us-1"), route.path)
    path = re.sub(r"<(?:\w+:)?(\w+)>", lambda found: given.get(found[1], "us-1"), path)
    return "/" + path.replace("^", "").replace("$", "")


def snapshot() -> dict[str, list[tuple[Any, ...]]]:
    """Every row of ours, without the moments that reading may move and the audit of the tests' own logins."""
    moved = {"last_used_at", "last_used_ip", "last_login"}
    logins = {"user.logged_in", "user.logged_out"}

    def rows(model: type[Model]) -> list[tuple[Any, ...]]:
        names = [column.attname for column in model._meta.concrete_fields if column.attname not in moved]
        found = model._base_manager.all()
        if model is AuditEvent:
            found = found.exclude(action__in=logins)
        return sorted(found.values_list(*names), key=repr)

    models = [model for name in OURS for model in apps.get_app_config(name).get_models()]
    return {model._meta.label: rows(model) for model in models if model is not TokenPlace}


def call(client: Client, method: str, url: str, body: dict[str, Any] | None, *, json: bool) -> Answer:
    """One request; JSON for the API, a form for pages."""
    send = getattr(client, method.lower())
    if method == "GET":
        answer: Answer = send(url)
    elif json:
        answer = send(url, body or {}, content_type="application/json")
    else:
        answer = send(url, body or {})
    return answer


def browser(user: User | None, *, csrf: bool = False) -> Client:
    """A browser, signed in or not; with ``csrf`` it checks the token, which it does not have."""
    client = Client(enforce_csrf_checks=csrf)
    if user is not None:
        client.force_login(user)
    return client


def program(user: User, **token: Any) -> Client:
    """A program with a token of the user."""
    return Client(headers=ApiClient(make.make_token(user, **token)[1]).headers)


def home(arguments: dict[str, str] | None) -> dict[str, Any]:
    """The tenant of the address, where it names one: a token works in its own tenant only."""
    tenant_id = (arguments or {}).get("tenant_id")
    return {"tenant": Tenant.objects.get(pk=tenant_id)} if tenant_id else {}


def scope_of(route: Route, method: str) -> str:
    """The scope an API route asks for."""
    table: dict[str, str] = getattr(route.view_class, "scopes", {})
    return table[method]


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


# --- node API -------------------------------------------------------------------------------------------------------


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


# --- admin ----------------------------------------------------------------------------------------------------------

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

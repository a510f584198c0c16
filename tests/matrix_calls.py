"""How the matrix calls a route: which routes there are, their addresses, the kinds of callers, and what was changed.

Who may call what is in matrix.py; what is expected of the answers is in the test_matrix files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.test import Client

from portal.models import AuditEvent, Tenant, TokenPlace, User
from portal.routes import Route, every_route
from tests import make, matrix
from tests.clients import ApiClient

if TYPE_CHECKING:
    from django.db.models import Model
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

    from tests.matrix import Entry

OURS = ("portal", "nodes", "billing", "rental", "account")
ROUTES = list(every_route())
ADMIN = [route for route in ROUTES if route.path.startswith("admin/")]
DECLARED = [(route, entry) for route in ROUTES if route not in ADMIN and (entry := matrix.entry_of(route.path))]
WRITES = ("POST", "PUT", "PATCH", "DELETE")


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

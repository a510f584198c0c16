"""Who may call what: one entry per route of the URL conf, read by the tests/test_matrix files.

A route that is not in ``TABLE`` fails the tests, so a new route joins by being declared here: ``public``, ``person``
(any signed-in caller), ``owned`` (an object of a person or tenant, with a maker), ``node``, ``stream`` (asgi only).
Admin routes need no entry: one rule covers them. ``bodies`` holds a valid body for every write, ``writable`` the only
fields a body may name.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.utils import timezone

from rental import requests
from rental.forms import RentForm
from rental.keep_links import KeepLink
from rental.models import LeaseActivity
from rental.services import build_quote
from rental.states import State
from tests import make
from tests import matrix_tenants as tenants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from portal.models import User

    Body = Callable[[User], dict[str, Any]]

PUBLIC, PERSON, OWNED, ACCOUNT, NODE, STREAM = "public", "person", "owned", "account", "node", "stream"


@dataclass(frozen=True)
class Entry:
    """How one route is guarded. ``make`` gives the URL's arguments for a fresh object of a user."""

    kind: str
    make: Callable[[User], dict[str, str]] | None = None
    bodies: Mapping[str, Body] = field(default_factory=dict)
    writable: frozenset[str] = frozenset()
    methods: frozenset[str] = frozenset()  # for views that are functions; classes tell by themselves
    of_user: bool = False  # belongs to the person, whatever the tenant of their token


def public(*methods: str) -> Entry:
    """Needs nobody."""
    return Entry(PUBLIC, methods=frozenset(methods))


def person(*methods: str, writable: str = "", **bodies: Body) -> Entry:
    """Needs a signed-in caller: lists and creations."""
    return Entry(PERSON, bodies=bodies, writable=frozenset(writable.split()), methods=frozenset(methods))


def owned(
    make_object: Callable[[User], dict[str, str]], *, of_user: bool = False, writable: str = "", **bodies: Body
) -> Entry:
    """An object: its owner gets it, everyone else 404."""
    return Entry(OWNED, make=make_object, bodies=bodies, writable=frozenset(writable.split()), of_user=of_user)


def empty(_: User) -> dict[str, Any]:
    """A write that takes no fields."""
    return {}


# --- objects and bodies ---------------------------------------------------------------------------------------------


def a_key(user: User) -> dict[str, str]:
    """An SSH key."""
    return {"key_id": make.make_key(user).pk}


def a_keep_link(user: User) -> dict[str, str]:
    """The link in the mail that warns of an idle lease."""
    since = timezone.now() - timedelta(minutes=10)
    lease = make.make_lease(make.tenant_of(user), state=State.RUNNING)
    LeaseActivity.objects.create(
        lease=lease, sampled_at=timezone.now(), active_at=since, warned_for=since, warned_at=timezone.now()
    )
    return {"token": KeepLink(lease.pk, since, timezone.now() + timedelta(minutes=10)).token}


def a_token(user: User) -> dict[str, str]:
    """An API token."""
    return {"token_id": make.make_token(user)[0].pk}


def a_lease(user: User) -> dict[str, str]:
    """A running lease of the user's own tenant."""
    return {"lease_id": make.make_lease(make.tenant_of(user), state=State.RUNNING).pk}


def a_session(user: User) -> dict[str, str]:
    """A browser session elsewhere."""
    session = UserSession.objects.create(user=user, ip="192.0.2.7", session_key=secrets.token_hex(16), user_agent="")
    return {"session_id": str(session.pk)}


def a_passkey(user: User) -> dict[str, str]:
    """A passkey; nothing here reads its key."""
    data = {"name": "laptop", "credential": {}}
    return {"pk": str(Authenticator.objects.create(user=user, type=Authenticator.Type.WEBAUTHN, data=data).pk)}


def deletion_form(user: User) -> dict[str, Any]:
    """The question on the page that deletes an account, answered."""
    return {"email": user.email}


def key_body(_: User) -> dict[str, Any]:
    """A key to add."""
    return {"public_key": make.ed25519_line(), "name": "laptop"}


def token_body(_: User) -> dict[str, Any]:
    """A token to create over the API."""
    return {"name": "ci", "scopes": ["leases:read"]}


def token_form(_: User) -> dict[str, Any]:
    """A token to create on the page."""
    return {"name": "ci", "scopes": ["leases:read"], "ends": "30"}


def quote_body(user: User) -> dict[str, Any]:
    """Something that can be quoted: hardware, a price, a key and money are there."""
    make.make_node(gpus=2)
    make.make_price()
    make.make_balance(make.tenant_of(user))
    make.make_key(user)
    return {"gpu_model": make.H100, "gpu_count": 1}


def lease_body(user: User) -> dict[str, Any]:
    """A quote to order."""
    request = requests.parse(quote_body(user))
    return {"quote": build_quote(tenant=make.tenant_of(user), user=user, request=request).token, "name": "mine"}


def rent_form(user: User) -> dict[str, Any]:
    """The rent form, asking for a price."""
    said = quote_body(user)
    keys = list(user.ssh_keys.values_list("pk", flat=True))
    return {**said, "plan": "on_demand", "ssh_keys": keys, "max_hours": "1", "do": "price"}


def extend_body(_: User) -> dict[str, Any]:
    """Another end of a lease that runs: no later, so it needs no money."""
    return {"max_duration_s": 7200}


def extend_form(_: User) -> dict[str, Any]:
    """The same, as typed."""
    return {"max_hours": "2", "spend_cap": ""}


def cap_form(_: User) -> dict[str, Any]:
    """The spend cap of a month, as typed."""
    return {"cap": "250.00"}


def cap_body(_: User) -> dict[str, Any]:
    """The spend cap of a month."""
    return {"month_cap_micros": 250_000_000}


RENT_FIELDS = " ".join(sorted({*RentForm.base_fields, "quote", "do"}))
QUOTE_FIELDS = " ".join(sorted(requests.FIELDS))

TABLE: dict[str, Entry] = {
    # the project itself
    "healthz": public("GET"),
    "readyz": public("GET"),
    "prefs/theme": public("POST"),
    "i18n/setlang/": public("POST"),
    # access pages
    "access/keys/": person(POST=key_body, writable="public_key name"),
    "access/keys/<str:key_id>/remove/": owned(a_key, POST=empty, of_user=True),
    "access/tokens/": person(POST=token_form, writable="name scopes ends"),
    "access/tokens/<str:token_id>/revoke/": owned(a_token, POST=empty, of_user=True),
    "billing/": person("GET"),
    "billing/cap": person("POST", POST=cap_form, writable="cap"),
    # account pages of our own; those of allauth share one entry, see entry_of
    "account/sessions/": person(POST=empty),
    "account/sessions/<int:session_id>/end/": owned(a_session, POST=empty, of_user=True),
    "account/delete/": person(POST=deletion_form, writable="email give_up"),
    "account/security/webauthn/keys/<int:pk>/remove/": Entry(ACCOUNT, make=a_passkey),
    "account/security/webauthn/keys/<int:pk>/edit/": Entry(ACCOUNT, make=a_passkey),
    # rental pages
    "": public(),
    "rent": person(POST=rent_form, writable=RENT_FIELDS),
    "leases/": person(),
    "leases/quote": person(POST=rent_form, writable=RENT_FIELDS),
    "leases/<str:lease_id>/": owned(a_lease),
    "leases/<str:lease_id>/stop": owned(a_lease, POST=empty),
    "leases/<str:lease_id>/keep": owned(a_lease, POST=empty),
    "keep/<str:token>": Entry(PUBLIC, make=a_keep_link, bodies={"POST": empty}),
    "idle": public(),
    "leases/<str:lease_id>/extend": owned(a_lease, POST=extend_form, writable="max_hours spend_cap"),
    "leases/<str:lease_id>/receipt": owned(a_lease),
    "stream/leases/<str:lease_id>": Entry(STREAM, make=a_lease),
    "stream/home": Entry(STREAM),
    "stream/offers": Entry(STREAM),
    # tenants and invitations
    "tenants/": person(POST=tenants.name_body, writable="name"),
    "tenants/switch/": person(POST=tenants.switch_form, writable="tenant next"),
    "tenants/roles/": public(),
    "tenants/<str:tenant_id>/": owned(tenants.a_tenant),
    "tenants/<str:tenant_id>/rename/": owned(tenants.a_tenant, POST=tenants.rename_form, writable="tenant-name"),
    "tenants/<str:tenant_id>/invite/": owned(tenants.a_tenant, POST=tenants.invite_body, writable="email role"),
    "tenants/<str:tenant_id>/leave/": owned(tenants.a_tenant, POST=empty),
    "tenants/<str:tenant_id>/delete/": owned(
        tenants.a_tenant, POST=tenants.deletion_body, writable="name give_up_balance"
    ),
    "tenants/<str:tenant_id>/hand-over/": owned(tenants.a_tenant, POST=tenants.next_owner, writable="member"),
    "tenants/<str:tenant_id>/members/<str:user_id>/role/": owned(
        tenants.a_member, POST=tenants.role_body, writable="role"
    ),
    "tenants/<str:tenant_id>/members/<str:user_id>/remove/": owned(tenants.a_member, POST=empty),
    "tenants/<str:tenant_id>/invitations/<str:invitation_id>/resend/": owned(tenants.an_invitation, POST=empty),
    "tenants/<str:tenant_id>/invitations/<str:invitation_id>/withdraw/": owned(tenants.an_invitation, POST=empty),
    "invitations/link/<str:token>/": public(),
    "invitations/open/": public(),
    "invitations/<str:invitation_id>/accept/": owned(tenants.an_invitation_to, POST=empty, writable="as_this_account"),
    "invitations/<str:invitation_id>/decline/": owned(tenants.an_invitation_to, POST=empty),
    # API v1
    "api/v1/openapi.json": public(),
    "api/v1/docs/": public(),
    "api/v1/me": person(),
    "api/v1/ssh-keys": person(POST=key_body, writable="public_key name"),
    "api/v1/ssh-keys/<str:key_id>": owned(a_key, DELETE=empty, of_user=True),
    "api/v1/tokens": person(POST=token_body, writable="name scopes expires_at"),
    "api/v1/tokens/<str:token_id>": owned(a_token, DELETE=empty),
    "api/v1/tenants": person(POST=tenants.name_body, writable="name"),
    "api/v1/tenants/<str:tenant_id>": owned(
        tenants.a_tenant, PATCH=tenants.name_body, DELETE=tenants.deletion_body, writable="name give_up_balance"
    ),
    "api/v1/tenants/<str:tenant_id>/members": owned(tenants.a_tenant),
    "api/v1/tenants/<str:tenant_id>/members/<str:user_id>": owned(
        tenants.a_member, PATCH=tenants.role_body, DELETE=empty, writable="role"
    ),
    "api/v1/tenants/<str:tenant_id>/invitations": owned(
        tenants.a_tenant, POST=tenants.invite_body, writable="email role"
    ),
    "api/v1/tenants/<str:tenant_id>/invitations/<str:invitation_id>": owned(tenants.an_invitation, DELETE=empty),
    "api/v1/tenants/<str:tenant_id>/invitations/<str:invitation_id>/resend": owned(tenants.an_invitation, POST=empty),
    "api/v1/offers": public(),
    "api/v1/quotes": person(POST=quote_body, writable=QUOTE_FIELDS),
    "api/v1/leases": person(POST=lease_body, writable="quote name"),
    "api/v1/leases/<str:lease_id>": owned(a_lease),
    "api/v1/leases/<str:lease_id>/stop": owned(a_lease, POST=empty),
    "api/v1/leases/<str:lease_id>/keep": owned(a_lease, POST=empty),
    "api/v1/leases/<str:lease_id>/extend": owned(a_lease, POST=extend_body, writable="max_duration_s spend_cap_micros"),
    "api/v1/leases/<str:lease_id>/events": owned(a_lease),
    "api/v1/leases/<str:lease_id>/receipt": owned(a_lease),
    "api/v1/balance": person(PATCH=cap_body, writable="month_cap_micros"),
    "api/v1/ledger": person(),
    # node API
    "api/node/v1/enrol": Entry(NODE),
    "api/node/v1/inventory": Entry(NODE),
    "api/node/v1/preflight": Entry(NODE),
    "api/node/v1/ssh-events": Entry(NODE),
    "api/node/v1/heartbeat": Entry(NODE),
    "api/node/v1/desired": Entry(NODE),
    "api/node/v1/leases/<str:lease_id>/report": Entry(NODE),
}


def entry_of(path: str) -> Entry | None:
    """The entry of a route; allauth's own pages share one, tests/portal walks through them."""
    if path not in TABLE and path.removeprefix("^").startswith("account/"):
        return Entry(ACCOUNT)
    return TABLE.get(path)

"""Every list of API v1 at 1,193 rows with equal sort keys, read while rows come and go (case B08)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from billing.models import LedgerEntry
from portal import ids, tokens
from portal.models import ApiToken, Invitation, Membership, SshKey, Tenant, User
from portal.routes import every_route
from rental.models import Lease, LeaseEvent
from tests import make
from tests.clients import ApiClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model

pytestmark = pytest.mark.django_db

ROWS = 1193
AT = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = 50
EXTREMES = ["0", "-1", "201", "1000000000", "99999999999999999999", "1.5", "abc", "", "%00"]


@dataclass(frozen=True)
class Case:
    """A list: its path, a maker of one more row (not saved) with the equal sort key, and its model."""

    path: str
    model: type[Model]
    new: Callable[[int], Model]
    deletes: bool = True


def lease_like(tenant: Tenant, row: Lease) -> Callable[[int], Model]:
    """Leases like this one, which holds nothing."""
    same = {
        column.attname: getattr(row, column.attname)
        for column in Lease._meta.concrete_fields
        if column.attname not in {"id", "quote_id", "requested_at"}
    }
    return lambda _number: Lease(**same, requested_at=AT, quote_id=ids.quote_id())


def leases(user: User, tenant: Tenant) -> Case:
    """Leases that are over."""
    row = make.make_lease(tenant, state="ended")
    Lease.objects.filter(pk=row.pk).update(requested_at=AT)
    return Case("leases", Lease, lease_like(tenant, row))


def events(user: User, tenant: Tenant) -> Case:
    """The history of one lease."""
    row = make.make_lease(tenant, state="ended")
    return Case(
        f"leases/{row.pk}/events", LeaseEvent, lambda number: LeaseEvent(lease=row, code=f"note-{number}", at=AT)
    )


def ledger(user: User, tenant: Tenant) -> Case:
    """Lines of money; nobody deletes one."""
    account = make.make_balance(tenant)

    def line(number: int) -> LedgerEntry:
        return LedgerEntry(
            account=account, kind=LedgerEntry.Kind.TOP_UP, ticks=number + 1, source=f"paging:{number}", at=AT
        )

    return Case("ledger", LedgerEntry, line, deletes=False)


def keys(user: User, tenant: Tenant) -> Case:
    """SSH keys."""

    def key(number: int) -> SshKey:
        return SshKey(
            user=user, name="k", key_type="ssh-ed25519", line="x", fingerprint=f"SHA256:{number}", created_at=AT
        )

    return Case("ssh-keys", SshKey, key)


def api_tokens(user: User, tenant: Tenant) -> Case:
    """API tokens."""

    def token(number: int) -> ApiToken:
        return ApiToken(
            user=user, tenant=tenant, name="t", prefix="lsr_x", digest=tokens.digest(str(number)), created_at=AT
        )

    return Case("tokens", ApiToken, token)


def invitations(user: User, tenant: Tenant) -> Case:
    """Invitations of a tenant."""

    def invitation(number: int) -> Invitation:
        return Invitation(tenant=tenant, email=f"p{number}@x.test", expires_at=AT, created_at=AT)

    return Case(f"tenants/{tenant.pk}/invitations", Invitation, invitation)


def members(user: User, tenant: Tenant) -> Case:
    """Members of a tenant."""
    people = User.objects.bulk_create(User(email=f"p{number}@x.test") for number in range(ROWS + 100))

    def member(number: int) -> Membership:
        return Membership(tenant=tenant, user=people[number], role="viewer", created_at=AT)

    return Case(f"tenants/{tenant.pk}/members", Membership, member)


# By the pattern of its route; made when asked for.
CASES: dict[str, Callable[[User, Tenant], Case]] = {
    "leases": leases,
    "leases/<str:lease_id>/events": events,
    "ledger": ledger,
    "ssh-keys": keys,
    "tokens": api_tokens,
    "tenants/<str:tenant_id>/invitations": invitations,
    "tenants/<str:tenant_id>/members": members,
}
# One tenant per token, whatever there are: this list has at most one row for a program.
SHORT = {"tenants"}
LISTS = sorted(
    route.path.removeprefix("api/v1/")
    for route in every_route()
    if route.path.startswith("api/v1/") and "pagination_class" in vars(route.view_class or object)
)


def test_every_list_of_the_api_is_tried_here() -> None:
    assert set(LISTS) == set(CASES) | SHORT, "a list that is new joins CASES"


@pytest.mark.parametrize("name", [name for name in LISTS if name not in SHORT])
def test_every_row_that_was_there_all_along_comes_exactly_once(name: str, user: User, tenant: Tenant) -> None:
    # case B08
    case = CASES[name](user, tenant)
    rows = case.model._default_manager.bulk_create([case.new(number) for number in range(ROWS)])
    doomed = [row.pk for row in rows[:: ROWS // 20]] if case.deletes else []
    api = ApiClient(make.make_token(user)[1])
    token = ApiToken.objects.get(user=user, digest=tokens.digest(api.headers["Authorization"].removeprefix("Bearer ")))
    ApiToken.objects.filter(pk=token.pk).update(created_at=AT)
    seen: list[str] = []
    cursor, turn = "", 0
    while True:
        answer = api.get(f"{case.path}?limit={LIMIT}{cursor}")
        assert answer.status_code == 200, answer.content
        page = answer.json()
        assert len(page["results"]) <= LIMIT
        seen += [str(row["id"]) for row in page["results"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
        case.model._default_manager.bulk_create([case.new(ROWS + 2 * turn), case.new(ROWS + 2 * turn + 1)])
        if doomed:
            case.model._default_manager.filter(pk=doomed.pop()).delete()
        turn += 1
    assert turn >= ROWS // LIMIT - 1
    assert len(seen) == len(set(seen)), "no row comes twice"
    kept = case.model._default_manager.filter(pk__in=[row.pk for row in rows])
    public = "user_id" if case.model is Membership else "pk"
    assert {str(one) for one in kept.values_list(public, flat=True)} <= set(seen), "no row that stayed is missing"


def test_the_sum_of_the_pages_is_the_balance(user: User, tenant: Tenant) -> None:  # case B08
    case = ledger(user, tenant)
    before = sum(LedgerEntry.objects.values_list("ticks", flat=True))
    case.model._default_manager.bulk_create([case.new(number) for number in range(ROWS)])
    api = ApiClient(make.make_token(user)[1])
    total, cursor = 0, ""
    while True:
        page = api.get(f"ledger?limit={LIMIT}{cursor}").json()
        total += sum(row["ticks"] for row in page["results"])
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert total == before + sum(range(1, ROWS + 1))


@pytest.mark.parametrize("name", LISTS)
def test_a_limit_or_cursor_that_is_none_is_refused_everywhere(name: str, user: User, tenant: Tenant) -> None:
    # case B08
    path = CASES[name](user, tenant).path if name not in SHORT else name
    api = ApiClient(make.make_token(user)[1])
    for limit in EXTREMES:
        answer = api.get(f"{path}?limit={limit}")
        assert (answer.status_code, "limit" in answer.json()["errors"]) == (400, True), limit
    for cursor in ("x", "0", "-1", "1000000000", "W10", "%00"):
        answer = api.get(f"{path}?cursor={cursor}")
        assert (answer.status_code, "cursor" in answer.json()["errors"]) == (400, True), cursor

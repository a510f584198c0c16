"""Verbs on accounts: tenants, audit. SSH keys and tokens have their own modules (portal/keys.py, portal/tokens.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from portal.errors import NotAllowed, NotFound
from portal.models import ApiToken, AuditEvent, Membership, Tenant, User
from portal.ready import Ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import Model, QuerySet
    from django.http import HttpRequest

    from portal.actor import Actor

ROLE_REFUSED: Final = "Your role in this tenant does not allow this."
CHOSEN: Final = "tenant"  # the session's key for the tenant it works for


def audit(
    *, actor: Actor, action: str, obj: Model, tenant: Tenant | None = None, data: dict[str, Any] | None = None
) -> None:
    """One row: who did ``action`` (``lease.requested``) to ``obj``. Call it inside the transaction of the change.

    ``data`` holds facts for people, never a secret.
    """
    AuditEvent.objects.create(
        actor=actor.user,
        actor_label=actor.label,
        token=actor.token,
        tenant=tenant,
        action=action,
        object_type=obj._meta.model_name or "",
        object_id=str(obj.pk),
        data=data or {},
        ip=actor.ip,
    )


def ensure_personal_tenant(user: User) -> Tenant:
    """The user's own tenant, made at sign-up. Safe to call again; looking it up takes no lock."""
    return _personal_tenant(user) or _create_personal_tenant(user)


def _personal_tenant(user: User) -> Tenant | None:
    return Tenant.objects.filter(
        kind=Tenant.Kind.PERSONAL, memberships__user=user, memberships__role=Membership.Role.OWNER
    ).first()


@transaction.atomic
def _create_personal_tenant(user: User) -> Tenant:
    User.objects.select_for_update().get(pk=user.pk)  # two first requests at once make one tenant
    tenant = _personal_tenant(user)
    if tenant is None:
        tenant = Tenant.objects.create(name=user.email[:120], kind=Tenant.Kind.PERSONAL)
        Membership.objects.create(tenant=tenant, user=user, role=Membership.Role.OWNER)
    return tenant


def memberships(request: HttpRequest) -> list[Membership]:
    """The signed-in person's memberships with their tenants, personal one first; one query per request."""
    cached: list[Membership] | None = getattr(request, "_lessor_memberships", None)
    if cached is not None:
        return cached
    user = request.user
    if not isinstance(user, User):
        raise NotAllowed("Sign in first.", code="not_authenticated")
    found = _memberships(user)
    if not any(_is_home(row) for row in found):
        ensure_personal_tenant(user)
        found = _memberships(user)
    request._lessor_memberships = found  # type: ignore[attr-defined]  # noqa: SLF001  # our own mark: once per request
    return found


def _memberships(user: User) -> list[Membership]:
    rows = Membership.objects.filter(user=user).select_related("tenant").order_by("tenant__created_at", "tenant_id")
    return sorted(rows, key=lambda row: not _is_home(row))


def _is_home(row: Membership) -> bool:
    return row.tenant.kind == Tenant.Kind.PERSONAL and row.role == Membership.Role.OWNER


def current_membership(request: HttpRequest) -> Membership:
    """The membership a request of a session works by: that of the tenant chosen there, else the personal one."""
    chosen = request.session.get(CHOSEN) if hasattr(request, "session") else None
    found = memberships(request)
    return next((row for row in found if row.tenant_id == chosen), found[0])


def current_tenant(request: HttpRequest) -> Tenant:
    """The tenant a request works for: the token's, else the one chosen in the session, else the personal one."""
    token = getattr(request, "auth", None)
    return token.tenant if isinstance(token, ApiToken) else current_membership(request).tenant


def choose_tenant(request: HttpRequest, tenant_id: str) -> Tenant:
    """From now on this session works for that tenant; NotFound unless the person is a member."""
    row = next((row for row in memberships(request) if row.tenant_id == tenant_id), None)
    if row is None:
        raise NotFound("There is no such tenant.")
    request.session[CHOSEN] = row.tenant_id
    return row.tenant


def require_role(*, user: User, tenant: Tenant, roles: Sequence[str]) -> None:
    """Refuse a member whose role does not allow this."""
    found = _ROLE.rows(user=user.pk, tenant=tenant.pk)
    if not any(role in roles for (role,) in found):
        raise NotAllowed(ROLE_REFUSED)


def _role(user: str, tenant: str) -> QuerySet[Membership, tuple[str]]:
    return Membership.objects.filter(user=user, tenant=tenant).values_list("role")


_ROLE: Final = Ready(_role, user="?user", tenant="?tenant")

"""Verbs on organisations and the people in them: create, rename, change a role, remove, leave, hand over.

Who may do what is asked of portal/roles.py. Every change of who is an owner happens under a lock on the tenant, so two
owners who leave at once do not both go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.errors import DomainError, InvalidInput, NotAllowed, NotFound
from portal.models import ApiToken, Invitation, Membership, SshKey, Tenant, User
from portal.roles import Act, Role, may, may_touch
from portal.services import audit
from portal.signals import membership_changed, ssh_keys_changed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import QuerySet

    from portal.actor import Actor

MAX_NAME: Final = 120
MAX_TENANTS: Final = 50  # of one person; every page of theirs reads them


def create_organisation(*, user: User, name: str, actor: Actor) -> Tenant:
    """A new organisation with ``user`` as its owner. InvalidInput names ``name``; 409 ``too_many`` beyond 50."""
    name = checked_name(name)
    with transaction.atomic():
        User.objects.select_for_update().get(pk=user.pk)  # the count below holds against a second request
        if Membership.objects.filter(user=user).count() >= MAX_TENANTS:
            raise DomainError(_("You are in %d tenants; leave one first.") % MAX_TENANTS, code="too_many")
        tenant = Tenant.objects.create(name=name, kind=Tenant.Kind.ORGANISATION)
        Membership.objects.create(tenant=tenant, user=user, role=Role.OWNER)
        audit(actor=actor, action="tenant.created", obj=tenant, tenant=tenant, data={"name": name})
    return tenant


@transaction.atomic
def rename(*, tenant: Tenant, name: str, actor: Actor) -> Tenant:
    """Another name for an organisation; a personal tenant keeps its own."""
    require(actor=actor, tenant=tenant, act=Act.RENAME)
    must_be_organisation(tenant)
    name = checked_name(name)
    if name != tenant.name:
        audit(
            actor=actor,
            action="tenant.renamed",
            obj=tenant,
            tenant=tenant,
            data={"before": tenant.name, "after": name},
        )
        tenant.name = name
        tenant.save(update_fields=["name"])
    return tenant


def members_of(tenant: Tenant) -> QuerySet[Membership]:
    """Everybody in a tenant, those who joined first first."""
    return tenant.memberships.select_related("user").order_by("created_at", "pk")


def member(*, tenant: Tenant, user_id: str) -> Membership:
    """One member; NotFound for anyone else."""
    row = tenant.memberships.select_related("user", "tenant").filter(user_id=user_id).first()
    if row is None:
        raise NotFound("There is no such member.")
    return row


@transaction.atomic
def change_role(*, tenant: Tenant, user_id: str, role: str, actor: Actor) -> Membership:
    """Another role for a member, oneself included. 409 ``last_owner`` for the only owner; owners are made by owners."""
    if role not in Role.values:
        raise InvalidInput.field("role", f"There are: {', '.join(Role.values)}.")
    mine = _locked(tenant, actor)
    row = member(tenant=tenant, user_id=user_id)
    _require(mine, Act.CHANGE_ROLES)
    must_be_organisation(tenant)
    if not may_touch(mine.role, row.role, role):
        raise NotAllowed(_("Only an owner makes and unmakes owners."))
    if row.role == role:
        return row
    if row.role == Role.OWNER:
        _spare(row)
    before, row.role = row.role, role
    row.save(update_fields=["role"])
    data = {"email": row.user.email, "before": before, "after": role}
    audit(actor=actor, action="member.role_changed", obj=row.user, tenant=tenant, data=data)
    _withdraw_offers(row)
    tell_change(user=row.user, tenant_id=tenant.pk)
    return row


@transaction.atomic
def remove(*, tenant: Tenant, user_id: str, actor: Actor) -> None:
    """Take somebody out: tokens for this tenant are revoked, keys open nothing of it, live sessions and pages end."""
    mine = _locked(tenant, actor)
    row = member(tenant=tenant, user_id=user_id)
    if row.user_id == mine.user_id:
        _go(row, actor, "member.left")
        return
    _require(mine, Act.REMOVE)
    if not may_touch(mine.role, row.role):
        raise NotAllowed(_("Only an owner removes an owner."))
    _go(row, actor, "member.removed")


@transaction.atomic
def leave(*, tenant: Tenant, actor: Actor) -> None:
    """Go oneself. 409 ``last_owner`` for the only owner, ``personal_tenant`` for one's own."""
    _go(_locked(tenant, actor), actor, "member.left")


@transaction.atomic
def hand_over(*, tenant: Tenant, user_id: str, actor: Actor) -> Membership:
    """The organisation gets another owner; the one who gives it becomes an admin. Returns the new owner's row."""
    mine = _locked(tenant, actor)
    _require(mine, Act.HAND_OVER)
    must_be_organisation(tenant)
    row = member(tenant=tenant, user_id=user_id)
    if row.user_id == mine.user_id or not row.user.is_active:
        raise InvalidInput.field("member", _("Choose another active member."))
    Membership.objects.filter(pk=row.pk).update(role=Role.OWNER)
    Membership.objects.filter(pk=mine.pk).update(role=Role.ADMIN)
    row.role, mine.role = Role.OWNER, Role.ADMIN
    _withdraw_offers(mine)
    audit(actor=actor, action="tenant.handed_over", obj=tenant, tenant=tenant, data={"to": row.user.email})
    for who in (row.user, mine.user):
        tell_change(user=who, tenant_id=tenant.pk)
    return row


def is_only_owner(row: Membership, people: Iterable[Membership]) -> bool:
    """Would the tenant have no owner with an open account without this member? ``people``: its members, as rows."""
    others = [one for one in people if one.pk != row.pk and one.role == Role.OWNER and one.user.is_active]
    return row.role == Role.OWNER and not others


def owned_alone(user: User) -> QuerySet[Tenant]:
    """Organisations that would have no active owner without this person: to be handed over before the account goes."""
    others = Membership.objects.filter(role=Role.OWNER, user__is_active=True).exclude(user=user)
    return Tenant.objects.filter(
        kind=Tenant.Kind.ORGANISATION, memberships__user=user, memberships__role=Role.OWNER
    ).exclude(memberships__in=others)


def revoke_tokens(*, user: User, tenant_ids: Iterable[str]) -> int:
    """Tokens of a person in these tenants open nothing any more, also after coming back. How many there were."""
    live = ApiToken.objects.filter(user=user, tenant_id__in=list(tenant_ids), revoked_at__isnull=True)
    return live.update(revoked_at=timezone.now())


def tell_change(*, user: User, tenant_id: str) -> None:
    """After commit: nodes fetch the keys of the tenant's leases again, streams judge who may look."""
    transaction.on_commit(lambda: ssh_keys_changed.send(sender=SshKey, user=user, tenant_ids=[tenant_id]))
    transaction.on_commit(lambda: membership_changed.send(sender=Membership, user=user, tenant_id=tenant_id))


def require(*, actor: Actor, tenant: Tenant, act: Act) -> Membership:
    """The acting person's membership; NotFound for a stranger, NotAllowed when the role does not allow the act."""
    row = _mine(tenant, actor)
    _require(row, act)
    return row


def must_be_organisation(tenant: Tenant) -> None:
    """409 ``personal_tenant`` for a tenant that is one person's own."""
    if tenant.kind == Tenant.Kind.PERSONAL:
        raise DomainError(
            _("A personal tenant has one member. Create an organisation to work with others."), code="personal_tenant"
        )


def checked_name(name: str) -> str:
    """A tenant's name in one line; InvalidInput for the field ``name``."""
    name = " ".join(name.split())
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput.field("name", _("Give 1 to %d visible letters.") % MAX_NAME)
    return name


def _mine(tenant: Tenant, actor: Actor) -> Membership:
    if actor.user is None:
        raise NotAllowed("This is done by a member.")
    return member(tenant=tenant, user_id=actor.user.pk)


def _locked(tenant: Tenant, actor: Actor) -> Membership:
    """The acting person's membership, read while nobody else changes this tenant's people."""
    Tenant.objects.select_for_update().get(pk=tenant.pk)
    return _mine(tenant, actor)


def _require(row: Membership, act: Act) -> None:
    if not may(row.role, act):
        raise NotAllowed(_("Your role in this tenant does not allow this."))


def _spare(row: Membership) -> None:
    """Refuse to take the last active owner away."""
    if is_only_owner(row, members_of(row.tenant).filter(role=Role.OWNER)):
        raise DomainError(
            _("This is the only owner. Make somebody else an owner first, or hand the organisation over."),
            code="last_owner",
        )


def _go(row: Membership, actor: Actor, action: str) -> None:
    if row.role == Role.OWNER:
        must_be_organisation(row.tenant)
        _spare(row)
    revoked = revoke_tokens(user=row.user, tenant_ids=[row.tenant_id])
    data = {"email": row.user.email, "role": row.role, "tokens_revoked": revoked}
    audit(actor=actor, action=action, obj=row.user, tenant=row.tenant, data=data)
    row.role = ""
    _withdraw_offers(row)
    Membership.objects.filter(pk=row.pk).delete()
    tell_change(user=row.user, tenant_id=row.tenant_id)


def _withdraw_offers(row: Membership) -> None:
    """Open invitations that this person made and could not make any more, with the role they now have."""
    offers = Invitation.objects.filter(tenant_id=row.tenant_id, invited_by=row.user, state=Invitation.State.OPEN)
    if row.role and may(row.role, Act.INVITE):
        offers = offers.exclude(role__in=[role for role in Role if may_touch(row.role, role)])
    offers.update(state=Invitation.State.WITHDRAWN, closed_at=timezone.now())

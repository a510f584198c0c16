"""Closing an account: by an operator, who may open it again, and for good by its owner.

Both stop what runs for nobody else and lock the person out of everything at once. Deleting also takes away who it was:
ledger, leases and audit stay, under a name that leads to nobody.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, TextField
from django.db.models.functions import Cast
from django.utils import timezone

from portal.account_mails import account_deleted
from portal.errors import DomainError
from portal.mails import language_of, written
from portal.models import ApiToken, AuditEvent, Invitation, Membership, SshKey, Tenant, User
from portal.owed_mails import owe
from portal.services import audit
from portal.sessions import end_sessions
from portal.signals import access_changed, account_closed, account_erased, ssh_keys_changed
from portal.suspension import MAX_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.models import QuerySet

    from portal.actor import Actor

logger = logging.getLogger(__name__)

NOBODY: Final = "deleted.invalid"  # a domain that can never exist (RFC 2606)


@dataclass(frozen=True)
class Effects:
    """What deleting an account does to the accounts' part; rental adds leases and money.

    ``alone``: tenants nobody else belongs to, closed with it. ``left``: organisations that go on without the person.
    ``ownerless``: those of them that would lose their last owner, which forbids the deletion.
    """

    alone: Sequence[Tenant]
    left: Sequence[Tenant]
    ownerless: Sequence[Tenant]
    ssh_keys: int
    tokens: int
    sessions: int


def effects(user: User) -> Effects:
    """Look, change nothing."""
    others = Membership.objects.filter(tenant=OuterRef("pk")).exclude(user=user)
    owners = others.filter(role=Membership.Role.OWNER, user__is_active=True)
    tenants = list(
        Tenant.objects.filter(memberships__user=user)
        .annotate(shared=Exists(others), has_owner=Exists(owners))
        .order_by("kind", "name")
    )
    left = [tenant for tenant in tenants if tenant.shared]
    owned = set(Membership.objects.filter(user=user, role=Membership.Role.OWNER).values_list("tenant_id", flat=True))
    return Effects(
        alone=[tenant for tenant in tenants if not tenant.shared],
        left=left,
        ownerless=[tenant for tenant in left if tenant.pk in owned and not tenant.has_owner],
        ssh_keys=SshKey.objects.filter(user=user).count(),
        tokens=ApiToken.objects.usable().filter(user=user).count(),
        sessions=UserSession.objects.filter(user=user).count(),
    )


@transaction.atomic
def deactivate(*, user: User, actor: Actor) -> User:
    """An operator closes an account: no login, token, key or session opens anything from now on. Twice is once.

    Tokens and keys are kept and work again after ``reactivate``; sessions do not come back.
    """
    user = User.objects.select_for_update().get(pk=user.pk)
    if user.is_active:
        _close(user, actor, deleted=False)
        audit(actor=actor, action="user.deactivated", obj=user)
    return user


@transaction.atomic
def reactivate(*, user: User, actor: Actor) -> User:
    """Open a closed account again. Refuses (409 ``account_deleted``) one that its owner has deleted."""
    user = User.objects.select_for_update().get(pk=user.pk)
    if is_deleted(user):
        raise DomainError("This account was deleted by its owner; nobody is left to use it.", code="account_deleted")
    if not user.is_active:
        user.is_active = True
        user.save(update_fields=["is_active"])
        audit(actor=actor, action="user.reactivated", obj=user)
        transaction.on_commit(lambda: ssh_keys_changed.send(sender=User, user=user))
    return user


@transaction.atomic
def delete_account(*, user: User, actor: Actor) -> None:
    """Delete an account for good. 409 ``last_owner`` while an organisation of several would lose its last owner."""
    user = User.objects.select_for_update().get(pk=user.pk)
    found = effects(user)
    if found.ownerless:
        names = ", ".join(tenant.name for tenant in found.ownerless)
        raise DomainError(f"Hand these organisations over first: {names}.", code="last_owner")
    address, language = user.email, language_of(user)
    found_addresses = EmailAddress.objects.filter(user=user)
    addresses = {address.lower(), *found_addresses.values_list("email", flat=True)}
    # A further address may be somebody else's, whose invitations are theirs, until it is confirmed.
    proved = {address.lower(), *found_addresses.filter(verified=True).values_list("email", flat=True)}
    _close(user, actor, deleted=True)
    ApiToken.objects.filter(user=user, revoked_at__isnull=True).update(revoked_at=timezone.now())
    audit(actor=actor, action="user.deleted", obj=user)
    _take_away(user, found)
    _make_anonymous(user, addresses | {address}, [tenant.pk for tenant in (*found.alone, *found.left)])
    _scrub_offers(proved, user.email)
    _scrub_reasons(proved, user.email)
    owe(written(address, language, account_deleted))


def is_deleted(user: User) -> bool:
    """Has its owner deleted this account?"""
    return user.email.endswith(f"@{NOBODY}")


def _close(user: User, actor: Actor, *, deleted: bool) -> None:
    user.is_active = False
    user.save(update_fields=["is_active"])
    tenant_ids = list(Membership.objects.filter(user=user).values_list("tenant_id", flat=True))
    account_closed.send(sender=User, user=user, actor=actor, deleted=deleted)
    end_sessions(user=user, sessions=UserSession.objects.filter(user=user), actor=actor)
    transaction.on_commit(lambda: ssh_keys_changed.send(sender=User, user=user, tenant_ids=tenant_ids))
    transaction.on_commit(lambda: access_changed.send(sender=User, tenant_ids=tenant_ids))


def _take_away(user: User, found: Effects) -> None:
    """What opened something, and the places beside others. Tenants of its own keep their member, for the books."""
    for model in (SshKey, EmailAddress, Authenticator):
        model.objects.filter(user=user).delete()
    Membership.objects.filter(user=user, tenant__in=found.left).delete()
    user.user_permissions.clear()


def _make_anonymous(user: User, addresses: set[str], tenant_ids: list[str]) -> None:
    label = f"{user.pk}@{NOBODY}"
    user.email, user.first_name, user.last_name, user.language = label, "", "", ""
    user.is_staff = user.is_superuser = False
    user.set_unusable_password()
    user.save()
    Tenant.objects.filter(pk__in=tenant_ids, kind=Tenant.Kind.PERSONAL).update(name=label)
    _scrub_audit(user, addresses, tenant_ids, label)
    account_erased.send(sender=User, user=user, addresses=sorted(addresses), label=label)


def _scrub_audit(user: User, addresses: set[str], tenant_ids: list[str], label: str) -> None:
    """Who did what stays; the address and where it was done from go."""
    AuditEvent.objects.filter(actor=user).update(actor_label=label, ip=None)
    own = Q(actor=user) | Q(object_type="user", object_id=user.pk)
    been_in = AuditEvent.objects.filter(own, tenant__isnull=False).order_by().values("tenant")
    _relabel(AuditEvent.objects.filter(own | Q(tenant__in=tenant_ids) | Q(tenant__in=been_in)), addresses, label)


def _scrub_offers(addresses: set[str], label: str) -> None:
    """Invitations to the person keep what became of them; one that is open offers a place to nobody, so it closes."""
    for address in addresses:
        offers = Invitation.objects.filter(email__iexact=address)
        told = AuditEvent.objects.filter(object_type="invitation", object_id__in=offers.order_by().values("pk"))
        _relabel(told, [address], label)
        offers.filter(state=Invitation.State.OPEN).update(state=Invitation.State.WITHDRAWN, closed_at=timezone.now())
        offers.update(email=label)


def _relabel(rows: QuerySet[AuditEvent], addresses: Iterable[str], label: str) -> None:
    """The label in place of the addresses in what these rows tell."""
    texts = rows.annotate(text=Cast("data", TextField()))
    for address in addresses:
        for row in texts.filter(text__icontains=address).only("data").iterator():
            row.data = json.loads(_without(json.dumps(row.data, ensure_ascii=False), address, label))
            row.save(update_fields=["data"])


def _scrub_reasons(addresses: set[str], label: str) -> None:
    """An operator may have written the address into the reason of a suspension."""
    for address in addresses:
        for row in Tenant.objects.filter(suspension_reason__icontains=address):
            # The label may be longer than what it stands for.
            row.suspension_reason = _without(row.suspension_reason, address, label)[:MAX_REASON]
            row.save(update_fields=["suspension_reason"])


def _without(text: str, address: str, label: str) -> str:
    """The text with the label in place of the address, however that is capitalised."""
    return re.sub(re.escape(address), label, text, flags=re.IGNORECASE)

"""Invitations into an organisation: made, sent again, withdrawn, accepted, declined.

The link in the mail is signed, opens a page and changes nothing by itself. It works for 7 days and once; sending it
again makes the older link void. Accepting needs the invited address, verified, on the account, or the link together
with an explicit word that this other account shall join.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from allauth.account.models import EmailAddress
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils import timezone, translation
from django.utils.translation import gettext as _

from portal import mail_tasks, members, rate_limits
from portal.errors import DomainError, InvalidInput, NotAllowed, NotFound
from portal.models import Invitation, Membership, Tenant, User
from portal.queue import enqueue
from portal.roles import Act, Role, may_touch
from portal.services import audit

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from portal.actor import Actor

LIFE: Final = timedelta(days=7)
MAX_OPEN: Final = 200  # of one tenant
MAX_EMAIL: Final = 254


def invite(*, tenant: Tenant, email: str, role: str, actor: Actor) -> Invitation:
    """Offer ``role`` to an address; the mail follows after commit.

    InvalidInput names ``email`` or ``role``; 409 ``already_member``, ``already_invited``; 429; owners invite owners.
    """
    email = _checked_email(email)
    if role not in Role.values:
        raise InvalidInput.field("role", _("There are: %s.") % ", ".join(Role.values))
    mine = members.require(actor=actor, tenant=tenant, act=Act.INVITE)
    _may_offer(mine, role)
    _take(tenant, email, actor)
    try:
        with transaction.atomic():
            _make_room(tenant, email)
            invitation = Invitation.objects.create(
                tenant=tenant,
                email=email,
                role=role,
                invited_by=actor.user,
                language=translation.get_language() or "",
                expires_at=timezone.now() + LIFE,
            )
            _note(actor, "invitation.sent", invitation)
            enqueue(mail_tasks.send_invitation, invitation.pk)
    except IntegrityError as error:  # the same address was invited at the same moment
        raise _already_invited() from error
    return invitation


def resend(*, invitation: Invitation, actor: Actor) -> Invitation:
    """Another mail with a new link and another 7 days; the link before opens nothing any more."""
    mine = members.require(actor=actor, tenant=invitation.tenant, act=Act.INVITE)
    _may_offer(mine, invitation.role)
    _take(invitation.tenant, invitation.email, actor)
    with transaction.atomic():
        row = _locked_open(invitation)
        row.round += 1
        row.expires_at = timezone.now() + LIFE
        row.save(update_fields=["round", "expires_at"])
        _note(actor, "invitation.resent", row)
        enqueue(mail_tasks.send_invitation, row.pk)
    return row


@transaction.atomic
def withdraw(*, invitation: Invitation, actor: Actor) -> None:
    """The link opens nothing any more. Withdrawing twice changes nothing."""
    members.require(actor=actor, tenant=invitation.tenant, act=Act.INVITE)
    if _close(invitation, Invitation.State.WITHDRAWN):
        _note(actor, "invitation.withdrawn", invitation)


@transaction.atomic
def accept(*, invitation: Invitation, actor: Actor, by_link: bool = False) -> Membership:
    """Join. ``by_link``: the caller showed the link of the mail and said that this account shall join.

    NotFound without either proof or when it is over. Who is a member already keeps their role.
    """
    user = actor.user
    if user is None or not (by_link or is_for(invitation, user)):
        raise NotFound("There is no such invitation.")
    Tenant.objects.select_for_update().get(pk=invitation.tenant_id)
    if not _close(invitation, Invitation.State.ACCEPTED):
        raise NotFound("There is no such invitation.")
    if Membership.objects.filter(user=user).count() >= members.MAX_TENANTS:
        raise DomainError(_("You are in %d tenants; leave one first.") % members.MAX_TENANTS, code="too_many")
    row, _new = Membership.objects.get_or_create(
        tenant=invitation.tenant, user=user, defaults={"role": invitation.role}
    )
    _note(actor, "invitation.accepted", invitation)
    members.tell_change(user=user, tenant_id=invitation.tenant_id)
    return row


@transaction.atomic
def decline(*, invitation: Invitation, actor: Actor, by_link: bool = False) -> None:
    """Say no; the organisation sees it."""
    if actor.user is None or not (by_link or is_for(invitation, actor.user)):
        raise NotFound("There is no such invitation.")
    if _close(invitation, Invitation.State.DECLINED):
        _note(actor, "invitation.declined", invitation)


def waiting_for(user: User) -> QuerySet[Invitation]:
    """Invitations to a verified address of this person, oldest first."""
    addresses = EmailAddress.objects.filter(user=user, verified=True).values_list("email", flat=True)
    wanted = [address.lower() for address in addresses]
    return Invitation.objects.waiting().select_related("tenant", "invited_by").filter(email__in=wanted)


def is_for(invitation: Invitation, user: User) -> bool:
    """Is the invited address a verified one of this person?"""
    return EmailAddress.objects.filter(user=user, verified=True, email__iexact=invitation.email).exists()


def _checked_email(email: str) -> str:
    email = email.strip().lower()
    try:
        validate_email(email)
    except ValidationError as error:
        raise InvalidInput.field("email", _("Enter an e-mail address such as kim@example.org.")) from error
    if len(email) > MAX_EMAIL:
        raise InvalidInput.field("email", _("Enter an e-mail address such as kim@example.org."))
    return email


def _may_offer(mine: Membership, role: str) -> None:
    if not may_touch(mine.role, role):
        raise NotAllowed(_("Only an owner makes and unmakes owners."))
    members.must_be_organisation(mine.tenant)
    if mine.tenant.suspended_at is not None:
        raise NotAllowed(_("This organisation is suspended; ask the operator."), code="tenant_suspended")


def _take(tenant: Tenant, email: str, actor: Actor) -> None:
    rate_limits.take(rate_limits.INVITATIONS_OF_TENANT, tenant.pk)
    rate_limits.take(rate_limits.INVITATIONS_OF_PERSON, actor.user.pk if actor.user else "")
    rate_limits.take(rate_limits.INVITATIONS_TO_ADDRESS, email)


def _make_room(tenant: Tenant, email: str) -> None:
    """Refuse a member, an open invitation, one too many; an invitation that ran out gives way to a new one."""
    Tenant.objects.select_for_update().get(pk=tenant.pk)
    if tenant.memberships.filter(user__email__iexact=email).exists():
        raise DomainError(_("This person is a member already."), code="already_member")
    opened = Invitation.objects.filter(tenant=tenant, state=Invitation.State.OPEN)
    now = timezone.now()
    opened.filter(email=email, expires_at__lte=now).update(state=Invitation.State.WITHDRAWN, closed_at=now)
    if opened.filter(email=email).exists():
        raise _already_invited()
    if opened.count() >= MAX_OPEN:
        raise DomainError(_("%d invitations are open; withdraw some first.") % MAX_OPEN, code="too_many")


def _already_invited() -> DomainError:
    return DomainError(_("This address is invited already; send that invitation again."), code="already_invited")


def _locked_open(invitation: Invitation) -> Invitation:
    rows = Invitation.objects.select_for_update(of=("self",)).select_related("tenant")
    row = rows.filter(pk=invitation.pk, state=Invitation.State.OPEN).first()
    if row is None:
        raise DomainError(_("This invitation has been answered or withdrawn."), code="illegal_state")
    return row


def _close(invitation: Invitation, state: str) -> bool:
    """One conditional UPDATE, so that an invitation is answered once. Only a withdrawal reaches one that ran out."""
    rows = Invitation.objects if state == Invitation.State.WITHDRAWN else Invitation.objects.waiting()
    found = rows.filter(pk=invitation.pk, round=invitation.round, state=Invitation.State.OPEN)
    return bool(found.update(state=state, closed_at=timezone.now()))


def _note(actor: Actor, action: str, invitation: Invitation) -> None:
    data = {"email": invitation.email, "role": invitation.role}
    audit(actor=actor, action=action, obj=invitation, tenant=invitation.tenant, data=data)

"""Audit rows for what happens inside allauth: logins, addresses, passwords, second factors. Connected in apps.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account import signals
from allauth.account.adapter import get_adapter
from allauth.mfa import signals as mfa_signals
from allauth.mfa.models import Authenticator
from django.contrib.auth.signals import user_logged_in, user_logged_out
from django.dispatch import receiver

from portal.actor import Actor, client_ip
from portal.models import User
from portal.services import audit

if TYPE_CHECKING:
    from allauth.account.models import EmailAddress
    from django.http import HttpRequest


def _note(action: str, user: User, request: HttpRequest | None, **data: Any) -> None:
    ip = client_ip(request) if request is not None else None
    audit(actor=Actor(label=user.email, user=user, ip=ip), action=action, obj=user, data=data)


@receiver(user_logged_in, dispatch_uid="audit-login")
def logged_in(sender: Any, request: HttpRequest | None, user: User, **_: Any) -> None:
    """A session began."""
    _note("user.logged_in", user, request)


@receiver(user_logged_out, dispatch_uid="audit-logout")
def logged_out(sender: Any, request: HttpRequest | None, user: User | None, **_: Any) -> None:
    """A session was ended by its owner."""
    if isinstance(user, User):
        _note("user.logged_out", user, request)


@receiver(signals.password_set, dispatch_uid="audit-password-set")
@receiver(signals.password_changed, dispatch_uid="audit-password-changed")
def password_changed(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """A signed-in person chose a new password."""
    _note("user.password_changed", user, request)


@receiver(signals.password_reset, dispatch_uid="audit-password-reset")
def password_reset(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """A new password by a link from a mail; all other sessions end with it."""
    _note("user.password_reset", user, request)


@receiver(signals.email_confirmed, dispatch_uid="audit-email-confirmed")
def email_confirmed(sender: Any, request: HttpRequest, email_address: EmailAddress, **_: Any) -> None:
    """An address was proved to be theirs."""
    _note("user.email_confirmed", email_address.user, request, email=email_address.email)


@receiver(signals.email_added, dispatch_uid="audit-email-added")
def email_added(sender: Any, request: HttpRequest, user: User, email_address: EmailAddress, **_: Any) -> None:
    """A further address was named."""
    _note("user.email_added", user, request, email=email_address.email)


@receiver(signals.email_removed, dispatch_uid="audit-email-removed")
def email_removed(sender: Any, request: HttpRequest, user: User, email_address: EmailAddress, **_: Any) -> None:
    """An address was dropped."""
    _note("user.email_removed", user, request, email=email_address.email)


@receiver(signals.email_changed, dispatch_uid="audit-email-changed")
def email_changed(
    sender: Any,
    request: HttpRequest,
    user: User,
    from_email_address: EmailAddress | None,
    to_email_address: EmailAddress,
    **_: Any,
) -> None:
    """Another address became the one they sign in with; at sign-up there was none before."""
    if from_email_address is None:
        return
    _note("user.email_changed", user, request, email=to_email_address.email)


@receiver(mfa_signals.authenticator_added, dispatch_uid="audit-mfa-added")
def second_factor_added(sender: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any) -> None:
    """An app, a passkey, or the recovery codes that come with the first of them."""
    _note("user.second_factor_added", user, request, type=authenticator.type)


@receiver(mfa_signals.authenticator_removed, dispatch_uid="audit-mfa-removed")
def second_factor_removed(
    sender: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any
) -> None:
    """One was taken away by its owner."""
    _note("user.second_factor_removed", user, request, type=authenticator.type)


@receiver(mfa_signals.authenticator_reset, dispatch_uid="audit-mfa-reset")
def recovery_codes_made(sender: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any) -> None:
    """New recovery codes in place of the old ones."""
    _note("user.recovery_codes_made", user, request)


@receiver(mfa_signals.authenticator_used, dispatch_uid="audit-mfa-used")
def second_factor_used(sender: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any) -> None:
    """A code or passkey was right. Of a recovery code, which its owner may not have used, a mail tells."""
    _note("user.second_factor_used", user, request, type=authenticator.type)
    if authenticator.type == Authenticator.Type.RECOVERY_CODES:
        get_adapter(request).send_notification_mail("account/email/recovery_code_used", user)


@receiver(mfa_signals.authentication_failed, dispatch_uid="audit-mfa-failed")
def second_factor_failed(sender: Any, request: HttpRequest, user: User, authenticator: Authenticator, **_: Any) -> None:
    """The password was right and the code was wrong: worth a look."""
    _note("user.second_factor_failed", user, request, type=authenticator.type)

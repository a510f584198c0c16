"""What is said to people about their account outside allauth's flows."""

from __future__ import annotations

from django.utils.translation import gettext as _

from portal.mails import Mail


def account_deleted() -> Mail:
    """The last mail to an address."""
    return Mail(
        subject=_("Your account is deleted"),
        text=_(
            "Your account was deleted, as you asked. Leases of yours alone are stopped and charged to the second. "
            "API tokens, SSH keys and sessions no longer open anything."
        ),
        after=_("If this was not you, write to the operators of this site now."),
    )


def second_factor_removed() -> Mail:
    """An operator took all second factors away."""
    return Mail(
        subject=_("Your second factor was removed"),
        text=_(
            "An operator removed all passkeys, the authenticator app and the recovery codes of your account. Sign in "
            "with your password and set up a new second factor."
        ),
        after=_("If you did not ask for this, write to the operators of this site now."),
    )

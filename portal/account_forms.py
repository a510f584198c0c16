"""Our forms in allauth's flows: one name for the address, what an unconfirmed one may do, whose passkeys count."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any
from urllib.parse import urlsplit

from allauth.account.forms import AddEmailForm, LoginForm, ResetPasswordForm, SignupForm
from allauth.account.models import EmailAddress
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

NOT_ACCEPTED = _("This passkey was not accepted. Try again, or use another way.")


class NamesTheAddress:
    """Forms that ask for an address call it as all our pages do; allauth has other spellings."""

    fields: dict[str, forms.Field]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in {"email", "login"} & self.fields.keys():
            field = self.fields[name]
            field.label = field.widget.attrs["placeholder"] = _("E-mail address")
            field.error_messages["invalid"] = _("Enter an e-mail address such as kim@example.org.")


class Login(NamesTheAddress, LoginForm):
    """Address and password."""


class ChangeAddress(NamesTheAddress, AddEmailForm):
    """The address that shall replace the present one."""


class SignUp(NamesTheAddress, SignupForm):
    """Sign-up. An address somebody only wants to change to is not taken: whoever has the mailbox decides."""

    def clean_email(self) -> str:
        """Drop such wishes of others before allauth looks whether the address is free."""
        wished = EmailAddress.objects.filter(email=self.cleaned_data["email"].lower(), verified=False, primary=False)
        wished.delete()
        email: str = super().clean_email()
        return email


class ResetPassword(NamesTheAddress, ResetPasswordForm):
    """A reset link goes to an account's own address, never to one it only wants to change to."""

    def clean_email(self) -> str:
        """Keep the users whose own or confirmed address this is."""
        email: str = super().clean_email()
        lowered = email.lower()
        confirmed = set(EmailAddress.objects.filter(email=lowered, verified=True).values_list("user_id", flat=True))
        self.users = [user for user in self.users if user.email.lower() == lowered or user.pk in confirmed]
        return email


class OnlyFromHere:
    """A passkey used on another page of the same site, a lease's app for example, opens nothing here."""

    cleaned_data: dict[str, Any]

    def clean_credential(self) -> Any:
        """Refuse a credential whose browser stood elsewhere; all other reasons get the same words."""
        _check_origin(self.cleaned_data["credential"])
        try:
            return super().clean_credential()  # type: ignore[misc]  # of allauth's form, which stands beside
        except ValidationError as error:
            if error.code == "too_many_login_attempts":
                raise
            raise ValidationError(NOT_ACCEPTED, code="passkey") from error


class PasskeyAsSecondFactor(OnlyFromHere, AuthenticateWebAuthnForm):
    """After the password."""


class PasskeyAlone(OnlyFromHere, LoginWebAuthnForm):
    """Instead of the password."""


class PasskeyAgain(OnlyFromHere, ReauthenticateWebAuthnForm):
    """Before a change."""


class AddPasskey(AddWebAuthnForm):
    """A new passkey or security key."""

    name = forms.CharField(
        label=_("Name"), max_length=80, required=False, help_text=_("How you recognise it, for example “laptop”.")
    )
    passwordless = forms.BooleanField(
        label=_("Sign in with it alone, without the password"),
        required=False,
        initial=True,
        help_text=_("It then asks for fingerprint, face or PIN. Switch this off for a security key that cannot."),
    )

    def clean(self) -> dict[str, Any]:
        """As allauth, and made on our own page."""
        credential = self.cleaned_data.get("credential")
        if credential:
            _check_origin(credential)
        try:
            cleaned: dict[str, Any] = super().clean()
        except ValidationError as error:
            raise ValidationError(NOT_ACCEPTED, code="passkey") from error
        return cleaned


def _check_origin(credential: Any) -> None:
    ours = urlsplit(settings.PORTAL_URL)
    try:
        data = str(credential["response"]["clientDataJSON"])
        said = json.loads(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
        origin = said["origin"]
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise ValidationError(NOT_ACCEPTED, code="passkey") from error
    if origin != f"{ours.scheme}://{ours.netloc}":
        raise ValidationError(NOT_ACCEPTED, code="passkey")

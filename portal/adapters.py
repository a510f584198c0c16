"""Where allauth's flows meet ours: the personal tenant at sign-up, client addresses, how a second factor is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from allauth.account.internal.flows.signup import prevent_enumeration
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib.sites.shortcuts import get_current_site
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.actor import Actor, client_ip
from portal.landing import Landing
from portal.login_limits import CalmLogin
from portal.owed_mails import owe
from portal.sealing import seal, unseal
from portal.services import audit, ensure_personal_tenant

if TYPE_CHECKING:
    from django.forms import BaseForm
    from django.http import HttpRequest

    from portal.models import User


class AccountAdapter(CalmLogin, Landing):
    """Our answers to the questions allauth asks."""

    only_tells = False
    error_messages = {
        **CalmLogin.error_messages,
        "duplicate_email": gettext_lazy("This e-mail address is the one of your account already."),
        "email_password_mismatch": gettext_lazy("The e-mail address or the password is not right."),
        "email_taken": gettext_lazy("Another account has this e-mail address."),
    }

    def save_user(  # type: ignore[override]  # every user here is our User
        self,
        request: HttpRequest,
        user: User,
        form: BaseForm,
        commit: bool = True,  # noqa: FBT001, FBT002  # allauth's signature
    ) -> User:
        """The new user, their personal tenant and the audit row, all or none."""
        try:
            with transaction.atomic():
                super().save_user(request, user, form, commit=commit)
                tenant = ensure_personal_tenant(user)
                actor = Actor(label=user.email, user=user, ip=client_ip(request))
                audit(actor=actor, action="user.signed_up", obj=user, tenant=tenant)
        except IntegrityError as error:
            # Two sign-ups with one address at once: the second sees what anyone sees whose address is taken.
            raise ImmediateHttpResponse(prevent_enumeration(request, email=user.email)) from error
        return user

    def send_notification_mail(self, *args: Any, **kwargs: Any) -> None:
        """A word about a change. Unlike mails whose link opens something it may be kept until a server takes it."""
        self.only_tells = True
        try:
            super().send_notification_mail(*args, **kwargs)
        finally:
            self.only_tells = False

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """Send it now, or owe it where it only tells: a change that was made is told whatever becomes of the server."""
        if not self.only_tells:
            super().send_mail(template_prefix, email, context)
            return
        facts = {"request": self.request, "email": email, "current_site": get_current_site(self.request), **context}
        owe(self.render_mail(template_prefix, email, facts))

    def get_client_ip(self, request: HttpRequest) -> str:
        """For allauth's rate limits: one rule for the whole portal about which proxies are believed."""
        return client_ip(request) or "0.0.0.0"  # noqa: S104  # no address known: one shared bucket, not a bind

    def get_reauthentication_methods(self, user: Any) -> list[dict[str, Any]]:
        """Who has a second factor confirms changes with it: an open browser and a stolen password are not enough."""
        methods: list[dict[str, Any]] = super().get_reauthentication_methods(user)
        strong = [method for method in methods if method["id"].startswith("mfa")]
        return strong or methods

    def reauthenticate(self, user: Any, password: str) -> bool:
        """The same rule for whoever sends the password form all the same."""
        return not is_mfa_enabled(user) and bool(super().reauthenticate(user, password))


class SecondFactorAdapter(DefaultMFAAdapter):
    """Seeds are sealed; passkeys belong to the portal's name, whatever name a request came by."""

    def encrypt(self, text: str) -> str:
        """For the database."""
        return seal(text)

    def decrypt(self, encrypted_text: str) -> str:
        """From the database."""
        return unseal(encrypted_text)

    def generate_authenticator_name(self, user: Any, type: Authenticator.Type) -> str:  # noqa: A002  # allauth's name
        """What a new passkey is called until its owner says otherwise."""
        count = Authenticator.objects.filter(user=user, type=type).count()
        return _("Passkey %(number)s") % {"number": count + 1}

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        """Who asks for a passkey."""
        return {"id": urlsplit(settings.PORTAL_URL).hostname or "", "name": settings.SITE_NAME}

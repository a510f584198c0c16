"""Where allauth's flows meet ours: the personal tenant at sign-up, client addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows.signup import prevent_enumeration
from allauth.core.exceptions import ImmediateHttpResponse
from django.db import IntegrityError, transaction

from portal.actor import Actor, client_ip
from portal.services import audit, ensure_personal_tenant

if TYPE_CHECKING:
    from django.forms import BaseForm
    from django.http import HttpRequest

    from portal.models import User


class AccountAdapter(DefaultAccountAdapter):
    """Our answers to the questions allauth asks."""

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

    def get_client_ip(self, request: HttpRequest) -> str:
        """For allauth's rate limits: one rule for the whole portal about which proxies are believed."""
        return client_ip(request) or "0.0.0.0"  # noqa: S104  # no address known: one shared bucket, not a bind

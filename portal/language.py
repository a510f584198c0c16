"""The language a person reads: kept with the account when they sign up or switch, so that mails come in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.signals import user_signed_up
from django.conf import settings
from django.dispatch import receiver
from django.utils import translation
from django.views.decorators.http import require_POST
from django.views.i18n import set_language as keep_in_cookie

from portal.models import User

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponseBase


@require_POST
def set_language(request: HttpRequest) -> HttpResponseBase:
    """Django's own view, which keeps the choice in a cookie; who is signed in gets mails in it as well."""
    chosen = request.POST.get("language", "")
    if isinstance(request.user, User) and chosen in dict(settings.LANGUAGES):
        User.objects.filter(pk=request.user.pk).update(language=chosen)
    return keep_in_cookie(request)


@receiver(user_signed_up, dispatch_uid="language-of-sign-up")
def signed_up(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """They read the page of the sign-up in this language."""
    spoken = translation.get_language() or ""
    if spoken in dict(settings.LANGUAGES):
        User.objects.filter(pk=user.pk).update(language=spoken)

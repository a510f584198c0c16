"""Who gets into the admin: active staff whose session has shown a second factor that still exists.

A session that signed in without one is sent to show it, staff who have none are sent to set one up. STAFF_MFA=false
turns this off, for a demo on loopback (check portal.W004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.internal.flows.login import get_authentication_records
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.shortcuts import redirect, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _

from portal.models import User

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite
    from django.http import HttpRequest, HttpResponse

STRONG = [Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN]


def showed_second_factor(request: HttpRequest) -> bool:
    """Did this session prove a second factor (code, recovery code, passkey) that the person still has?"""
    user = request.user
    if not isinstance(user, User):
        return False
    shown = [row.get("id") for row in get_authentication_records(request, user) if row.get("method") == "mfa"]
    return bool(shown) and Authenticator.objects.filter(user=user, pk__in=shown).exists()


def may_enter(request: HttpRequest) -> bool:
    """What the admin asks before each of its pages."""
    user = request.user
    if not (isinstance(user, User) and user.is_active and user.is_staff):
        return False
    return not settings.STAFF_MFA or showed_second_factor(request)


def entrance(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """The admin's login page: the portal's own, then what is still missing. 403 for those who are no staff."""
    target = _target(request)
    user = request.user
    if not isinstance(user, User):
        return redirect_to_login(target, login_url=resolve_url(settings.LOGIN_URL))
    if not user.is_staff:
        raise PermissionDenied
    if may_enter(request):
        return HttpResponseRedirect(target)
    if is_mfa_enabled(user, STRONG):
        way = f"{reverse(_way_to_show(user))}?{urlencode({REDIRECT_FIELD_NAME: target})}"
        return HttpResponseRedirect(way)
    messages.warning(request, _("The admin needs a second factor. Add a passkey or an authenticator app first."))
    return redirect("mfa_index")


def guard(site: AdminSite) -> None:
    """Put these rules in front of the admin; its own login and password pages are not used."""
    site.has_permission = may_enter  # type: ignore[method-assign]
    site.login = entrance  # type: ignore[method-assign]
    site.password_change = _own_password_page  # type: ignore[method-assign, assignment]


def _own_password_page(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
    """The portal's page sends the mail and writes the audit row."""
    return redirect("account_change_password")


def _way_to_show(user: User) -> str:
    totp = is_mfa_enabled(user, [Authenticator.Type.TOTP])
    return "mfa_reauthenticate" if totp else "mfa_reauthenticate_webauthn"


def _target(request: HttpRequest) -> str:
    wanted = request.GET.get(REDIRECT_FIELD_NAME) or request.POST.get(REDIRECT_FIELD_NAME) or ""
    here = {request.get_host()}
    safe = url_has_allowed_host_and_scheme(wanted, allowed_hosts=here, require_https=request.is_secure())
    return wanted if safe else reverse("admin:index")

"""Guessing passwords is slow, and nobody can lock somebody else out by guessing wrong (case H12).

Three counts of wrong passwords: of an address, of an address for one account, and, much slower, of everybody for one
account. A device on which the account was signed in before has its own count instead of all three: a signed cookie
says so. A link from a mail (password reset) starts the account's count anew and makes the device a known one.
Which mail addresses have an account makes no difference to any of this.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.signals import password_reset
from django.conf import settings
from django.contrib.auth.signals import user_logged_in
from django.core import signing
from django.dispatch import receiver
from django.shortcuts import render
from django.utils.crypto import salted_hmac

from portal import problems, rate_limits
from portal.rate_limits import (
    WRONG_FOR_ACCOUNT,
    WRONG_FOR_ACCOUNT_HERE,
    WRONG_FROM_ADDRESS,
    WRONG_FROM_ADDRESS_SLOWLY,
    WRONG_ON_KNOWN_DEVICE,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

    from portal.models import User

COOKIE: Final = "device"
SALT: Final = "portal.device"
YEAR_S: Final = 31_536_000
MOST_ACCOUNTS: Final = 5  # remembered on one device, the newest first
ABOUT_A_WINDOW_S: Final = 60  # allauth does not tell when its own limits end; most are per minute


class CalmLogin(DefaultAccountAdapter):
    """The part of our allauth adapter that counts wrong passwords; allauth's own count locks accounts (5 in 5 min)."""

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Instead of allauth's count; see ``authenticate``."""

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """The user, or None for a wrong password. Raises TooManyRequests.

        A try counts before it is looked at, so that many at once do not slip through; a right one is taken back.
        """
        buckets = _buckets(request, str(credentials.get("email", "")))
        for limit, bucket in buckets:
            rate_limits.take(limit, *bucket)
        user = super().authenticate(request, **credentials)
        if user is not None:
            for limit, bucket in buckets:
                rate_limits.give_back(limit, *bucket)
        return user


class RememberDevice:
    """Middleware: after a sign-in or a reset, the cookie that makes this device a known one for that account."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Set the cookie where a signal asked for it."""
        response = self.get_response(request)
        accounts: list[str] | None = getattr(request, "_lessor_known", None)
        if accounts:
            nonce, known = _device(request)
            kept = list(dict.fromkeys([*accounts, *known]))[:MOST_ACCOUNTS]
            response.set_cookie(
                COOKIE,
                signing.dumps([nonce or secrets.token_urlsafe(12), *kept], salt=SALT),
                max_age=YEAR_S,
                secure=settings.SESSION_COOKIE_SECURE,
                httponly=True,
                samesite="Lax",
            )
        return response


@receiver(user_logged_in, dispatch_uid="known-device-login")
def signed_in(sender: Any, request: HttpRequest | None, user: User, **_: Any) -> None:
    """All steps of a sign-in are done on this device."""
    if request is not None:
        _remember(request, user.email, str(request.POST.get("login", "")))


@receiver(password_reset, dispatch_uid="known-device-reset")
def reset_by_mail(sender: Any, request: HttpRequest, user: User, **_: Any) -> None:
    """Whoever reads the account's mail gets in, whatever others have tried meanwhile."""
    rate_limits.forget(WRONG_FOR_ACCOUNT, _account(user.email))
    rate_limits.forget(WRONG_FOR_ACCOUNT_HERE, rate_limits.place_of(request), _account(user.email))
    _remember(request, user.email)


def too_many(request: HttpRequest) -> HttpResponse:
    """handler429, which allauth calls for its own limits: a page, or a problem document."""
    error = rate_limits.refusal(ABOUT_A_WINDOW_S)
    answer: HttpResponse
    if problems.wanted_by(request):
        answer = problems.response(error.status, error.code, error.detail)
    else:
        answer = render(request, "429.html", {"error": error}, status=error.status)
    answer["Retry-After"] = str(error.retry_after)
    return answer


def _buckets(request: HttpRequest, email: str) -> list[tuple[rate_limits.Limit, tuple[str, ...]]]:
    account = _account(email)
    nonce, known = _device(request)
    if account in known:
        return [(WRONG_ON_KNOWN_DEVICE, (nonce, account))]
    place = rate_limits.place_of(request)
    return [
        (WRONG_FROM_ADDRESS, (place,)),
        (WRONG_FROM_ADDRESS_SLOWLY, (place,)),
        (WRONG_FOR_ACCOUNT_HERE, (place, account)),
        (WRONG_FOR_ACCOUNT, (account,)),
    ]


def _remember(request: HttpRequest, *emails: str) -> None:
    request._lessor_known = [_account(email) for email in emails if email]  # type: ignore[attr-defined]  # noqa: SLF001  # our own mark, read by the middleware


def _account(email: str) -> str:
    return salted_hmac(SALT, email.strip().lower()).hexdigest()[:24]


def _device(request: HttpRequest) -> tuple[str, list[str]]:
    """The device's own number and the accounts known on it; empty for a cookie that is not ours."""
    try:
        nonce, *known = signing.loads(request.COOKIES.get(COOKIE, ""), salt=SALT, max_age=YEAR_S)
    except (signing.BadSignature, ValueError, TypeError):
        return "", []
    return str(nonce), [str(account) for account in known]

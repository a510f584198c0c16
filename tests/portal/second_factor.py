"""What a person with an authenticator app does: sets it up, reads codes off it, signs in with one."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, generate_totp_secret, hotp_value
from django.conf import settings
from django.core.cache import cache
from django.urls import reverse

from tests import make

if TYPE_CHECKING:
    from django.test import Client
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

    from portal.models import User

PERIOD_S = 30


def code_of(secret: str) -> str:
    """What the app shows now."""
    return format_hotp_value(hotp_value(secret, int(time.time()) // PERIOD_S))


def with_app(user: User) -> str:
    """Give the user an authenticator app and recovery codes; the app's secret."""
    secret: str = generate_totp_secret()
    TOTP.activate(user, secret)
    RecoveryCodes.activate(user)
    return secret


def recovery_codes(user: User) -> list[str]:
    """Those that are left."""
    codes: list[str] = Authenticator.objects.get(user=user, type="recovery_codes").wrap().get_unused_codes()
    return codes


def log_in(client: Client, user: User, target: str = "") -> Answer:
    """The first step: address and password."""
    address = reverse("account_login") + (f"?next={target}" if target else "")
    return client.post(address, {"login": user.email, "password": make.PASSWORD, "next": target})


def log_in_with_app(client: Client, user: User, secret: str, target: str = "") -> Answer:
    """Both steps. Codes used before count as new: a test does not wait for the next one."""
    assert log_in(client, user, target)["Location"] == reverse("mfa_authenticate")
    cache.clear()
    return client.post(reverse("mfa_authenticate"), {"code": code_of(secret)})


def confirm_password(client: Client) -> Answer:
    """Prove once more who it is, with the password."""
    return client.post(reverse("account_reauthenticate"), {"password": make.PASSWORD})


def confirm_code(client: Client, code: str) -> Answer:
    """Prove once more who it is, with a code."""
    return client.post(reverse("mfa_reauthenticate"), {"code": code})


def secret_on(page: Any) -> str:
    """The key that the set-up page shows for typing."""
    found = re.search(r"data-copy-text>([A-Z2-7]{32})<", page.content.decode())
    assert found
    return found[1]


def origin() -> str:
    """Where our own pages stand."""
    return str(settings.PORTAL_URL)

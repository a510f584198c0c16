"""System checks of the settings (portal.E0xx, portal.W0xx): a contradiction is said at start, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

from portal.currencies import CURRENCIES
from portal.permissions import ANYONE, PUBLIC
from portal.routes import SAFE, every_route
from portal.tokens import SCOPES

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_SECRET: Final = 32  # characters; 32 random ones are beyond guessing, "changeme" is not
LEAST_KINDS: Final = 5  # different characters; catches "aaaa…"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@register
def secret_key(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """E001: sessions, quotes and reset links are signed with SECRET_KEY."""
    key = settings.SECRET_KEY
    if settings.TESTING or settings.DEBUG or (len(key) >= LEAST_SECRET and len(set(key)) >= LEAST_KINDS):
        return []
    hint = "python3 -c 'import secrets; print(secrets.token_urlsafe(48))'"
    return [Error(f"SECRET_KEY must be at least {LEAST_SECRET} random characters.", hint=hint, id="portal.E001")]


@register
def portal_url(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """E002: PORTAL_URL must be a bare address. W001: plain HTTP shows passwords and tokens to the network."""
    parts = urlsplit(settings.PORTAL_URL)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or parts.username:
        sentence = f"PORTAL_URL must look like https://gpu.example.org, not {settings.PORTAL_URL!r}."
        return [Error(sentence, id="portal.E002")]
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not parts.hostname.endswith(".localhost"):
        hint = "Put a TLS proxy in front, set PORTAL_URL=https://… and TLS_BY_PROXY=true."
        sentence = "PORTAL_URL is plain HTTP on a network: passwords and tokens can be read on the way."
        return [Caution(sentence, hint=hint, id="portal.W001")]
    return []


@register
def staff_mfa(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """W004: a stolen password of an operator would open the whole fleet."""
    if settings.STAFF_MFA or settings.TESTING or urlsplit(settings.PORTAL_URL).hostname in LOOPBACK:
        return []
    sentence = "STAFF_MFA is off: the admin opens to a password alone."
    return [Caution(sentence, hint="Remove STAFF_MFA=false.", id="portal.W004")]


@register
def currency(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """E003: CURRENCY must be a code of ISO 4217."""
    if settings.CURRENCY in CURRENCIES:
        return []
    return [Error(f"CURRENCY must be an ISO 4217 code such as USD, not {settings.CURRENCY!r}.", id="portal.E003")]


@register
def tls_by_proxy(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """W002: https outside and no word about the proxy means that every request looks like plain HTTP."""
    if not settings.HTTPS or settings.TESTING or getattr(settings, "SECURE_PROXY_SSL_HEADER", None):
        return []
    sentence = "PORTAL_URL is https, but TLS_BY_PROXY is not set: Lessor itself speaks plain HTTP."
    return [
        Caution(sentence, hint="Set TLS_BY_PROXY=true behind a proxy that sets X-Forwarded-Proto.", id="portal.W002")
    ]


@register
def api_scopes(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """E010: a view of /api/v1/ says no scope for a method. E011: a write is public. E012: there is no such scope."""
    found: list[CheckMessage] = []
    for route in every_route():
        if not route.path.startswith("api/v1/"):
            continue
        table: dict[str, str] = getattr(route.view_class, "scopes", {})
        silent = sorted(route.methods() - table.keys())
        found += [Error(f"{method} /{route.path} declares no scope.", id="portal.E010") for method in silent]
        for method, scope in table.items():
            if scope == PUBLIC and method not in SAFE:
                found.append(Error(f"{method} /{route.path} is a public write.", id="portal.E011"))
            elif scope not in {*SCOPES, PUBLIC, ANYONE}:
                found.append(Error(f"{method} /{route.path}: there is no scope {scope!r}.", id="portal.E012"))
    return found

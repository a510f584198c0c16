"""System checks of the node broker's settings (nodes.E0xx, nodes.W0xx)."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.checks import Warning as Caution

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES: Final = ("NODE_BROKER_URL", "NODE_BROKER_PUBLIC_URL")


@register
def broker_urls(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """E001: a broker is redis:// or rediss://, with a host. An empty NODE_BROKER_URL means: no broker, agents pull."""
    if not settings.NODE_BROKER_URL:
        return []
    return [
        Error(f"{name} must look like rediss://broker.example.org:6379/0.", id="nodes.E001")
        for name in NAMES
        if not _usable(urlsplit(getattr(settings, name)))
    ]


@register
def broker_on_the_network(app_configs: Sequence[Any] | None, **_: Any) -> list[CheckMessage]:
    """W001: node passwords travel in the clear. W002: whoever reaches the broker is its administrator."""
    public = urlsplit(settings.NODE_BROKER_PUBLIC_URL)
    if not settings.NODE_BROKER_URL or not _usable(public) or _is_loopback(public.hostname or ""):
        return []
    found: list[CheckMessage] = []
    if public.scheme == "redis":
        sentence = (
            "NODE_BROKER_PUBLIC_URL is plain redis:// on a network: the passwords of nodes can be read on the way."
        )
        found.append(Caution(sentence, hint="Give the broker a TLS port and use rediss://.", id="nodes.W001"))
    if not urlsplit(settings.NODE_BROKER_URL).password:
        sentence = "NODE_BROKER_URL has no password, but nodes reach the broker by the network: anyone there rules it."
        hint = "Give the broker's default user a password (requirepass), or turn it off and use a user of our own."
        found.append(Caution(sentence, hint=hint, id="nodes.W002"))
    return found


def _usable(parts: SplitResult) -> bool:
    return parts.scheme in {"redis", "rediss"} and bool(parts.hostname)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")

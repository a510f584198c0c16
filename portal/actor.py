"""Who does something: a person in the browser, a program with a token, a node, or a part of Lessor itself."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.conf import settings

from portal.models import ApiToken, User

if TYPE_CHECKING:
    from django.http import HttpRequest

PORT: Final = re.compile(r"\[([^\]]+)\](?::\d+)?|([\d.]+):\d+")  # some proxies write the port as well


@dataclass(frozen=True)
class Actor:
    """Stands in audit rows and lease events. ``label`` is the e-mail, or the name of the part of Lessor."""

    label: str
    user: User | None = None
    token: ApiToken | None = None
    ip: str | None = None

    @classmethod
    def system(cls, part: str) -> Actor:
        """A part of Lessor, for example ``deadlines`` or ``node ams-02``."""
        return cls(label=part)

    @classmethod
    def of_user(cls, user: User) -> Actor:
        """A person at a command line."""
        return cls(label=user.email, user=user)

    @classmethod
    def of(cls, request: HttpRequest) -> Actor:
        """The person or program behind a request."""
        user = request.user if isinstance(request.user, User) else None
        token = getattr(request, "auth", None)
        return cls(
            label=user.email if user else "anonymous",
            user=user,
            token=token if isinstance(token, ApiToken) else None,
            ip=client_ip(request),
        )


def client_ip(request: HttpRequest) -> str | None:
    """The client's address, the one rule of the portal; None where the server knows none.

    X-Forwarded-For counts only for as many proxies as TRUSTED_PROXIES says stand in front. Whatever else a request
    claims (X-Real-IP, Forwarded, entries further left) is the client's own word and never read.
    """
    peer = _address(request.META.get("REMOTE_ADDR", ""))
    if not settings.TRUSTED_PROXIES:
        return peer
    chain = [part for part in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",") if part.strip()]
    if len(chain) < settings.TRUSTED_PROXIES:
        return peer  # it came past the proxies
    # The last entry was written by the nearest proxy; anything before our own proxies is the client's own claim.
    return _address(chain[-settings.TRUSTED_PROXIES]) or peer


def _address(text: str) -> str | None:
    """An address as the database keeps it: no port, no brackets, no zone, IPv4 as IPv4. None for anything else."""
    text = text.strip()
    bracketed = PORT.fullmatch(text)
    try:
        address = ipaddress.ip_address(bracketed[1] or bracketed[2] if bracketed else text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)

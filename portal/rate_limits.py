"""How often something may be done: counters in the cache (one Redis for all workers), 429 and Retry-After beyond.

A limit counts in fixed windows, so at most twice its number fits around the turn of a window. A bucket is an address
(its network: an IPv6 customer has a whole /64), a tenant, an account, or several of these together. Without Redis
nothing can be counted: what guards a password then refuses (`strict`), everything else goes on.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.core.cache import cache
from django.utils.translation import gettext as _

from portal.actor import client_ip
from portal.errors import TooManyRequests

if TYPE_CHECKING:
    from django.http import HttpRequest

logger = logging.getLogger(__name__)

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
IPV6_CUSTOMER: Final = 64  # bits that one customer of a provider holds
REST_S: Final = 5  # a cache that did not answer is left alone for this long
_rest_until = 0.0


@dataclass(frozen=True)
class Limit:
    """At most ``amount`` in ``seconds`` for one bucket. ``strict``: refused as well when nothing can be counted."""

    name: str
    amount: int
    seconds: int
    strict: bool = False


# Wrong secrets of the API and the node API, per address. Right ones always pass: others behind that address go on.
WRONG_TOKENS: Final = Limit("wrong-tokens", 30, MINUTE)
# Wrong passwords: per address; per address and account; per account from everywhere (docs/accounts.md).
WRONG_FROM_ADDRESS: Final = Limit("wrong-from-address", 20, 5 * MINUTE, strict=True)
WRONG_FROM_ADDRESS_SLOWLY: Final = Limit("wrong-from-address-slowly", 100, HOUR, strict=True)
WRONG_FOR_ACCOUNT_HERE: Final = Limit("wrong-for-account-here", 5, 5 * MINUTE, strict=True)
WRONG_FOR_ACCOUNT: Final = Limit("wrong-for-account", 50, HOUR, strict=True)
WRONG_ON_KNOWN_DEVICE: Final = Limit("wrong-on-known-device", 10, 5 * MINUTE, strict=True)
# Mail to people who did not ask for it is what invitations could be misused for.
INVITATIONS_OF_TENANT: Final = Limit("invitations-of-tenant", 60, HOUR)
INVITATIONS_OF_PERSON: Final = Limit("invitations-of-person", 100, DAY)
INVITATIONS_TO_ADDRESS: Final = Limit("invitations-to-address", 5, DAY)
NEW_PLACE_MAILS: Final = Limit("new-place-mails", 5, DAY)


def quotes() -> Limit:
    """Prices asked for by one tenant."""
    return Limit("quotes", settings.QUOTES_PER_MINUTE, MINUTE)


def orders() -> Limit:
    """Leases ordered by one tenant."""
    return Limit("orders", settings.ORDERS_PER_MINUTE, MINUTE)


def take(limit: Limit, *bucket: str) -> None:
    """Count one more in this bucket; TooManyRequests once it is over the limit."""
    count = _count(limit, bucket)
    if count is None and not limit.strict:
        return
    if count is None or count > limit.amount:
        raise refusal(_left(limit))


def is_full(limit: Limit, *bucket: str) -> bool:
    """Would the next one be refused?"""
    seen = cache.get(_key(limit, bucket))
    return isinstance(seen, int) and seen >= limit.amount


def give_back(limit: Limit, *bucket: str) -> None:
    """Take back one that was counted a moment ago."""
    with suppress(ValueError):  # its window has ended
        cache.decr(_key(limit, bucket))


def forget(limit: Limit, *bucket: str) -> None:
    """Start this bucket anew."""
    cache.delete(_key(limit, bucket))


def refusal(seconds: int) -> TooManyRequests:
    """The error that says when to come back."""
    return TooManyRequests(_("Too many tries, one after another. Wait a little, then try again."), retry_after=seconds)


def place_of(request: HttpRequest) -> str:
    """The bucket of an address: itself for IPv4, its /64 for IPv6; ``unknown`` where none is known."""
    return network(client_ip(request), ipv4=32, ipv6=IPV6_CUSTOMER) or "unknown"


def network(ip: str | None, *, ipv4: int, ipv6: int) -> str:
    """The network of an address with this many leading bits, for example ``203.0.113.0/24``; empty for no address."""
    try:
        address = ipaddress.ip_address(ip or "")
    except ValueError:
        return ""
    bits = ipv4 if address.version == 4 else ipv6  # noqa: PLR2004  # the version's own number
    return str(ipaddress.ip_network(f"{address}/{bits}", strict=False))


def resting() -> bool:
    """Did the cache fail a moment ago?"""
    return time.monotonic() < _rest_until


def _count(limit: Limit, bucket: tuple[str, ...]) -> int | None:
    """How many there are in this window with this one; None when the cache does not answer."""
    global _rest_until  # noqa: PLW0603  # one short memory per process, as in nodes/broker.py
    if resting():
        return None
    key = _key(limit, bucket)
    try:
        cache.add(key, 0, timeout=limit.seconds + 1)
        count = cache.incr(key)
    except ValueError:
        count = None  # Redis is away (the cache says "no such key"), or the window has just ended
    if not isinstance(count, int):
        _rest_until = time.monotonic() + REST_S
        logger.warning("rate limits: the cache does not answer; %s is not counted", limit.name)
        return None
    return count


def _key(limit: Limit, bucket: tuple[str, ...]) -> str:
    """Addresses and accounts are not readable in Redis."""
    digest = hashlib.sha256("\x00".join(bucket).encode()).hexdigest()[:32]
    return f"limit:{limit.name}:{int(time.time()) // limit.seconds}:{digest}"


def _left(limit: Limit) -> int:
    return limit.seconds - int(time.time()) % limit.seconds

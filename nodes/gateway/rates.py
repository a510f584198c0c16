"""How often something may happen: logins from one address, lines about refusals."""

from __future__ import annotations

import ipaddress
import time

MAX_ADDRESSES = 20_000  # more at a time are one crowd, and share a bucket
CROWD = ""


class Bucket:
    """Lets `burst` through at once and `per_s` a second from then on."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = burst
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether one more may pass now."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def full(self) -> bool:
        """Whether nothing was taken for so long that it may be forgotten."""
        return self._left + (time.monotonic() - self._at) * self._per_s >= self._burst


class DoorRate:
    """One bucket for each address that connects: an IPv4 address, an IPv6 network of 64 bits."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._buckets: dict[str, Bucket] = {}

    def admits(self, address: str) -> bool:
        """Whether one more connection from there may begin to log in."""
        place = _place(address)
        if place not in self._buckets and len(self._buckets) >= MAX_ADDRESSES:
            self._forget_the_quiet()
        if place not in self._buckets and len(self._buckets) >= MAX_ADDRESSES:
            place = CROWD
        bucket = self._buckets.setdefault(place, Bucket(self._per_s, self._burst))
        return bucket.take()

    def _forget_the_quiet(self) -> None:
        self._buckets = {place: bucket for place, bucket in self._buckets.items() if not bucket.full()}


def _place(address: str) -> str:
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return CROWD
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is None:
        return str(ipaddress.ip_network((known, 64), strict=False))
    return str(known)

"""The portal's certificates: what one must look like to open a lease.

asyncssh checks the signature and the clock; it would also take certificates without a principal, with several, or valid
for years. The portal makes one kind only, so everything else is refused here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

ALGORITHM = "ssh-ed25519-cert-v01@openssh.com"
USER = 1
MAX_VALID_S = 60


@dataclass(frozen=True)
class Certificate:
    """The fields that decide, as they stand in the certificate. Times are seconds since 1970."""

    kind: int
    principals: tuple[str, ...]
    valid_after: int
    valid_before: int
    critical_options: bytes

    def fault(self, lease_id: str, now: float) -> str:
        """Why it does not open this lease at this moment; empty where it may, if a CA of the lease has signed it."""
        if self.kind != USER:
            return "not a user certificate"
        if self.principals != (lease_id,):
            return "made for another lease"
        if self.critical_options:
            return "has critical options"
        if self.valid_before - self.valid_after > MAX_VALID_S:
            return "valid for too long"
        return "" if self.valid_after <= now < self.valid_before else "not valid now"


def read(blob: bytes) -> Certificate | None:
    """The certificate in a public key blob; None for plain keys, other kinds of certificates and garbage."""
    fields = _Fields(blob)
    try:
        if fields.text() != ALGORITHM.encode():
            return None
        fields.text()  # nonce
        fields.text()  # public key
        fields.number("Q")  # serial
        kind = fields.number("L")
        fields.text()  # key id
        principals = tuple(name.decode() for name in _Fields(fields.text()).rest())
        after, before = fields.number("Q"), fields.number("Q")
        return Certificate(kind, principals, after, before, fields.text())
    except (struct.error, ValueError):
        return None


class _Fields:
    """Reads the fields of an SSH structure one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def number(self, size: str) -> int:
        """An unsigned integer: L of 4 bytes, Q of 8. Raises struct.error at the end of the data."""
        (number,) = struct.unpack_from(f">{size}", self._data, self._place)
        self._place += struct.calcsize(f">{size}")
        return int(number)

    def text(self) -> bytes:
        """A string with its length before it."""
        length = self.number("L")
        end = self._place + length
        if end > len(self._data):
            raise ValueError("a field is longer than the structure")
        piece, self._place = self._data[self._place : end], end
        return piece

    def rest(self) -> list[bytes]:
        """All strings up to the end."""
        found = []
        while self._place < len(self._data):
            found.append(self.text())
        return found

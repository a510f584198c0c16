"""Who may come in: the agent's leases.json, read anew whenever it was replaced."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseKeys:
    """Keys of one lease, as public key blobs. A connection made with `probe` may run the probe and nothing else.

    Certificates signed by one of `authorities` open the lease too, see nodes/gateway/certificates.py.
    """

    keys: Mapping[bytes, str] = field(default_factory=dict)  # blob → SHA256 fingerprint
    probe: bytes | None = None
    authorities: frozenset[bytes] = frozenset()

    def admits(self, blob: bytes) -> bool:
        """Whether a key with this blob may log in at all."""
        return blob in self.keys or blob == self.probe


NOBODY = LeaseKeys()


class LeaseBook:
    """The current content of leases.json.

    A missing file lets nobody in; a garbled one keeps the last that could be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._leases: dict[str, LeaseKeys] = {}
        self._readings = 0

    def refresh(self) -> int:
        """Look at the file; how often its content was read anew. Whoever acts on changes compares with what they saw.

        A login or a question of the agent may read a change first: "it changed just now" would be true for them alone.
        """
        try:
            facts = self._path.stat()
            version = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
            if version != self._seen:
                self._seen = version
                self._leases = _parse(self._path.read_text())
                self._readings += 1
        except FileNotFoundError:
            self._readings += bool(self._leases)
            self._seen, self._leases = None, {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("leases.json cannot be read, keeping what was known: %s", type(error).__name__)  # noqa: TRY400
        return self._readings

    def of(self, lease_id: str) -> LeaseKeys:
        """The keys of a lease, read fresh; an unknown lease has none."""
        self.refresh()
        return self._leases.get(lease_id, NOBODY)

    def lease_ids(self) -> frozenset[str]:
        """The leases that somebody may come into now."""
        return frozenset(self._leases)


def _parse(text: str) -> dict[str, LeaseKeys]:
    leases = {}
    for lease_id, entry in json.loads(text)["leases"].items():
        keys = dict(_keys(lease_id, entry["keys"]))
        probe = _key(lease_id, entry["probe_key"]) if entry.get("probe_key") else None
        authorities = frozenset(blob for blob, _ in _keys(lease_id, entry.get("ca", ())))
        leases[lease_id] = LeaseKeys(keys, probe[0] if probe else None, authorities)
    return leases


def _keys(lease_id: str, lines: Iterable[str]) -> list[tuple[bytes, str]]:
    return [key for line in lines if (key := _key(lease_id, line)) is not None]


def _key(lease_id: str, line: str) -> tuple[bytes, str] | None:
    """One unreadable key must not lock out the others."""
    try:
        key = asyncssh.import_public_key(line)
    except asyncssh.KeyImportError:
        log.error("a key of %s cannot be read and is left out", lease_id)  # noqa: TRY400
        return None
    return key.public_data, key.get_fingerprint()

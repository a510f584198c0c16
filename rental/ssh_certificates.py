"""The portal's own way into leases: certificates for one lease and one minute, signed by a key that only it has.

The private key lies in one file, made at the first use, and goes nowhere else: not into the database, logs, messages or
to nodes, which get the public half with each lease. Several web machines share the file.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import asyncssh
from django.conf import settings

if TYPE_CHECKING:
    from pathlib import Path

    from rental.models import Lease

logger = logging.getLogger(__name__)

MAX_VALID_S: Final = 60  # what gateways accept, from the first to the last moment


class CertificateAuthorityError(Exception):
    """The key that signs certificates cannot be read or made; the text names the file and never its content."""


def for_lease(lease: Lease, public_key: str, *, valid_s: int = MAX_VALID_S) -> str:
    """A user certificate line for ``public_key`` (``ssh-ed25519 AAAA…``) that opens this lease and no other.

    It is valid from half of ``valid_s`` ago, since the node's clock may be behind ours, for the other half from now.
    Raises ValueError for another kind of key or a time out of range, CertificateAuthorityError.
    """
    if not 2 <= valid_s <= MAX_VALID_S:  # noqa: PLR2004  # a half must be at least a second
        raise ValueError(f"valid_s must be 2 to {MAX_VALID_S}")
    try:
        key = asyncssh.import_public_key(public_key)
    except asyncssh.KeyImportError as error:
        raise ValueError("public_key cannot be read") from error
    if key.get_algorithm() != "ssh-ed25519":
        raise ValueError("public_key must be an Ed25519 key")
    begin = int(time.time()) - valid_s // 2
    certificate = _authority(settings.SSH_CA_KEY_FILE).generate_user_certificate(
        key,
        key_id=f"portal {lease.pk}",
        serial=secrets.randbits(63),
        principals=[lease.pk],
        valid_after=begin,
        valid_before=begin + valid_s,
        permit_x11_forwarding=False,
        permit_agent_forwarding=False,
        permit_user_rc=False,
    )
    return certificate.export_certificate().decode().strip()


def authorities() -> list[str]:
    """Public key lines whose certificates open leases, for nodes.

    Empty where the file cannot be had: renters must get in all the same.
    """
    try:
        return [" ".join(_authority(settings.SSH_CA_KEY_FILE).export_public_key().decode().split()[:2])]
    except CertificateAuthorityError as error:
        logger.error("the portal cannot enter leases: %s", error)  # noqa: TRY400  # the sentence says it all
        return []


def _authority(path: Path) -> asyncssh.SSHKey:
    try:
        if not path.exists():
            _make(path)
        facts = path.stat()
        return _read(path, facts.st_ino, facts.st_mtime_ns)
    except OSError as error:
        raise CertificateAuthorityError(f"SSH_CA_KEY_FILE {path}: {error.strerror}") from error
    except asyncssh.KeyImportError as error:
        raise CertificateAuthorityError(f"SSH_CA_KEY_FILE {path} holds no private key without a passphrase") from error


@lru_cache(maxsize=2)
def _read(path: Path, _inode: int, _changed_ns: int) -> asyncssh.SSHKey:
    return asyncssh.read_private_key(path)


def _make(path: Path) -> None:
    """Whole or not at all, never readable by others; of two processes at once the first one's key stands."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(asyncssh.generate_private_key("ssh-ed25519", comment="lessor portal").export_private_key())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        logger.info("made the key that signs the portal's SSH certificates: %s", path)
    finally:
        draft.unlink()

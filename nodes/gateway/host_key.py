"""The gateway's host key: made at the first start, the same ever after, so that clients are not alarmed."""

from __future__ import annotations

import os
from pathlib import Path

import asyncssh


def ensure_host_key(path: Path) -> str:
    """Make the key where it is missing; returns the public line ("ssh-ed25519 AAAA…").

    Raises OSError, KeyImportError.
    """
    if path.exists():
        key = asyncssh.read_private_key(path)
    else:
        key = asyncssh.generate_private_key("ssh-ed25519", comment="lessor")
        _write(path, key.export_private_key(), 0o600)
    public = key.export_public_key()
    public_path = path.with_name(path.name + ".pub")
    if not public_path.exists() or public_path.read_bytes() != public:
        _write(public_path, public, 0o644)
    return " ".join(public.decode().split()[:2])


def _write(path: Path, content: bytes, mode: int) -> None:
    """Whole or not at all, and never readable by others in between."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)

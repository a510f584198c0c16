"""Keys as other programs write them: what the portal accepted is what opens a lease."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.guest import Guest

if TYPE_CHECKING:
    from pathlib import Path

    from scripts.demolib.renter import Renter
    from tests.e2e.conftest import Rent
    from tests.rig.stack import Stack

pytestmark = pytest.mark.rig


def hardware_line() -> str:
    """A key on a security token; nobody has the token."""
    kind = b"sk-ssh-ed25519@openssh.com"
    parts = (kind, bytes(range(32)), b"ssh:")
    return f"{kind.decode()} {base64.b64encode(b''.join(struct.pack('>I', len(p)) + p for p in parts)).decode()}"


def test_a_key_written_on_windows_logs_in_and_a_token_key_reaches_the_gateway_as_it_is(
    stack: Stack, neighbour: Renter, rent: Rent, tmp_path: Path
) -> None:  # case A01, case A02
    key = tmp_path / "windows"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "kim@laptop", "-f", str(key)], check=True)
    typed = "\ufeff" + key.with_suffix(".pub").read_text().strip() + "\r\n"
    neighbour.form("/access/keys/", {"name": "windows", "public_key": typed}, expect="SHA256:")
    neighbour.form("/access/keys/", {"name": "token", "public_key": f"{hardware_line()} token"}, expect="SHA256:")
    guest = rent(neighbour)

    assert Guest(neighbour, guest.lease, key).run("echo in").stdout == "in\n"
    admitted = json.loads((stack.node.run / "gateway" / "leases.json").read_text())["leases"][guest.id]["keys"]
    assert hardware_line() in admitted
    assert not [line for line in admitted if "\r" in line or "\n" in line or "\ufeff" in line]

"""The portal's certificates: one lease, one minute, one kind of key; and where its own key lies."""

from __future__ import annotations

import base64
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from nodes.gateway import certificates
from nodes.models import Node
from portal.models import Tenant, User
from rental import desired, ssh_certificates
from rental.models import Lease
from tests import make
from tests.rental.factories import running

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def file(tmp_path: Path, settings: Any) -> Path:
    """The file of the key, not there yet."""
    settings.SSH_CA_KEY_FILE = tmp_path / "ca" / "ed25519"
    return tmp_path / "ca" / "ed25519"


@pytest.fixture
def lease(renter: User, tenant: Tenant, node: Node) -> Lease:
    return running(renter, tenant)


def test_the_key_is_made_once_and_only_we_can_read_it(file: Path) -> None:
    first = ssh_certificates.authorities()

    assert first == ssh_certificates.authorities()
    assert len(first) == 1
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [path.name for path in file.parent.iterdir()] == ["ed25519"]


def test_processes_that_need_it_at_once_make_one_key(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ssh_certificates.authorities()[0], range(16)))

    assert len(set(found)) == 1
    assert len(list(file.parent.iterdir())) == 1


def test_a_certificate_opens_this_lease_for_a_minute_and_nothing_else(lease: Lease, tmp_path: Path) -> None:
    before = int(time.time())
    line = ssh_certificates.for_lease(lease, make.ed25519_line())
    (tmp_path / "cert.pub").write_text(line)
    shown = subprocess.run(
        ["ssh-keygen", "-L", "-f", str(tmp_path / "cert.pub")], capture_output=True, text=True, check=True
    ).stdout

    certificate = certificates.read(base64.b64decode(line.split()[1]))
    assert certificate is not None
    assert certificate.principals == (lease.pk,)
    assert certificate.valid_before - certificate.valid_after == 60
    assert certificate.fault(lease.pk, time.time()) == ""
    assert certificate.fault("ls-other", time.time()) == "made for another lease"
    assert certificate.fault(lease.pk, before + 31) == "not valid now" or time.time() > before + 1
    assert "Critical Options: (none)" in shown
    assert "permit-pty" in shown
    assert "permit-port-forwarding" in shown
    assert "permit-agent-forwarding" not in shown


@pytest.mark.parametrize("seconds", [0, 1, 61, 3600])
def test_it_is_never_valid_for_longer_than_gateways_take(lease: Lease, seconds: int) -> None:
    with pytest.raises(ValueError, match="valid_s must be 2 to 60"):
        ssh_certificates.for_lease(lease, make.ed25519_line(), valid_s=seconds)


@pytest.mark.parametrize("line", ["", "ssh-ed25519 x", "nonsense", None])
def test_other_keys_are_not_certified(lease: Lease, line: str | None) -> None:
    other = asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode()
    with pytest.raises(ValueError, match="public_key"):
        ssh_certificates.for_lease(lease, other if line is None else line)


def test_nodes_get_the_public_half_and_nothing_else_of_it_leaves(lease: Lease, node: Node, file: Path) -> None:
    word = desired.desired_leases(node)[0]

    assert word["ssh_ca"] == ssh_certificates.authorities()
    secret = "".join(file.read_text().split("\n")[1:-2])
    assert secret[80:200] not in str(word)


@pytest.mark.parametrize("content", ["", "not a key"])
def test_a_key_that_cannot_be_read_keeps_no_renter_out_and_its_content_is_in_no_log(
    lease: Lease, node: Node, file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_text(content)

    assert desired.desired_leases(node)[0]["ssh_ca"] == []
    assert "holds no private key" in caplog.text
    assert "not a key" not in caplog.text
    with pytest.raises(ssh_certificates.CertificateAuthorityError):
        ssh_certificates.for_lease(lease, make.ed25519_line())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, settings: Any) -> None:
    (tmp_path / "blocked").write_text("")
    settings.SSH_CA_KEY_FILE = tmp_path / "blocked" / "ed25519"

    with pytest.raises(ssh_certificates.CertificateAuthorityError, match=r"SSH_CA_KEY_FILE .*blocked"):
        ssh_certificates.for_lease(Lease(pk="ls-x"), make.ed25519_line())


def test_a_replaced_key_is_used_from_then_on(file: Path) -> None:
    first = ssh_certificates.authorities()
    file.unlink()

    assert ssh_certificates.authorities() != first

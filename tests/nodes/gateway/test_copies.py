"""scp, sftp and rsync into an ordinary image and into one from scratch, which has neither shell nor passwd."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.nodes.gateway.rig import Lease, Node

pytestmark = [pytest.mark.rig]


@pytest.fixture(params=["distro", "empty"])
def target(request: pytest.FixtureRequest, node: Node, lease: Lease, empty_lease: Lease) -> Lease:
    """Each image in turn."""
    return lease if request.param == "distro" else empty_lease


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Three megabytes of nothing in particular."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(2).randbytes(3_000_000))  # noqa: S311  the same in each run
    return path


def test_scp_copies_both_ways(node: Node, target: Lease, file: Path, tmp_path: Path) -> None:
    there = node.copy("scp", str(file), f"{target.id}@127.0.0.1:scp-copy")
    back = node.copy("scp", f"{target.id}@127.0.0.1:scp-copy", str(tmp_path / "back"))

    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert (tmp_path / "back").read_bytes() == file.read_bytes()
    # a relative path means the workspace, as in a shell
    assert (node.directory / f"workspace-{target.id}/scp-copy").exists()


def test_sftp_runs_a_batch(node: Node, target: Lease, file: Path, tmp_path: Path) -> None:
    batch = tmp_path / "batch"
    batch.write_text(f"pwd\nput {file} sftp-copy\nls -l sftp-copy\nget sftp-copy {tmp_path}/back\nrm sftp-copy\n")

    done = node.copy("sftp", "-b", str(batch), f"{target.id}@127.0.0.1")

    assert done.returncode == 0, done.stderr
    assert b"Remote working directory: /workspace" in done.stdout
    assert (tmp_path / "back").read_bytes() == file.read_bytes()


def test_rsync_copies_both_ways(node: Node, target: Lease, file: Path, tmp_path: Path) -> None:
    there = node.rsync(str(file), f"{target.id}@127.0.0.1:rsync-copy")
    back = node.rsync(f"{target.id}@127.0.0.1:rsync-copy", str(tmp_path / "back"))

    assert (there.returncode, back.returncode) == (0, 0), there.stderr + back.stderr
    assert (tmp_path / "back").read_bytes() == file.read_bytes()


def test_the_old_scp_protocol_is_refused_with_a_hint_where_the_image_has_no_scp(
    node: Node, target: Lease, file: Path
) -> None:
    done = node.copy("scp", "-O", str(file), f"{target.id}@127.0.0.1:copy")

    assert done.returncode != 0
    assert b"this image has no scp; use scp in its SFTP mode" in done.stderr


def test_a_user_without_an_entry_in_passwd_can_use_sftp(node: Node, file: Path) -> None:
    lease = node.make_lease("ls-number", "distro", "--user", "4321")

    done = node.copy("scp", str(file), f"{lease.id}@127.0.0.1:/tmp/copy")

    assert done.returncode == 0, done.stderr

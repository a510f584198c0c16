"""leases.json as the gateway reads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import asyncssh
import pytest

from nodes.gateway.leases import NOBODY, LeaseBook
from nodes.gateway.server import Gateway


def make_key() -> asyncssh.SSHKey:
    """A new key."""
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


def line(key: asyncssh.SSHKey) -> str:
    """Its line in authorized_keys."""
    return key.export_public_key().decode().strip()


def write(path: Path, **leases: object) -> None:
    """Replace the file as the agent does."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"leases": leases}))
    draft.replace(path)


def test_a_replaced_file_is_seen_at_the_next_question(tmp_path: Path) -> None:
    path, first, second = tmp_path / "leases.json", make_key(), make_key()
    book = LeaseBook(path)
    write(path, one={"keys": [line(first)], "probe_key": None})
    assert book.of("one").admits(first.public_data)

    write(path, one={"keys": [line(second)], "probe_key": None})

    assert not book.of("one").admits(first.public_data)
    assert book.of("one").keys == {second.public_data: second.get_fingerprint()}
    assert book.refresh() == book.refresh()


async def test_a_change_that_a_login_read_first_still_drops_who_is_not_admitted_any_more(tmp_path: Path) -> None:
    path, key, looked = tmp_path / "leases.json", make_key(), asyncio.Event()
    book = LeaseBook(path)
    write(path, one={"keys": [line(key)], "probe_key": None})

    class Watched:
        def check_still_admitted(self) -> None:
            if not book.of("one").admits(key.public_data):
                looked.set()

    gateway = SimpleNamespace(book=book, live=[Watched()], activity=SimpleNamespace(retain=lambda _: None))
    watcher = asyncio.ensure_future(Gateway.watch(gateway))  # type: ignore[arg-type]  # what watch() uses of it
    await asyncio.sleep(0)  # its first look
    write(path, one={"keys": [], "probe_key": None})
    book.of("one")  # a login, or a question of the agent, reads the change before the watcher looks again
    await asyncio.wait_for(looked.wait(), 5)
    watcher.cancel()


def test_a_missing_file_lets_nobody_in(tmp_path: Path) -> None:
    path, key = tmp_path / "leases.json", make_key()
    write(path, one={"keys": [line(key)], "probe_key": None})
    book = LeaseBook(path)
    assert book.of("one").admits(key.public_data)

    path.unlink()

    assert book.refresh() == 2  # the file, and that it went
    assert book.of("one") == NOBODY


@pytest.mark.parametrize("content", ["", "[]", '{"leases": []}', '{"leases": {"one": {}}}', '{"leases": {"one": 1}}'])
def test_a_garbled_file_changes_nothing_and_is_logged_without_its_content(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, key = tmp_path / "leases.json", make_key()
    write(path, one={"keys": [line(key)], "probe_key": None})
    book = LeaseBook(path)
    book.refresh()

    path.write_text(content)

    assert book.of("one").admits(key.public_data)
    assert "cannot be read" in caplog.text


def test_one_unreadable_key_does_not_lock_out_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, key = tmp_path / "leases.json", make_key()
    write(path, one={"keys": ["ssh-ed25519 nonsense", line(key)], "probe_key": None})

    assert LeaseBook(path).of("one").admits(key.public_data)
    assert "nonsense" not in caplog.text


def test_the_probe_key_is_admitted_but_is_not_one_of_the_keys(tmp_path: Path) -> None:
    path, probe = tmp_path / "leases.json", make_key()
    write(path, one={"keys": [], "probe_key": line(probe)})

    keys = LeaseBook(path).of("one")

    assert keys.admits(probe.public_data)
    assert not keys.keys

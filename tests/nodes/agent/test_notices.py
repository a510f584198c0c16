"""Notices and certificate authorities on their way from the portal to the gateway."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest

from nodes.agent.desired import Notice, parse_lease
from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.world import GPU, World, until

FIRST, SECOND = {"id": "1", "text": "first"}, {"id": "2", "text": "second"}


class ControlSocket:
    """The gateway's end of the control socket, which keeps the notices it is given."""

    def __init__(self, path: Path) -> None:
        self.shown: list[tuple[str, str]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Be gone, as a gateway that was killed."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                question = json.loads(connection.makefile().readline())
                if question["op"] == "notice":
                    self.shown.append((question["lease"], question["text"]))
                connection.sendall(b'{"terminals": 1, "keys": []}\n')


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakePortal() as portal:
        world = World(tmp_path, portal)
        world.start()
        yield world
        world.stop()


def control(world: World) -> Path:
    """Where the gateway listens."""
    return world.directory / "run/gateway/control.sock"


def test_each_notice_is_shown_once_also_over_a_restart_of_the_agent(world: World) -> None:
    gateway = ControlSocket(control(world))
    world.running()
    world.want(notices=[FIRST])
    until(lambda: gateway.shown == [("ls-a", "first")])
    world.stop()
    world.start()
    world.want(notices=[FIRST, SECOND])
    until(lambda: len(gateway.shown) == 2)
    world.want(notices=[SECOND])
    world.want(notices=[FIRST, SECOND, {"id": "3", "text": "third"}])
    until(lambda: len(gateway.shown) == 3)

    assert [text for _, text in gateway.shown] == ["first", "second", "third"]


def test_a_notice_waits_for_a_gateway_that_is_away(world: World) -> None:
    world.running()
    world.want(notices=[FIRST, SECOND])
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 2, "some pulls")

    gateway = ControlSocket(control(world))

    until(lambda: [text for _, text in gateway.shown] == ["first", "second"])


def test_the_gateway_learns_the_portal_s_authorities_and_when_they_change(world: World) -> None:
    keys = [asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip() for _ in range(2)]
    world.want(ssh_ca=keys[:1])
    world.portal.wait_event("ls-a", "ready")
    file = world.directory / "run/gateway/leases.json"
    until(lambda: json.loads(file.read_text())["leases"]["ls-a"]["ca"] == keys[:1])
    world.want(ssh_ca=keys[1:])

    until(lambda: json.loads(file.read_text())["leases"]["ls-a"]["ca"] == keys[1:])


def test_no_lease_fails_for_a_notice_or_an_authority_that_cannot_be_read() -> None:
    notices = [FIRST, {"id": 5, "text": "x"}, {"id": "6"}, "x", {"id": "", "text": "x"}, {"id": "i" * 65, "text": ""}]
    read = parse_lease(lease("ls-a", [GPU], "here:1", notices=notices, ssh_ca=["ssh-ed25519 x\ny", 5, "no"]))

    assert read.notices == (Notice("1", "first"),)
    assert read.ssh_ca == ()
    assert parse_lease(lease("ls-a", [GPU], "here:1", notices="x", ssh_ca=None)).notices == ()

"""The watch over the SSH way in: a real gateway process, killed and started again; when the portal hears of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from nodes.agent.contact import Contact
from nodes.agent.desired import parse_lease
from nodes.agent.gateway_link import GatewayAnswer, GatewayDownError, GatewayLink
from nodes.agent.portal import PortalClient
from nodes.agent.probe import ProbeKey
from nodes.agent.ssh_watch import SshWatch
from nodes.agent.store import LeaseRecord
from tests.nodes.agent.fake_portal import TOKEN, FakePortal, lease
from tests.nodes.agent.world import GPU, until

ROOT = Path(__file__).resolve().parents[3]
LEASE = "ls-a"


class Gateway:
    """What the watch sees of a gateway, without the start of a program: a greeting, and who would be let in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.greeting = b"SSH-2.0-Lessor\r\n"
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        self._listeners: list[socket.socket] = []

    def start(self) -> None:
        """Be there."""
        path = self.directory / "run/gateway/control.sock"
        path.unlink(missing_ok=True)
        door, control = socket.create_server(("127.0.0.1", self.port)), socket.socket(socket.AF_UNIX)
        control.bind(str(path))
        control.listen()
        self._listeners = [door, control]
        for listener, answer in ((door, lambda _: self.greeting), (control, self._who)):
            threading.Thread(target=_serve, args=(listener, answer), daemon=True).start()

    def kill(self) -> None:
        """Be gone."""
        for listener in self._listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listeners = []

    def _who(self, connection: socket.socket) -> bytes:
        lease_id = json.loads(connection.makefile().readline())["lease"]
        entry = json.loads((self.directory / "run/gateway/leases.json").read_text())["leases"][lease_id]
        keys = [asyncssh.import_public_key(line).get_fingerprint() for line in entry["keys"]]
        return json.dumps({"keys": keys, "host_key": ""}).encode() + b"\n"


def _serve(listener: socket.socket, answer: Callable[[socket.socket], bytes]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, suppress(OSError):
            connection.sendall(answer(connection))


class RealGateway(Gateway):
    """The real program, without an execd behind it."""

    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As a service manager does."""
        (self.directory / "run/gateway/control.sock").unlink(missing_ok=True)
        command = [sys.executable, "-m", "nodes.gateway", "--host", "127.0.0.1", "--port", str(self.port)]
        places = ["--run", str(self.directory / "run"), "--state", str(self.directory / "state")]
        self.process = subprocess.Popen([*command, *places], cwd=ROOT, stderr=subprocess.DEVNULL)
        until((self.directory / "run/gateway/control.sock").exists)

    def kill(self) -> None:
        """As the kernel does."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process = None


class Knock:
    """A login that succeeds, fails, or finds nothing inside."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.inside = ""
        self.keys: list[str] = []

    async def knock(self, lease_id: str, key: ProbeKey, answer: GatewayAnswer) -> str:
        self.keys.append(lease_id)
        if self.error is not None:
            raise self.error
        return self.inside


class Scene:
    """A node with one running lease, its gateway, and the watch; another `watch` is the agent started again."""

    def __init__(self, directory: Path, portal: FakePortal, gateway: type[Gateway]) -> None:
        self.directory, self.portal = directory, portal
        self.link = GatewayLink(directory / "run", "no-such-group")
        key = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        wanted = parse_lease(lease(LEASE, [GPU], "here:1", authorized_keys=[key]))
        portal.want(lease(LEASE, [GPU], "here:1"))
        self.record = LeaseRecord(LEASE, 1, "running", devices=(GPU,), desired=wanted)
        self.link.put(LEASE, wanted.authorized_keys)
        self.knock = Knock()
        self.gateway = gateway(directory)
        self.client = PortalClient(portal.url, TOKEN, Contact(directory / "contact.json", 900))
        self.login_every_s = 1e9

    def watch(self, *others: LeaseRecord) -> SshWatch:
        return SshWatch(
            lambda: [self.record, *others], self.link, self.knock, self.client, port=self.gateway.port,
            file=self.directory / "ssh_watch.json", every_s=0.05, login_every_s=self.login_every_s,
        )  # fmt: skip


@pytest.fixture
def portal() -> Iterator[FakePortal]:
    with FakePortal() as portal:
        yield portal


@pytest.fixture
def scene(tmp_path: Path, portal: FakePortal, request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(tmp_path, portal, getattr(request, "param", Gateway))
    scene.gateway.start()
    try:
        yield scene
    finally:
        scene.gateway.kill()


@pytest.mark.parametrize("scene", [RealGateway], indirect=True)
def test_a_gateway_killed_with_minus_9_is_told_after_the_second_look_and_its_return_too(
    scene: Scene, portal: FakePortal
) -> None:
    since = time.monotonic()
    watch = scene.watch()
    watch.look()
    scene.gateway.kill()
    watch.look()
    assert portal.reports == []
    time.sleep(0.2)  # since_s has one decimal
    watch.look()
    watch.look()
    assert portal.events(LEASE) == ["ssh_down"]
    told = portal.report(LEASE, "ssh_down")["evidence"]
    assert 0.2 <= told["since_s"] <= time.monotonic() - since + 0.1
    assert "the SSH port does not answer" in told["why"]
    scene.gateway.start()
    watch.look()
    watch.look()

    assert portal.events(LEASE) == ["ssh_down", "ssh_up"]


def test_a_gateway_that_restarts_between_two_looks_is_no_outage(scene: Scene, portal: FakePortal) -> None:
    watch = scene.watch()
    scene.gateway.kill()
    watch.look()
    scene.gateway.start()
    for _ in range(3):
        watch.look()

    assert portal.reports == []


def test_a_lease_whose_keys_the_gateway_does_not_have_is_shut(scene: Scene, portal: FakePortal) -> None:
    watch = scene.watch()
    scene.link.put(LEASE, [])
    watch.look()
    watch.look()

    assert portal.report(LEASE, "ssh_down")["detail"] == "the SSH gateway does not have the lease's keys"


def test_a_port_on_which_something_else_answers_is_shut(scene: Scene, portal: FakePortal) -> None:
    scene.gateway.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    watch = scene.watch()
    watch.look()
    watch.look()

    assert portal.report(LEASE, "ssh_down")["detail"] == "the SSH port does not answer as SSH does"


def test_a_gateway_that_accepts_and_says_nothing_costs_one_wait_whatever_the_number_of_leases(
    scene: Scene, portal: FakePortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def silent(lease_id: str) -> GatewayAnswer:
        asked.append(lease_id)
        raise GatewayDownError("the SSH gateway does not answer: TimeoutError")

    monkeypatch.setattr(scene.link, "ask", silent)
    other = replace(scene.record, lease_id="ls-b")
    portal.want(lease("ls-b", [GPU], "here:1"))
    watch = scene.watch(other)
    watch.look()
    watch.look()

    assert len(asked) == 2
    assert portal.events(LEASE) == portal.events("ls-b") == ["ssh_down"]


def test_the_portal_hears_of_an_outage_that_was_over_before_it_could_be_told(scene: Scene, portal: FakePortal) -> None:
    watch = scene.watch()
    portal.status = 503
    scene.gateway.kill()
    watch.look()
    watch.look()
    scene.gateway.start()
    watch.look()
    assert portal.reports == []
    portal.status = 0
    watch.look()
    watch.look()

    assert portal.events(LEASE) == ["ssh_down", "ssh_up"]


def test_an_agent_that_restarts_during_an_outage_tells_of_its_end_and_not_twice_of_its_beginning(
    scene: Scene, portal: FakePortal
) -> None:
    watch = scene.watch()
    scene.gateway.kill()
    watch.look()
    watch.look()
    again = scene.watch()
    again.look()
    again.look()
    scene.gateway.start()
    again.look()
    again.look()
    scene.watch().look()

    assert portal.events(LEASE) == ["ssh_down", "ssh_up"]


def test_a_lease_that_ends_during_an_outage_is_heard_of_no_more(scene: Scene, portal: FakePortal) -> None:
    watch = scene.watch()
    scene.gateway.kill()
    watch.look()
    watch.look()
    scene.record.phase = "stopping"
    watch.look()
    scene.gateway.start()
    watch.look()

    assert portal.events(LEASE) == ["ssh_down"]


def test_a_login_that_fails_twice_is_an_outage_and_the_next_that_succeeds_ends_it(
    scene: Scene, portal: FakePortal
) -> None:
    scene.login_every_s = 0.0
    watch = scene.watch()
    watch.look()
    scene.knock.error = asyncssh.PermissionDenied("no")
    watch.look()
    watch.look()
    assert portal.report(LEASE, "ssh_down")["detail"] == "logging in over SSH failed: PermissionDenied"
    scene.knock.error = None
    watch.look()

    assert portal.events(LEASE) == ["ssh_down", "ssh_up"]
    assert scene.link.ask(LEASE).keys == {asyncssh.import_public_key(k).get_fingerprint() for k in keys_of(scene)}


def keys_of(scene: Scene) -> tuple[str, ...]:
    """The renter's keys."""
    assert scene.record.desired is not None
    return scene.record.desired.authorized_keys


def test_a_container_in_which_nothing_starts_is_no_outage(scene: Scene, portal: FakePortal) -> None:
    scene.login_every_s = 0.0
    scene.knock.inside = "lessor: fork: resource temporarily unavailable"
    watch = scene.watch()
    for _ in range(3):
        watch.look()

    assert len(scene.knock.keys) == 3
    assert portal.reports == []


def test_whole_logins_are_rare(scene: Scene) -> None:
    scene.login_every_s = 600.0
    watch = scene.watch()
    for _ in range(5):
        watch.look()

    assert len(scene.knock.keys) <= 1


def test_the_thread_looks_by_itself_and_ends(scene: Scene, portal: FakePortal) -> None:
    watch = scene.watch()
    watch.start()
    scene.gateway.kill()
    portal.wait_event(LEASE, "ssh_down")
    scene.gateway.start()
    portal.wait_event(LEASE, "ssh_up")
    watch.stop()

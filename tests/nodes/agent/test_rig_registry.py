"""Pulls by a real engine from a registry that refuses, hangs, breaks off and is slow."""

import itertools
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent.engine import DockerEngine
from nodes.agent.engine_stream import Cut
from nodes.agent.failures import ImageError
from nodes.agent.images import ImagePool, Ticket
from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.registry_stub import Repository, StubRegistry
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine, wait_until
from tests.rig.images import SCRATCH, add_scratch, scratch_archive
from tests.rig.nvml import make_gpus

pytestmark = pytest.mark.rig
numbers = itertools.count(1)
QUIET_S = 1.5
SETTINGS: dict[str, object] = {"insecure-registries": ["10.98.0.0/16"], "max-download-attempts": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(make_gpus(4), SETTINGS) as started:
        add_scratch(started)
        yield started


@pytest.fixture(scope="module")
def registry(engine: Engine) -> Iterator[StubRegistry]:
    with StubRegistry(engine.host_ip) as started:
        yield started


@pytest.fixture(scope="module")
def root() -> bytes:
    """The file system of a small image that runs."""
    return scratch_archive()


@pytest.fixture(scope="module")
def docker(engine: Engine) -> DockerEngine:
    return DockerEngine(engine.socket, quiet_pull_s=QUIET_S)


@pytest.fixture
def pool(docker: DockerEngine) -> Iterator[ImagePool]:
    made = ImagePool(docker)
    yield made
    made.close()


class Image:
    """A repository of the test's own, with the name engines pull it by."""

    def __init__(self, registry: StubRegistry, root: bytes, padding: int = 100) -> None:
        """With padding no two are the same; else an engine that has one need not ask for the other."""
        self.path = f"team/img{next(numbers)}"
        self.registry = registry
        self.repository: Repository = registry.add(self.path, root, padding=padding)
        self.name = f"{registry.address}/{self.path}"

    def calls(self, method: str, what: str) -> int:
        """How often the registry was asked for something of this image."""
        return self.registry.count(f"{method} {self.path}/{what}")


def finished(ticket: Ticket) -> Ticket:
    wait_until(lambda: ticket.done, seconds=60, what="the pull")
    return ticket


@pytest.mark.parametrize("form", [":1", "@{digest}", ":1@{digest}"])
def test_an_image_is_pulled_and_found_by_exactly_the_name_it_was_ordered_by(
    engine: Engine, docker: DockerEngine, registry: StubRegistry, root: bytes, form: str
) -> None:  # case C01
    image = Image(registry, root, padding=1000)
    name = image.name + form.format(digest=image.repository.digest)
    assert docker.local_image(name) is None
    docker.pull(name, lambda _: None, Cut())
    assert docker.local_image(name)
    container = engine.docker("create", "--pull", "never", name).stdout.strip()
    assert engine.docker("inspect", "--format", "{{.Config.Image}}", container).stdout.strip() == name
    engine.docker("rm", container)


@pytest.mark.parametrize(
    ("status", "words"), [(401, "asks for a login"), (403, "is not public"), (404, "does not exist")]
)
def test_a_refusal_is_told_at_once_and_not_tried_again(
    pool: ImagePool, registry: StubRegistry, root: bytes, status: int, words: str
) -> None:  # case C03
    image = Image(registry, root)
    image.repository.status = status
    with pytest.raises(ImageError, match=words):
        finished(pool.pull(f"{image.name}:1", lambda: None)).result()
    assert image.calls("HEAD", "manifests") == 1


def test_a_tag_that_is_not_there_is_told_as_that(pool: ImagePool, registry: StubRegistry, root: bytes) -> None:
    image = Image(registry, root)
    with pytest.raises(ImageError, match="has no such tag"):
        finished(pool.pull(f"{image.name}:nope", lambda: None)).result()


def test_a_registry_that_limits_pulls_is_asked_again_when_it_said(
    pool: ImagePool, registry: StubRegistry, root: bytes
) -> None:  # case C03
    image = Image(registry, root)
    # The engine asks twice, the agent asks for how long; then the pull waits.
    image.repository.status, image.repository.headers, image.repository.refusals = 429, {"Retry-After": "2"}, 3
    before = len(registry.asked)
    ticket = pool.pull(f"{image.name}:1", lambda: None)
    wait_until(lambda: "limits pulls" in ticket.progress, seconds=30, what="the reason for the wait")
    finished(ticket).result()
    refused, answered = registry.asked_at[before + 2], registry.asked_at[before + 3]
    assert answered - refused >= 2


@pytest.mark.long  # the engine's own pauses
def test_a_transfer_that_is_cut_off_goes_on(pool: ImagePool, registry: StubRegistry, root: bytes) -> None:
    # case C03
    image = Image(registry, root, padding=300_000)
    image.repository.cuts = 1
    finished(pool.pull(f"{image.name}:1", lambda: None)).result()


def test_a_registry_that_hangs_after_its_headers_is_named(
    docker: DockerEngine, registry: StubRegistry, root: bytes
) -> None:  # case C03
    image = Image(registry, root)
    image.repository.hangs = True
    with pytest.raises(ImageError, match="stopped answering"):
        docker.pull(f"{image.name}:1", lambda _: None, Cut())


def test_a_pull_from_a_registry_that_hangs_is_given_up_at_once(
    engine: Engine, registry: StubRegistry, root: bytes
) -> None:  # case C03
    image = Image(registry, root)
    image.repository.hangs = True
    patient, cut = DockerEngine(engine.socket), Cut()
    pulling = threading.Thread(target=patient.pull, args=(f"{image.name}:1", lambda _: None, cut))
    pulling.start()
    wait_until(lambda: image.calls("GET", "manifests") == 1, seconds=30, what="the hanging call")
    cut.set()
    pulling.join(30)  # and not the three minutes after which it would be given up
    assert not pulling.is_alive()


def test_a_slow_pull_may_take_longer_than_any_limit_as_long_as_something_comes(
    docker: DockerEngine, registry: StubRegistry, root: bytes
) -> None:  # case C03
    image = Image(registry, root, padding=600_000)
    image.repository.bytes_per_s = 200_000  # three seconds and more
    told: list[str] = []
    docker.pull(f"{image.name}:1", told.append, Cut())
    in_bytes = {words for words in told if re.fullmatch(r"pulling [\d.]+ of [\d.]+ MB", words)}
    assert len(in_bytes) > 3
    assert docker.local_image(f"{image.name}:1")


def test_ten_who_want_one_image_cause_one_pull(pool: ImagePool, registry: StubRegistry, root: bytes) -> None:
    # case C03
    image = Image(registry, root, padding=200_000)
    image.repository.bytes_per_s = 200_000
    tickets = [pool.pull(f"{image.name}:1", lambda: None) for _ in range(10)]
    for ticket in tickets:
        finished(ticket).result()
    assert image.calls("GET", "manifests") == 1


def test_a_stop_does_not_wait_for_ten_images_that_are_being_pulled(
    engine: Engine, registry: StubRegistry, root: bytes, bundle_dir: Path, tmp_path: Path
) -> None:  # case I06
    images = [Image(registry, root, padding=4_000_000) for _ in range(10)]
    for image in images:
        image.repository.bytes_per_s = 50_000
    with FakePortal(engine.host_ip) as portal, RigNode(engine, portal, bundle_dir, tmp_path) as node:
        portal.want(lease("ls-runs", engine.fleet.uuids[:1], SCRATCH, authorized_keys=[node.key_line]))
        portal.wait_event("ls-runs", "ready")
        for number, image in enumerate(images):
            portal.want(lease(f"ls-{number}", engine.fleet.uuids[1:2], f"{image.name}:1"))
        portal.wait_for(lambda: all("pulling" in portal.events(f"ls-{n}") for n in range(10)), "ten pulls", 30)
        portal.stop("ls-runs")
        portal.stop("ls-0")  # and a renter changes his mind
        portal.wait_event("ls-runs", "cleaned", 30)
        portal.wait_event("ls-0", "cleaned", 30)
        told = [report["detail"] for report in portal.reports if report["event"] == "pulling"]
        assert all(portal.events(f"ls-{n}")[-1] == "pulling" for n in range(1, 10))  # all still on their way
        assert any(words.startswith("pulling ") or "other images" in words for words in told)
        for number in range(1, 10):
            portal.stop(f"ls-{number}")
        for number in range(1, 10):
            portal.wait_event(f"ls-{number}", "cleaned")

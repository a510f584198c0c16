"""Bringing a lease up: image, network and volume, container, check, start. The proof comes after, in the actor.

Each step may run again over what an earlier, interrupted try has left.
"""

import io
import tarfile
from collections.abc import Callable
from concurrent.futures import Future, wait
from http import HTTPStatus
from typing import Any, TypeVar

from nodes.agent.desired import DesiredLease, container_name
from nodes.agent.engine import ContainerFacts, ImageFacts
from nodes.agent.failures import (
    EngineError,
    ImageError,
    LaunchError,
    classify_preparation,
    classify_start,
    is_driver_fault,
)
from nodes.agent.gpus import GpuUnreadableError
from nodes.agent.holderbook import Holder, joined
from nodes.agent.hostconfig import JOINING_RUNTIMES, RUNTIME, build_body, check_hostconfig, labels
from nodes.agent.log import logger, step
from nodes.agent.network import bridge_name
from nodes.agent.parts import Parts
from nodes.agent.settling import settle
from nodes.agent.store import LeaseRecord

Prepared = TypeVar("Prepared")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = b"root:x:0:\nnogroup:x:65534:\n"

# Images whose file system is known to have passwd and /tmp: looked at once, not at each launch.
_complete_images: set[str] = set()


class Launch:
    """One try to bring up `lease`. `pull` waits for an image, and raises when the lease must end instead."""

    def __init__(self, parts: Parts, lease: DesiredLease, pull: Callable[[str], None]) -> None:
        self._parts = parts
        self._lease = lease
        self._name = container_name(lease.id, lease.generation)
        self._pull = pull
        self._holder: Holder | None = None

    def measure(self, record: LeaseRecord) -> None:
        """Remember what is on the devices before the lease, for its cleaning.

        Raises:
            LaunchError: a device is not on this node, or does not answer.
        """
        for uuid in self._lease.devices:
            try:
                record.memory_base[uuid] = self._parts.gpus.memory_used(uuid)
                record.pids_base[uuid] = sorted(self._parts.gpus.processes(uuid))
            except GpuUnreadableError as error:
                raise LaunchError("failed_gpu", f"GPU {uuid} is not on this node, or does not answer.") from error

    def create(self) -> str:
        """Everything up to a checked container that has not started; returns its id.

        Raises:
            LaunchError: with the class of the failure.
        """
        with step("prepare", self._lease.id, self._lease.generation):
            network = self._parts.threads.submit(self._network)
            volume = self._parts.threads.submit(self._make_volume)
            try:
                image = self._image()
                self._holder = prepared(network)
                container = self._make_container(image)
            finally:
                # Also when something fails: nothing may still be in the making when cleaning begins.
                beside: tuple[Future[Any], ...] = (network, volume)
                wait(beside)
            prepared(volume)
        return container

    def start(self, container: str) -> None:
        """Start what `create` made.

        Raises:
            LaunchError: failed_gpu where the device or its driver is the reason.
        """
        try:
            with step("start", self._lease.id, self._lease.generation):
                self._parts.engine.start(container)
                facts = self._parts.engine.inspect(container) if self._holder else None
                if facts:
                    self._settle(facts, self._holder)
        except EngineError as error:
            if is_driver_fault(str(error)):
                self._parts.on_driver_fault()
            raise classify_start(error) from error

    def adopt(self, container: ContainerFacts) -> None:
        """Do for a container that an earlier try has started what that try may not have come to.

        Also where it did: who died in between has left no word of it.

        Raises:
            LaunchError: it is not in the network of the holder that it was given. It is dead by then.
        """
        if not (container.running and joined(container)):
            return
        try:
            self._settle(container, self._parts.holders.given(container))
        except EngineError as error:
            raise classify_start(error) from error

    def _image(self) -> ImageFacts:
        engine, name = self._parts.engine, self._lease.image
        try:
            found = engine.local_image(name)
            if not found:
                self._pull(name)
                found = engine.local_image(name)
        except ImageError as error:
            raise LaunchError("failed_image", str(error)) from error
        except EngineError as error:
            raise classify_start(error) from error
        if not found:
            raise LaunchError("failed_image", f"The image {name} was pulled, but the engine does not have it.")
        return found

    def _network(self) -> Holder | None:
        holder = None
        if RUNTIME in JOINING_RUNTIMES:
            holder = self._parts.holders.take(self._name, self._lease.id)
        if not holder:
            self._make_network()
        return holder

    def _settle(self, container: ContainerFacts, holder: Holder | None) -> None:
        settle(self._parts.engine, self._parts.holders, container, holder, hostname=self._lease.id)

    def _make_network(self) -> None:
        own = labels(self._parts.node_facts().node_id, self._lease.id, self._lease.generation)
        with step("network", self._lease.id, self._lease.generation):
            self._parts.engine.network_create(self._name, bridge_name(self._name), own)

    def _make_volume(self) -> None:
        with step("volume", self._lease.id, self._lease.generation):
            self._parts.volumes.ensure(self._name, self._lease.workspace_bytes)

    def _make_container(self, image: ImageFacts) -> str:
        # Only the directory must be there: the volume may be mounted until the start.
        workspace = self._parts.volumes.directory(self._name)
        body = build_body(self._lease, self._parts.node_facts(), workspace, self._holder)
        try:
            with step("create", self._lease.id, self._lease.generation):
                container = self._create(body)
            with step("check", self._lease.id, self._lease.generation):
                self._check(container, body)
                self._complete(container, image)
        except EngineError as error:
            raise classify_start(error) from error
        return container

    def _create(self, body: dict[str, Any]) -> str:
        try:
            return self._parts.engine.create(self._name, body)
        except EngineError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
        self._parts.engine.remove(self._name)  # from a try that was cut off before its start
        return self._parts.engine.create(self._name, body)

    def _check(self, container: str, body: dict[str, Any]) -> None:
        facts = self._parts.engine.inspect(container)
        deviations = check_hostconfig(facts.inspect, body) if facts else ["the container is gone"]
        if deviations:
            logger.error("container of %s is not as ordered: %s", self._lease.id, "; ".join(deviations))
            self._parts.engine.remove(container)
            raise LaunchError("failed_launch", "The container was not made as ordered: " + "; ".join(deviations)[:500])

    def _complete(self, container: str, image: ImageFacts) -> None:
        if image.id in _complete_images:
            return
        engine = self._parts.engine
        passwd, tmp = engine.has_path(container, "/etc/passwd"), engine.has_path(container, "/tmp")  # noqa: S108
        if passwd and tmp:
            _complete_images.add(image.id)
        else:
            engine.put_archive(container, missing_files(passwd=not passwd, tmp=not tmp))


def prepared(step_of_launch: "Future[Prepared]") -> Prepared:
    """What a step gave that ran beside others.

    Raises:
        LaunchError: it failed.
    """
    if problem := step_of_launch.exception():
        raise classify_preparation(problem) from problem
    return step_of_launch.result()


def missing_files(*, passwd: bool, tmp: bool) -> bytes:
    """A tar with what an image from scratch lacks for logins, sftp and rsync."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("etc/passwd", PASSWD), ("etc/group", GROUP)) if passwd else ():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
        if tmp:
            entry = tarfile.TarInfo("tmp")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    return buffer.getvalue()

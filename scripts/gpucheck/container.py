"""Containers of the check: made by the agent's own code and settings, with another main process."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodes.agent.desired import DesiredLease, container_name
from nodes.agent.failures import AgentError
from nodes.agent.hostconfig import build_body, check_hostconfig, labels
from nodes.agent.network import bridge_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nodes.agent.engine import DockerEngine
    from nodes.agent.hostconfig import NodeFacts
    from nodes.agent.volumes import Volumes

LEASE_ID, ROLE = "ls-gpucheck", "gpu-check"  # the role keeps an agent on this machine from taking it for a lease
SCRATCH = "lessor-gpu-check/scratch:1"
LIMIT_S = 300.0


class Container:
    """A running container of the check."""

    def __init__(self, engine: DockerEngine, container_id: str) -> None:
        self._engine, self._id = engine, container_id

    def output(self) -> str:
        """What its main process has printed."""
        return self._engine.logs(self._id)

    def wait(self) -> str:
        """Until the main process has ended; what it has printed."""
        self._engine.wait(self._id, LIMIT_S)
        return self.output()

    def wait_line(self) -> str:
        """Until it has printed a line, or ended."""
        end = time.monotonic() + LIMIT_S
        while "\n" not in self.output():
            facts = self._engine.inspect(self._id)
            if not (facts and facts.running) or time.monotonic() > end:
                break
            time.sleep(0.2)
        return self.output()


@contextmanager
def container(
    engine: DockerEngine, volumes: Volumes, node: NodeFacts, devices: Sequence[str], image: str,
    command: Sequence[str], *, program: Path | None = None,
) -> Iterator[Container]:  # fmt: skip
    """A lease's container with these GPUs whose main process is ``command``; nothing of it is left afterwards.

    ``program`` is a file put into its /workspace. Raises AgentError where the engine made it other than ordered.
    """
    name = container_name(LEASE_ID, 1)
    own = labels(node.node_id, LEASE_ID, 1, ROLE)
    lease = DesiredLease(
        id=LEASE_ID, generation=1, want="run", stop_reason="", devices=tuple(devices), image=image, cpus_milli=1000,
        memory_bytes=4 << 30, shm_bytes=64 << 20, pids=256, workspace_bytes=64 << 20, authorized_keys=(),
        deadline_s=None, stop_grace_s=0,
    )  # fmt: skip
    _remove(engine, volumes, name)
    try:
        engine.network_create(name, bridge_name(name), own)
        workspace = volumes.ensure(name, lease.workspace_bytes)
        if program:
            (workspace / program.name).write_bytes(program.read_bytes())
            (workspace / program.name).chmod(0o755)
        body = build_body(lease, node, workspace)
        made = engine.create(name, {**body, "Labels": own, "Entrypoint": list(command), "Cmd": []})
        facts = engine.inspect(made)
        deviations = check_hostconfig(facts.inspect, body) if facts else ["it is gone"]
        if deviations:
            raise AgentError("the container is not as ordered: " + "; ".join(deviations))
        engine.start(made)
        yield Container(engine, made)
    finally:
        _remove(engine, volumes, name)


def _remove(engine: DockerEngine, volumes: Volumes, name: str) -> None:
    engine.remove(name)
    engine.network_remove(name)
    volumes.remove(name)


def add_scratch_image(docker_socket: Path) -> None:
    """An image with nothing in it: no shell, no passwd, no C library."""
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as archive:
        entry = tarfile.TarInfo("empty")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    _docker(docker_socket, "import", "-", SCRATCH, stdin=empty.getvalue())


def remove_scratch_image(docker_socket: Path) -> None:
    """Take it away again."""
    _docker(docker_socket, "image", "rm", "--force", SCRATCH)


def _docker(socket: Path, *arguments: str, stdin: bytes = b"") -> None:
    done = subprocess.run(
        ["docker", "-H", f"unix://{socket}", *arguments], input=stdin, capture_output=True, check=False
    )
    if done.returncode:
        raise AgentError(f"docker {arguments[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
